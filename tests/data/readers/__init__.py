"""Shared by the tests of readers: small files of every kind, and the public data if available."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot

from clew import readers
from clew.data.table import Ragged, Table, concat
from clew.errors import DataError

ROOT = Path(__file__).parents[3]


def public(name: str) -> Path:
    """A file of the public data in the folder CLEW_TEST_DATA. The test is skipped if it is absent."""
    path = Path(os.environ.get("CLEW_TEST_DATA", ROOT.parent / "shared" / "data")) / name
    if not path.is_file():
        pytest.skip(f"public data not here: {path} (set CLEW_TEST_DATA)")
    return path


def whole(location: str | Path, **options: Any) -> Table:
    """All pieces of a file as one table."""
    return concat(list(readers.read(str(location), **options)))


def problem(location: str | Path, kind: str | None = None, **options: Any) -> str:
    """The message of a reader about a file that it cannot read: one line, without the name of the file."""
    with pytest.raises(DataError) as caught:
        list(readers.read(str(location), kind, **options))
    text = str(caught.value)
    assert text.isprintable() and str(location) not in text
    return text


def lists(column: Any) -> list[list[Any]]:
    """A ragged column as Python lists."""
    assert isinstance(column, Ragged)
    return [event.tolist() for event in column]


def write_root(path: Path, columns: dict[str, Any], tree: str = "tree", step: int = 1000) -> None:
    """A TTree; lists become jagged branches, the fields of a record of lists share a counter. Baskets of `step`."""
    arrays = {name: ak.Array(values) for name, values in columns.items()}
    with uproot.recreate(path) as file:
        file.mktree(tree, {name: array.type.content for name, array in arrays.items()})
        for first in range(0, len(next(iter(arrays.values()))), step):
            file[tree].extend({name: array[first : first + step] for name, array in arrays.items()})


def ragged(lengths: Any, dtype: str = "f8") -> Any:
    """An awkward array of lists of these lengths: 0, 1, 2 and so on."""
    return ak.unflatten(np.arange(int(np.sum(lengths)), dtype=dtype), lengths)
