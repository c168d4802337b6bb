"""Long tables with one line per row that fit the terminal: columns of free text are cut first, then whole columns are
dropped, before any other cell is cut."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from clew.cli.options import console

_GAP = "  "
_STATE_COLOURS = {
    **dict.fromkeys(("finished", "done", "complete"), "32"),
    **dict.fromkeys(("running", "claimed"), "36"),
    **dict.fromkeys(("failed", "lost", "damaged", "interrupted"), "31"),
    **dict.fromkeys(("stopped", "cancelled", "pruned", "waiting"), "33"),
}
"""Codes of the terminal for cells of the column `state`."""


@dataclass(frozen=True)
class Column:
    """A column of text. `rank`: the columns with the highest rank are dropped first; 0 is never dropped. `least`: the
    width to which a column of free text may be cut; 0 for a column that is not cut."""

    head: str
    cells: Sequence[str]
    rank: int = 0
    right: bool = False
    least: int = 0

    @property
    def width(self) -> int:
        """Width in character cells, with the head."""
        return max(map(_width, (self.head, *self.cells)))


def line_width() -> int:
    """The width of the terminal. Lines that go to a file or another program are not cut."""
    limited = console.is_terminal or "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if limited else 1 << 20


def write(columns: Iterable[Column], *, width: int) -> None:
    """Print the columns. This is hundreds of times faster than a rich table, which ten thousand rows need."""
    colour = console.is_terminal and not console.no_color
    print("\n".join(fit(columns, width=width, colour=colour)), file=console.file)


def fit(columns: Iterable[Column], *, width: int, colour: bool = False) -> list[str]:
    """The lines of a table no wider than `width`, the head first. `colour`: states have colours.

    Empty columns are dropped. If the columns of rank 0 are too wide, the first one is cut.
    """
    shown = [column for column in columns if column.rank == 0 or any(column.cells)]
    sizes = {id(column): min(column.width, column.least or column.width) for column in shown}
    while (excess := sum(sizes[id(each)] + len(_GAP) for each in shown) - len(_GAP) - width) > 0:
        dropped = max(shown, key=lambda column: column.rank)
        if dropped.rank == 0:
            sizes[id(shown[0])] = max(sizes[id(shown[0])] - excess, 8)
            break
        shown.remove(dropped)
    for column in shown:
        if excess < 0 and column.least:
            more = min(-excess, column.width - sizes[id(column)])
            sizes[id(column)], excess = sizes[id(column)] + more, excess + more
    padded = [_padded(column, sizes[id(column)], colour) for column in shown]
    return [_GAP.join(row).rstrip() for row in zip(*padded, strict=True)]


def _padded(column: Column, width: int, colour: bool) -> list[str]:
    cells = [_cell(text, width, column.right) for text in (column.head, *column.cells)]
    return [cells[0], *map(_coloured, cells[1:])] if colour and column.head == "state" else cells


def coloured_state(state: str) -> str:
    """Return a state as text for `console.print`, in its colour."""
    names = {"31": "red", "32": "green", "33": "yellow", "36": "cyan"}
    code = _STATE_COLOURS.get(state)
    return state if code is None else f"[{names[code]}]{state}[/]"


def _coloured(cell: str) -> str:
    code = _STATE_COLOURS.get(cell.strip().partition(",")[0])
    return cell if code is None else f"\x1b[{code}m{cell}\x1b[0m"


def _cell(text: str, width: int, right: bool) -> str:
    free = width - _width(text)
    if free < 0:
        return set_cell_size(text, width - 1) + "…"
    return " " * free + text if right else text + " " * free


def _width(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)
