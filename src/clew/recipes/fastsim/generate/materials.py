"""The calorimeter of the generators: 45 layers of 1.4 mm tungsten and 0.3 mm silicon, as in data set 2."""

from __future__ import annotations

LAYERS = 45
LAYER_PITCH = 1.7
"""Thickness of a layer, mm: 1.4 of tungsten and 0.3 of silicon."""
Z, A = 74.0, 183.84
"""Of tungsten, which causes 99% of a layer's radiation lengths."""
X0_MASS = 6.76
"""Radiation length of tungsten, g/cm2."""
LAYER_X0 = 1.4 / 3.504 + 0.3 / 93.7
"""Thickness of a layer in radiation lengths."""
X0 = LAYER_PITCH / LAYER_X0
"""Radiation length of the mixture, mm."""
CRITICAL_ENERGY = 2.66 * (X0_MASS * Z / A) ** 1.1
"""MeV."""
MOLIERE_RADIUS = X0 * 21.0 / CRITICAL_ENERGY
"""mm."""
INTERACTION_LENGTH = 118.0
"""Of the mixture, mm, for hadrons."""
RESPONSE = 0.965
"""Mean stored energy over deposited energy, for electrons: E(silicon) / 0.033."""
SAMPLING_TERM = 0.136
"""Relative fluctuation of 1 GeV by sampling."""
MIP_ENERGY = 2.9
"""Mean stored energy of a minimum-ionising particle in one layer, MeV."""
SAMPLING_FRACTION = 0.033
"""Stored energy is the energy in silicon over this."""
THRESHOLD = 0.01515
"""Voxels with less are stored as 0, MeV."""
GEANT4_SECONDS = {
    f"Geant4, {energy} GeV electrons, 1 core (recorded)": 1 / rate
    for energy, rate in {1: 49.0, 10: 4.2, 50: 0.90}.items()
}
"""Seconds per shower of Geant4 11.4.1 (geant4-pybind 0.1.3, call-backs in Python), one pair per layer, cut 0.7 mm. They
were recorded once, on one core of another machine."""
