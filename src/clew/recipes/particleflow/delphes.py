"""The public Delphes set: pickles, plain or bz2, of `X`, `ygen` and `ycand`, one array an event.

`X` is taken as elements and `ygen` as targets, column by column; `ycand`, the reconstruction of Delphes itself, is kept
as `candidates` where it is asked for.
"""

from __future__ import annotations

import numpy as np

from clew import Ragged, Table, readers
from clew.data.readers import Reader
from clew.errors import DataError
from clew.recipes.particleflow import mapped
from clew.recipes.particleflow.columns import FEATURES, TARGET
from clew.recipes.particleflow.truth import Array


class Delphes(mapped.Mapped):
    """Settings of the reader `delphes`."""

    candidates: bool = False
    """Whether to keep `ycand`, (n, 7) as targets are."""

    def inner(self) -> Reader:
        kind = readers.find("pickle")
        named = ("X", *(() if self.blind else ("ygen",)), *(("ycand",) if self.candidates else ()))
        return kind.model_validate({"columns": named, "optional": ("ygen",) if self.blind else (), "chunk": self.chunk})

    def events(self, found: Table) -> Table:
        first = found.ragged("X")
        truth = _checked(found, "ygen", TARGET, first) if "ygen" in found else None
        made = mapped.table(first, _checked(found, "X", FEATURES, first), truth)
        if not self.candidates:
            return made
        return made.join({"candidates": made.ragged("elements").share(_checked(found, "ycand", TARGET, first))})


def _checked(found: Table, name: str, width: int, like: Ragged) -> Array:
    """The values of an entry, known to have one row an element and so many columns."""
    own = found.ragged(name)
    if own.values.ndim != 2 or own.values.shape[1] != width:
        raise DataError(f"entry '{name}' has items of shape {own.values.shape[1:]}, expected ({width},)")
    if not np.array_equal(own.offsets, like.offsets):
        event = int(np.argmax(own.lengths != like.lengths))
        raise DataError(f"event {event}: {own.lengths[event]} rows in '{name}', {like.lengths[event]} in 'X'")
    return own.values.astype(np.float32)
