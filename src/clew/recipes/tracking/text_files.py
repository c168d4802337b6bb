"""Writing text files of synthetic events. A file appears only when it is complete."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_INTEGER_COLUMNS = ("event", "det", "station", "track")
"""Columns of integers."""


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path in the folder of `path`. It is renamed to `path` at the end, or removed after an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # no other user can guess it
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, title: str, columns: Mapping[str, NDArray[Any]], names: Sequence[str]) -> None:
    """Write columns in the form of the text reader. The first line is the title."""
    line_format = "\t".join("%d" if name in _INTEGER_COLUMNS else "%.6e" for name in names)
    rows = np.column_stack([columns[name] for name in names])
    with atomic_path(path) as temporary:
        np.savetxt(temporary, rows, fmt=line_format, header=f"{title}, made by clew\n{' '.join(names)}")
