"""Cut events out of a text file by bytes, and parse the numbers on their lines.

A line of data has a number in the event column. Blank lines, comments and wrong lines belong to the event before them,
so that every line of a file is in exactly one piece and every wrong line is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from clew.data.readers.base import FilePiece

Columns = dict[str, NDArray[Any]]
_BLOCK = 1 << 20
_BACK = 1 << 12
_MARK = b"\xef\xbb\xbf"
_NUMBER = re.compile(rb"[-+]?(\d+\.?\d*(e[-+]?\d+)?|\.\d+(e[-+]?\d+)?|nan|inf|infinity)", re.IGNORECASE)
_INTEGER = re.compile(rb"-?\d+")
_EXACT = 2**53
_BLANKS = bytes.maketrans(b"\t\r", b"  ")
_BLANK, _END = b" \n"


class LineError(Exception):
    """A line cannot be used. `line` counts from 0 within the lines of the piece."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class TextFormat:
    """The names of the columns of a file, in order, and the delimiter (empty for white space)."""

    names: tuple[str, ...]
    event: str
    """The column with the number of the event; empty if every line is an event."""
    integers: tuple[str, ...]
    """Columns of integers. They include the event column."""
    delimiter: bytes

    def fields(self, line: bytes) -> list[bytes]:
        """Return the fields of a line; none for a blank line or a comment."""
        return split(line, self.delimiter)

    def event_of(self, line: bytes) -> float | None:
        """Return the event number of a line; None if the line has none."""
        fields, column = self.fields(line), self.names.index(self.event)
        return _number(fields[column]) if len(fields) > column else None


@dataclass(frozen=True)
class EventLines:
    """Lines of complete events."""

    data: bytes
    start: int
    """Position of the first line in the file."""
    before: float | None
    """Number of the event before them."""


def split(line: bytes, delimiter: bytes) -> list[bytes]:
    """Return the fields of a line without its comment."""
    text = line.partition(b"#")[0].strip()
    if not delimiter or not text:
        return text.split()
    return [field.strip() for field in text.split(delimiter)]


def is_header(fields: Sequence[bytes]) -> bool:
    """Return whether a line contains names: none of its fields is a number."""
    return bool(fields) and not any(map(_NUMBER.fullmatch, fields))


def first_line(stream: BinaryIO) -> tuple[int, bytes]:
    """Return the first line that is neither blank nor a comment, with its position. The line is empty if there is
    none."""
    stream.seek(0)
    place = len(_MARK) if stream.read(len(_MARK)) == _MARK else 0
    stream.seek(place)
    for line in stream:
        if split(line, b""):
            return place, line
        place += len(line)
    return place, b""


def cut_events(stream: BinaryIO, piece: FilePiece, form: TextFormat, begin: int) -> EventLines:
    """Return the lines of the events that begin in a range of bytes. The last event is read to its end.

    Args:
        stream: The file.
        piece: The range of bytes.
        form: The columns of the file.
        begin: Position of the first line after a header.
    """
    place, before = begin, None
    if piece.start > begin:
        place = _line_at(stream, piece.start)
    if piece.start > begin and form.event:
        before = _event_before(stream, place, begin, form)
        place = _next_event(stream, place, piece.stop, before, form)
    stream.seek(place)
    data = stream.read(max(piece.stop - place, 0))
    if not data:
        return EventLines(b"", place, before)
    data += b"" if data.endswith(b"\n") else stream.readline()
    return EventLines(data + _rest_of_event(stream, data, form) if form.event else data, place, before)


def count_lines(stream: BinaryIO, stop: int) -> int:
    """Return the number of lines that end before a position."""
    stream.seek(0)
    count = 0
    while stop > 0 and (block := stream.read(min(_BLOCK, stop))):
        count += block.count(b"\n")
        stop -= len(block)
    return count


def parse(data: bytes, form: TextFormat) -> Columns:
    """Return the numbers of all lines by column, with int64 for columns of integers and float64 for others.

    Raises:
        LineError: a line has too few or too many fields, or a field is not a number, or not an integer.
    """
    from pyarrow import ArrowInvalid

    first = next((fields for _, fields in _rows(data, form)), None)
    if first is None:
        return {name: np.empty(0, np.int64 if name in form.integers else np.float64) for name in form.names}
    for text, delimiter, integers in _attempts(data, first, form):
        try:
            columns = _read(text, form.names, delimiter, integers)
            break
        except ArrowInvalid as error:
            failure = error
    else:
        _explain(data, form)
        raise LineError(0, f"this or a later line cannot be read ({failure})") from failure
    return {
        name: _as_integers(values, name, data, form) if name in form.integers else values
        for name, values in columns.items()
    }


def row_line(data: bytes, form: TextFormat, row: int) -> int:
    """Return the line, counted from 0, of a row of data."""
    return next(line for number, (line, _) in enumerate(_rows(data, form)) if number == row)


def _line_at(stream: BinaryIO, place: int) -> int:
    """Return the position of the first line that begins at or after a position."""
    stream.seek(place - 1)
    return place - 1 + len(stream.readline())


def _next_event(stream: BinaryIO, place: int, stop: int, before: float | None, form: TextFormat) -> int:
    """Return the position of the first event after `before`; `stop` or more if none begins before `stop`."""
    stream.seek(place)
    while place < stop:
        line = stream.readline()
        number = form.event_of(line) if line else None
        if not line or (number is not None and number != before):
            break
        place += len(line)
    return place


