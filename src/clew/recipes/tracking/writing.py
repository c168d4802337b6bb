"""Text of synthetic events, written whole or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_WHOLE = ("event", "det", "station", "track")
"""Columns of whole numbers."""


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`: renamed to it at the end, gone after an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, what: str, columns: Mapping[str, NDArray[Any]], names: Sequence[str]) -> None:
    """Columns side by side, as the text reader takes them; the first line says `what` they are."""
    form = "\t".join("%d" if name in _WHOLE else "%.6e" for name in names)
    rows = np.column_stack([columns[name] for name in names])
    with whole(path) as temporary:
        np.savetxt(temporary, rows, fmt=form, header=f"{what}, made by clew\n{' '.join(names)}")
