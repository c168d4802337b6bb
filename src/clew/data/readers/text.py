"""The text reader: columns of numbers, with one item (a hit) per line and the lines of an event together, or with one
event per line.

Columns are separated by white space, commas or semicolons. `#` begins a comment. The names of the columns come from a
header line, from `columns`, or from a known `layout`. Arrow parses the numbers, in a few tens of microseconds per
event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting

from clew.data.readers.base import FilePiece, Reader, cut_evenly, make_table, open_file, without_file_name
from clew.data.readers.text_lines import (
    Columns,
    LineError,
    TextFormat,
    count_lines,
    cut_events,
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
class TextLayout:
    """The columns of a known file layout, in order, with units. `integers` are columns of integers."""

    columns: tuple[str, ...]
    units: dict[str, str]
    integers: tuple[str, ...]


EVENT = "event"
_MM = dict.fromkeys(("x", "y", "z"), "mm")
LAYOUTS: dict[str, TextLayout] = {
    "bes3": TextLayout(("event", "x", "y", "z", "station", "track"), _MM, ("station", "track")),
    "bmn": TextLayout(
        ("event", "x", "y", "z", "det", "station", "track", "px", "py", "pz", "vx", "vy", "vz"),
        {**dict.fromkeys(("x", "y", "z", "vx", "vy", "vz"), "cm"), **dict.fromkeys(("px", "py", "pz"), "GeV")},
        ("det", "station", "track"),
    ),
}


class TextReader(Reader):
    """Settings of the text reader.

    Numbers are float64; NaN is accepted. Integers may have 64 bits, or 53 bits if they are written as 1.0 or 1e3.
    """

    endings: ClassVar[tuple[str, ...]] = (".txt", ".csv", ".tsv", ".dat")
    piece_unit: ClassVar[str] = "bytes"

    layout: Literal["bes3", "bmn"] | None = None
    """A known layout of columns."""
    columns: tuple[str, ...] = ()
    """Names in the order of the file, if there is neither a layout nor a header. If a header has exactly the names of
    the
    layout or of `columns`, it sets their order."""
    event: str | None = None
    """The column with the number of the event, by default `event` if there is such a column. Consecutive lines with the
    same number are one event. In a file that fits into one piece the lines may have any order. If it is empty, or there
    is no column `event`, every line is an event, and no column is ragged."""
    integers: tuple[str, ...] = ("station", "track")
    """Columns of integers. For a layout they are known."""
    units: dict[str, str] = {}
    """Units of columns. They replace those of the layout."""
    chunk_mb: Annotated[float, Setting(gt=0)] = 4.0
    """Size of a piece, in MB."""

    def declared_schema(self) -> dict[str, Field] | None:
        names = self._names()
        if not names:
            return None
        units, integers, event = self._units(), self._integers(), self._event(names)
        inside = {
            name: Field("<i8" if name in integers else "<f8", ragged=bool(event), unit=units.get(name, ""))
            for name in names
            if name != event
        }
        if not event:
            return inside
        return {event: Field("<i8", unit=units.get(event, "")), **inside}

    def pieces(self, location: str) -> list[FilePiece]:
        with without_file_name(location):
            size = stat(location).size
        return cut_evenly(size, max(1, int(self.chunk_mb * 1e6)))

    def load(self, location: str, piece: FilePiece) -> Table:
        """Read the events that begin in a range of bytes. The last event is read to its end."""
        with open_file(location) as stream:
            form, begin = self._format(stream)
            lines = cut_events(stream, piece, form, begin)
            try:
                columns = parse(lines.data, form)
                if form.event and (piece.start > 0 or piece.stop < stream.seek(0, 2)):
                    _check_order(columns[form.event], lines.before, lines.data, form)
            except LineError as error:
                line = count_lines(stream, lines.start) + error.line + 1
                raise DataError(f"line {line}: {error}") from error
        return self._table(columns, self._names() or form.names, form.event)

    def _format(self, stream: BinaryIO) -> tuple[TextFormat, int]:
        """Return the columns of a file, and the position of the first line after a header."""
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
        event = self._event(names)
        if event and event not in names:
            hint = nearest(event, names)
            raise DataError(f"no column '{event}' with the number of the event{hint} (the reader's setting event)")
        counted = (event,) if event else ()
        return TextFormat(names, event, (*counted, *self._integers()), delimiter), place

    def _event(self, names: tuple[str, ...]) -> str:
        if self.event is None:
            return EVENT if EVENT in names else ""
        return self.event

    def _names(self) -> tuple[str, ...]:
        return LAYOUTS[self.layout].columns if self.layout else self.columns

    def _units(self) -> dict[str, str]:
        return {**(LAYOUTS[self.layout].units if self.layout else {}), **self.units}

    def _integers(self) -> tuple[str, ...]:
        return LAYOUTS[self.layout].integers if self.layout else self.integers

    def _table(self, columns: Columns, names: tuple[str, ...], event: str) -> Table:
        if not event:
            return make_table({name: columns[name] for name in names}, self._units())
        numbers = columns[event]
        if (numbers[1:] < numbers[:-1]).any():
            order = np.argsort(numbers, kind="stable")
            columns = {name: column[order] for name, column in columns.items()}
            numbers = columns[event]
        begins = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
        share = Ragged(numbers, np.append(begins, len(numbers)))
        inside: dict[str, Any] = {name: share.share(columns[name]) for name in names if name != event}
        if self.layout == "bmn":  # the silicon stations come before the GEM ones, which count from 0 again
            inside["station"] = share.share(columns["station"] + 3 * (columns["det"] == 1))
        return make_table({event: numbers[begins], **inside}, self._units())


def _check_order(numbers: NDArray[Any], before: float | None, data: bytes, form: TextFormat) -> None:
    """Check the order of events: in a file that is read in pieces, the lines of an event must be together."""
    last = numbers[:1] if before is None else np.array([before])
    fall = np.flatnonzero(numbers < np.concatenate([last, numbers])[: len(numbers)])
    if len(fall):
        row = int(fall[0])
        raise LineError(
            row_line(data, form, row),
            f"event {numbers[row]} comes after a higher number; sort the file by event, or set the reader's "
            "chunk_mb above the file's size to have it sorted in memory",
        )
