"""The columns of an event: an image as the pixels that are not zero, and what it shows."""

from __future__ import annotations

INDEX = "index"
"""Ragged int32: wire * columns + tick of each pixel, strictly increasing within an event."""
CHARGE = "charge"
"""Ragged float32, shared with INDEX: the charge of each pixel, above 0, in thousands of electrons."""
LABEL = "label"
"""int64: the place of the particle in CLASSES."""
ENERGY = "energy"
"""float32: kinetic energy of the particle where it starts, GeV."""
EVENT = "event"
"""int64: the number of the event."""
VERTEX = "vertex"
"""float32 (2): wire and tick where the particle starts. Of generated events only."""
SHAPE = "shape"
"""int32 (2): wires and ticks of the image that INDEX counts in. Of files; samples have that of the recipe."""

CLASSES = ("gamma", "e", "mu", "pi", "K")

SIZE = (3600, 3600)
"""Wires and ticks of an image, unless the recipe is told otherwise."""