def _event_before(stream: BinaryIO, place: int, begin: int, form: TextFormat) -> float | None:
    """Return the event of the last line of data before a position at which a line begins."""
    back = _BACK
    while True:
        first = max(place - back, begin)
        stream.seek(first)
        lines = stream.read(place - first)
        complete_lines = lines if first == begin else lines.partition(b"\n")[2]
        number = _last_event(complete_lines, form)
        if number is not None or first == begin:
            return number
        back *= 4


def _last_event(lines: bytes, form: TextFormat) -> float | None:
    stop = len(lines)
    while stop > 0:
        start = lines.rfind(b"\n", 0, stop - 1) + 1
        number = form.event_of(lines[start:stop])
        if number is not None:
            return number
        stop = start
    return None


def _rest_of_event(stream: BinaryIO, lines: bytes, form: TextFormat) -> bytes:
    """Return the following lines that belong to the last event of `lines`."""
    last = _last_event(lines, form)
    rest = []
    for line in stream:
        number = form.event_of(line)
        if number is not None and number != last:
            break
        rest.append(line)
    return b"".join(rest)


def _number(field: bytes) -> float | None:
    if len(field) < 20 and _INTEGER.fullmatch(field):
        return int(field)
    return float(field) if _NUMBER.fullmatch(field) else None


def _rows(data: bytes, form: TextFormat) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the lines that are not empty: their number from 0, and their fields."""
    place = number = 0
    while place < len(data):
        stop = data.find(b"\n", place) + 1 or len(data)
        fields = form.fields(data[place:stop])
        if fields:
            yield number, fields
        place, number = stop, number + 1


def _attempts(data: bytes, first: Sequence[bytes], form: TextFormat) -> Iterator[tuple[bytes, bytes, tuple[str, ...]]]:
    """Yield what to parse, in this order: the lines unchanged; without layout and comments; with integers written as
    1.0."""
    looks = dict(zip(form.names, first, strict=False))
    integers = tuple(name for name in form.integers if _INTEGER.fullmatch(looks.get(name, b"")))
    if b"#" not in data and b"\r" not in data:
        delimiter = form.delimiter or _single_blank(data)
        if delimiter:
            yield data, delimiter, integers
    plain = _plain(data)
    yield plain, form.delimiter or b" ", integers
    yield plain, form.delimiter or b" ", ()


def _single_blank(data: bytes) -> bytes:
    """Return the one separator of the first line, if all lines seem to have the same layout."""
    line = data[: data.find(b"\n") + 1] or data
    if b" " not in line:
        return b"\t"
    return b"" if b"\t" in line or b"  " in line or line[0] == _BLANK else b" "


def _plain(data: bytes) -> bytes:
    """Return lines without comments, carriage returns and blanks at both ends. Several blanks become one."""
    if b"#" in data:
        data = re.sub(rb"#[^\n]*", b"", data)
    characters = np.frombuffer(data.translate(_BLANKS), dtype=np.uint8)
    blank = characters == _BLANK
    behind = np.concatenate([[True], (blank | (characters == _END))[:-1]])
    result = bytes(characters[~(blank & behind)])
    return result.replace(b" \n", b"\n").rstrip(b" ")


def _read(data: bytes, names: Sequence[str], delimiter: bytes, integers: Sequence[str]) -> Columns:
    from pyarrow import BufferReader, csv, float64, int64

    types = {name: int64() if name in integers else float64() for name in names}
    table = csv.read_csv(
        BufferReader(data),
        read_options=csv.ReadOptions(column_names=list(names), use_threads=False, block_size=len(data) + 1),
        parse_options=csv.ParseOptions(delimiter=delimiter.decode(), quote_char=False),
        convert_options=csv.ConvertOptions(column_types=types, null_values=[], strings_can_be_null=False),
    )
    return {name: _values(table[name], np.int64 if name in integers else np.float64) for name in names}


def _values(column: Any, dtype: Any) -> NDArray[Any]:
    """Return the numbers of a column without nulls. pyarrow's own function for it imports pandas, which takes long."""
    array = column.combine_chunks()
    return np.frombuffer(array.buffers()[1], dtype)[array.offset :][: len(array)] if len(array) else np.empty(0, dtype)


def _as_integers(values: NDArray[Any], name: str, data: bytes, form: TextFormat) -> NDArray[np.int64]:
    if values.dtype.kind == "i":
        return values
    is_integer = np.isfinite(values) & (values == np.round(values))
    bad = ~is_integer | (np.abs(values) > _EXACT)
    if bad.any():
        row = int(np.argmax(bad))
        rule = "it must be a whole number"
        if is_integer[row]:
            rule = "beyond 2^53 whole numbers must be below 2^63 and written without point and exponent"
        raise LineError(row_line(data, form, row), f"{name} is {values[row]:.17g}, {rule}")
    return values.astype(np.int64)


def _explain(data: bytes, form: TextFormat) -> None:
    """Raise an error for the first line that is wrong."""
    for line, fields in _rows(data, form):
        if len(fields) != len(form.names):
            names = " ".join(form.names)
            raise LineError(line, f"{len(fields)} columns, expected {len(form.names)}: {names}")
        for name, field in zip(form.names, fields, strict=True):
            if not _NUMBER.fullmatch(field):
                text = field[:40].decode(errors="replace")
                raise LineError(line, f"{name} is '{text}', not a number")
