"""Hits from text files: `event x y z station track`, white space between, one hit a line, # begins a comment."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew import Ragged, Table
from clew.errors import DataError
from clew.recipes.tracking.simulate import Hits

COLUMNS = ("event", "x", "y", "z", "station", "track")
UNITS = {"x": "mm", "y": "mm", "z": "mm"}
CHUNK = 500
"""Events in one table: large enough for vectorised work, small enough for any memory."""


def read_text(path: Path) -> Iterator[Table]:
    """The events of a BES-III text file, in tables of at most `CHUNK` events.

    Raises:
        DataError: with the line, where a row is short, long or not numbers.
    """
    events = to_table(_parse(path))
    for first in range(0, len(events), CHUNK):
        yield events.slice(first, first + CHUNK)


def to_table(rows: NDArray[np.float64]) -> Table:
    """Rows of (event, x, y, z, station, track) as a table with a ragged set of hits an event."""
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    numbers, starts = np.unique(rows[:, 0], return_index=True)
    offsets = np.append(starts, len(rows)).astype(np.int64)
    hits = Ragged(np.ascontiguousarray(rows[:, 1]), offsets)
    columns: dict[str, Any] = {
        "event": numbers.astype(np.int64),
        "x": hits,
        "y": hits.share(np.ascontiguousarray(rows[:, 2])),
        "z": hits.share(np.ascontiguousarray(rows[:, 3])),
        "station": hits.share(rows[:, 4].astype(np.int16)),
        "track": hits.share(rows[:, 5].astype(np.int64)),
    }
    return Table(columns, units=UNITS)


def _parse(path: Path) -> NDArray[np.float64]:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*no data", category=UserWarning)
            rows = np.loadtxt(path, dtype=np.float64, ndmin=2, comments="#")
    except ValueError as error:
        raise DataError(_explain(path, error)) from error
    if rows.size == 0:
        raise DataError("no hits in it")
    if rows.shape[1] != len(COLUMNS):
        raise DataError(f"{rows.shape[1]} columns, expected {len(COLUMNS)}: {' '.join(COLUMNS)}")
    whole = rows[:, [0, 4, 5]]
    bad = (whole != np.round(whole)).any(axis=1)
    if bad.any():
        raise DataError(f"hit {int(np.argmax(bad)) + 1}: event, station and track must be whole numbers")
    return rows


def _explain(path: Path, error: ValueError) -> str:
    """Which line it was: NumPy counts rows of data, people count lines."""
    for number, text in _data_lines(path):
        fields = text.split()
        if len(fields) != len(COLUMNS):
            return f"line {number}: {len(fields)} columns, expected {len(COLUMNS)}: {' '.join(COLUMNS)}"
        for name, field in zip(COLUMNS, fields, strict=True):
            if not _is_number(field):
                return f"line {number}: {name} is '{field}', not a number"
    return re.sub(r"\s+", " ", str(error))


def _data_lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open(encoding="utf-8", errors="replace") as stream:
        for number, line in enumerate(stream, start=1):
            text = line.partition("#")[0].strip()
            if text:
                yield number, text


def _is_number(text: Any) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def write_text(path: Path, hits: Hits) -> None:
    """Synthetic hits in the layout that `read_text` takes; the first line says what they are."""
    rows = np.column_stack([hits.event, hits.x, hits.y, hits.z, hits.station, hits.track])
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    header = f"synthetic BES-III-CGEM-like events, made by clew\n{' '.join(COLUMNS)}"
    np.savetxt(temporary, rows, fmt="%d\t%.6e\t%.6e\t%.6e\t%d\t%d", header=header)
    temporary.replace(path)
