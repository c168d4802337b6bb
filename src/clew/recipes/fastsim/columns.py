"""The columns of a shower: the energy of the particle, and the energy in each voxel of the calorimeter."""

from __future__ import annotations

EVENT = "event"
"""int64: the number of the shower."""
ENERGY = "incident_energy"
"""float32: energy of the particle that hits the calorimeter, MeV."""
VOXELS = "voxels"
"""float32 (voxels): energy in each voxel, MeV, in the order of the geometry."""
THETA = "incident_theta"
"""float32: angle between the particle and the axis of the calorimeter, radians. Only in files that contain it."""
PHI = "incident_phi"
"""float32: azimuth of the particle, radians. Only in files that contain it."""
