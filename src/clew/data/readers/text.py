"""Columns of numbers in text: one item (a hit) a line, an event's lines together; or one event a line.

White space, commas or semicolons between; # begins a comment; names from a header line, from `columns`, or from a
`layout` that people use. Parsed by Arrow, at a few dozen microseconds an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting

from clew.data.readers.base import Piece, Reader, declare, even, opened, unnamed
from clew.data.readers.text_lines import (
    Columns,
    Format,
    LineError,
    count_lines,
    cut,
    first_line,
    is_header,
    parse,
    row_line,
    split,
)
from clew.data.table import Field, Ragged, Table
from clew.errors import DataError, nearest
from clew.storage import stat


@dataclass(frozen=True)
class Layout:
    """Columns that people agreed on, in order, and their units; `whole` ones are integers."""

    columns: tuple[str, ...]
    units: dict[str, str]
    whole: tuple[str, ...]


_MM = dict.fromkeys(("x", "y", "z"), "mm")
LAYOUTS: dict[str, Layout] = {
    "bes3": Layout(("event", "x", "y", "z", "station", "track"), _MM, ("station", "track")),
    "bmn": Layout(
        ("event", "x", "y", "z", "det", "station", "track", "px", "py", "pz", "vx", "vy", "vz"),
        {**dict.fromkeys(("x", "y", "z", "vx", "vy", "vz"), "cm"), **dict.fromkeys(("px", "py", "pz"), "GeV")},
        ("det", "station", "track"),
    ),
}


class Text(Reader):
    """Settings of the text reader.

    Numbers are float64; NaN is a number. Integers may have 64 bits, or 53 where they are written as 1.0 or 1e3.
    """

    endings: ClassVar[tuple[str, ...]] = (".txt", ".csv", ".tsv", ".dat")

    layout: Literal["bes3", "bmn"] | None = None
    columns: tuple[str, ...] = ()
    """Names in the order of the file, where there is neither a layout nor a header. A header with just the names of the
    layout or of `columns` says in which order they are."""
    event: str = "event"
    """The column that numbers the events; lines with the same number, one after the other, are an event. A file that
    fits into one piece may have them in any order. Empty: every line is an event, and no column is ragged."""
    whole: tuple[str, ...] = ("station", "track")
    """Columns of integers (those of a layout are known)."""
    units: dict[str, str] = {}
    """Units of columns, over those of the layout."""
    chunk_mb: Annotated[float, Setting(gt=0)] = 4.0
    """Size of a piece."""

    def declared(self) -> dict[str, Field] | None:
        names = self._names()
        if not names:
            return None
        units, whole, ragged = self._units(), self._whole(), bool(self.event)
        inside = {
            name: Field("<i8" if name in whole else "<f8", ragged=ragged, unit=units.get(name, ""))
            for name in names
            if name != self.event
        }
        if not self.event:
            return inside
        return {self.event: Field("<i8", unit=units.get(self.event, "")), **inside}

    def pieces(self, location: str) -> list[Piece]:
        with unnamed(location):
            size = stat(location).size
        return even(size, max(1, int(self.chunk_mb * 1e6)))

    def load(self, location: str, piece: Piece) -> Table:
        """The events that begin in a range of bytes. One whose lines run on past its end is read to its end."""
        with opened(location) as stream:
            form, begin = self._format(stream)
            found = cut(stream, piece, form, begin)
            try:
                columns = parse(found.data, form)
                if self.event and (piece.start > 0 or piece.stop < stream.seek(0, 2)):
                    _check_order(columns[self.event], found.before, found.data, form)
            except LineError as error:
                line = count_lines(stream, found.start) + error.line + 1
                raise DataError(f"line {line}: {error}") from error
        return self._table(columns, self._names() or form.names)

    def _format(self, stream: BinaryIO) -> tuple[Format, int]:
        """What the columns are, and where the first line behind a header begins."""
        place, line = first_line(stream)
        delimiter = next((sign for sign in (b";", b",") if sign in line.partition(b"#")[0]), b"")
        fields = split(line, delimiter)
        if not fields:
            raise DataError("no events in it")
        where, names = f"line {count_lines(stream, place) + 1}", self._names()
        if is_header(fields):
            place += len(line)
            header = tuple(field.strip(b"\"'").decode(errors="replace") for field in fields)
            names = header if not names or sorted(header) == sorted(names) else names
        if not names:
            raise DataError(f"{where} is not a header; name the columns with the reader's columns, or its layout")
        if len(fields) != len(names):
            raise DataError(f"{where}: {len(fields)} columns, expected {len(names)}: {' '.join(names)}")
        if len(set(names)) < len(names):
            raise DataError(f"{where}: two columns have the same name: {' '.join(names)}")
        if self.event and self.event not in names:
            told = nearest(self.event, names)
            raise DataError(f"no column '{self.event}' to tell events apart{told} (the reader's setting event)")
        counted = (self.event,) if self.event else ()
        return Format(names, self.event, (*counted, *self._whole()), delimiter), place

    def _names(self) -> tuple[str, ...]:
        return LAYOUTS[self.layout].columns if self.layout else self.columns

    def _units(self) -> dict[str, str]:
        return {**(LAYOUTS[self.layout].units if self.layout else {}), **self.units}

    def _whole(self) -> tuple[str, ...]:
        return LAYOUTS[self.layout].whole if self.layout else self.whole

    def _table(self, columns: Columns, names: tuple[str, ...]) -> Table:
        if not self.event:
            return declare({name: columns[name] for name in names}, self._units())
        numbers = columns[self.event]
        if (numbers[1:] < numbers[:-1]).any():
            order = np.argsort(numbers, kind="stable")
            columns = {name: column[order] for name, column in columns.items()}
            numbers = columns[self.event]
        begins = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
        share = Ragged(numbers, np.append(begins, len(numbers)))
        inside: dict[str, Any] = {name: share.share(columns[name]) for name in names if name != self.event}
        if self.layout == "bmn":  # the silicon stations come before the GEM ones, which count from 0 again
            inside["station"] = share.share(columns["station"] + 3 * (columns["det"] == 1))
        return declare({self.event: numbers[begins], **inside}, self._units())


def _check_order(numbers: NDArray[Any], before: float | None, data: bytes, form: Format) -> None:
    """In a file read in pieces an event cannot be put together from lines that lie apart."""
    last = numbers[:1] if before is None else np.array([before])
    fall = np.flatnonzero(numbers < np.concatenate([last, numbers])[: len(numbers)])
    if len(fall):
        row = int(fall[0])
        raise LineError(
            row_line(data, form, row),
            f"event {numbers[row]} comes after a higher number; sort the file by event, or set the reader's "
            "chunk_mb above the file's size to have it sorted in memory",
        )
