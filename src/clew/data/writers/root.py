"""ROOT files: a TTree with the name `predictions`. A ragged column is a branch with its own counter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from clew.data.table import Ragged, Table
from clew.data.table.ragged import Array
from clew.data.writers.base import TableWriter

TREE = "predictions"


class RootWriter(TableWriter):
    """Writes a tree, with one basket per branch and table.

    ROOT has no lists of rows: a ragged column whose items are rows of n numbers becomes n branches, NAME_0, NAME_1, ...
    Half precision becomes single precision.
    """

    _file: Any = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _begin(self, like: Table) -> None:
        import uproot

        self._file = uproot.recreate(self.path)
        branches = {name: _type(column) for name, column in _branches(like).items()}
        self._file.mktree(TREE, branches, counter_name=lambda counted: _counter(counted, branches))

    def _write(self, table: Table) -> None:
        import awkward as ak

        if not len(table):
            return
        arrays: dict[str, Any] = {}
        for name, column in _branches(table).items():
            if isinstance(column, Ragged):
                offsets = ak.index.Index64(column.offsets)
                content = ak.contents.NumpyArray(np.ascontiguousarray(column.values))
                arrays[name] = ak.Array(ak.contents.ListOffsetArray(offsets, content))
            else:
                arrays[name] = column
        self._file[TREE].extend(arrays)


def _branches(table: Table) -> dict[str, Array | Ragged]:
    branches: dict[str, Array | Ragged] = {}
    for name, column in table.items():
        if isinstance(column, Ragged) and column.values.ndim > 1:
            flat = _wide(column.values).reshape(len(column.values), math.prod(column.values.shape[1:]))
            branches.update({f"{name}_{place}": column.share(flat[:, place]) for place in range(flat.shape[1])})
        else:
            branches[name] = column.share(_wide(column.values)) if isinstance(column, Ragged) else _wide(column)
    return branches


def _type(column: Array | Ragged) -> Any:
    if isinstance(column, Ragged):
        return f"var * {column.values.dtype.name}"
    return np.dtype((column.dtype, column.shape[1:]))


def _counter(counted: str, branches: dict[str, Any]) -> str:
    name = f"n{counted}"
    while name in branches:
        name = f"n{name}"
    return name


def _wide(values: Array) -> Array:
    return values.astype(np.float32) if values.dtype == np.float16 else values
