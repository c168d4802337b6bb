"""The columns of an event: the nonzero pixels of an image, and the particle that it shows."""

from __future__ import annotations

INDEX = "index"
"""Ragged int32: wire * columns + tick of each pixel, strictly increasing within an event."""
CHARGE = "charge"
"""Ragged float32, shared with INDEX: the charge of each pixel, above 0, in thousands of electrons."""
LABEL = "label"
"""int64: the index of the particle in CLASSES."""
ENERGY = "energy"
"""float32: initial kinetic energy of the particle, GeV."""
EVENT = "event"
"""int64: the number of the event."""
VERTEX = "vertex"
"""float32 (2): wire and tick where the particle starts. Only in generated events."""
SHAPE = "shape"
"""int32 (2): wires and ticks of the image to which INDEX refers. Only in files; samples have the size of the recipe."""

CLASSES = ("gamma", "e", "mu", "pi", "K")

SIZE = (3600, 3600)
"""Default number of wires and ticks of an image."""
