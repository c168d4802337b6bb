"""Reader of the public Delphes data set: pickles (plain or bz2) of `X`, `ygen` and `ycand`, one array per event.

`X` becomes `elements` and `ygen` becomes `targets`, column by column. `ycand` is the reconstruction of Delphes itself.
It becomes `candidates` if the setting `candidates` is true.
"""

from __future__ import annotations

import numpy as np

from clew import Ragged, Table, readers
from clew.data.readers import Reader
from clew.errors import DataError
from clew.recipes.particleflow import reader_base
from clew.recipes.particleflow.columns import FEATURES, TARGET
from clew.recipes.particleflow.targets import Array


class DelphesReader(reader_base.ParticleFlowReader):
    """The reader `delphes` and its settings."""

    candidates: bool = False
    """Whether to read `ycand` (n, 7), which has the columns of targets."""

    def file_reader(self) -> Reader:
        kind = readers.find("pickle")
        names = ("X", *(() if self.allow_missing_truth else ("ygen",)), *(("ycand",) if self.candidates else ()))
        return kind.model_validate(
            {"columns": names, "optional": ("ygen",) if self.allow_missing_truth else (), "chunk": self.chunk}
        )

    def build_events(self, columns: Table) -> Table:
        first = columns.ragged("X")
        truth = _entry_values(columns, "ygen", TARGET, first) if "ygen" in columns else None
        events = reader_base.build_table(first, _entry_values(columns, "X", FEATURES, first), truth)
        if not self.candidates:
            return events
        return events.join(
            {"candidates": events.ragged("elements").share(_entry_values(columns, "ycand", TARGET, first))}
        )


def _entry_values(columns: Table, name: str, width: int, like: Ragged) -> Array:
    """Return the values of an entry.

    Raises:
        DataError: The entry does not have `width` columns and one row per element.
    """
    entry = columns.ragged(name)
    if entry.values.ndim != 2 or entry.values.shape[1] != width:
        raise DataError(f"entry '{name}' has items of shape {entry.values.shape[1:]}, expected ({width},)")
    if not np.array_equal(entry.offsets, like.offsets):
        event = int(np.argmax(entry.lengths != like.lengths))
        raise DataError(f"event {event}: {entry.lengths[event]} rows in '{name}', {like.lengths[event]} in 'X'")
    return entry.values.astype(np.float32)
