"""The base class of readers, and the functions that readers share."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, ClassVar, NamedTuple, Self, overload

from numpy.typing import NDArray

from clew.core.config import Section
from clew.data.readers.items import ItemCounts, ItemGroups, match_groups, share_items
from clew.data.table import Column, Field, Table
from clew.errors import DataError, nearest
from clew.storage import Stat, mask_secrets, open_binary, split_inside, stat


class DataWarning(UserWarning):
    """A file lacks something, and something else is used instead. The message says both."""


class FilePiece(NamedTuple):
    """A part of a file: a range of bytes or of entries, as the reader counts them."""

    start: int
    stop: int


class Reader(Section):
    """Base class of readers. A reader reads one kind of file.

    The fields of the class are the settings of the reader. A reader has no other state, so it can be sent to other
    processes. All tables of one file have the same columns, dtypes, units and shared offsets. `load` shares offsets by
    the structure of the file only, never by lengths that agree in one piece. `FilePieces` applies the rule of
    `clew.data.readers.items` for columns whose items the structure does not tell.

    Example:
        >>> import numpy as np
        >>> class Countdown(Reader):
        ...     endings = (".countdown",)
        ...     size: int = 2
        ...
        ...     def pieces(self, location):
        ...         return [FilePiece(first, first + self.size) for first in range(0, 6, self.size)]
        ...
        ...     def load(self, location, piece):
        ...         return Table({"number": np.arange(piece.start, piece.stop)})
        >>> tables = FilePieces(Countdown(), "events.countdown")
        >>> len(tables), tables[1]["number"].tolist()
        (3, [2, 3])
    """

    endings: ClassVar[tuple[str, ...]] = ()
    """Endings of the file names that the reader accepts, in lower case."""
    compares_lengths: ClassVar[bool] = False
    """Whether columns of equal lengths are the same items, because files of this kind may not say it."""

    piece_unit: ClassVar[str] = "events"
    """What the numbers of a `FilePiece` count, for messages: `events` or `bytes`."""

    @classmethod
    def kind_name(cls) -> str:
        """Return the name of the reader for messages, such as `text`."""
        return cls.__name__.lower().removesuffix("reader")

    @classmethod
    def accepts(cls, name: str) -> bool:
        """Return whether the reader reads files with this name.

        Args:
            name: Name of a file in lower case, without folders.
        """
        return name.endswith(tuple(cls.endings))

    def companion_files(self, location: str) -> list[str]:
        """Return other files that contain parts of the events of this file. They count in its checksum."""
        return []

    def ignored_files(self, location: str) -> list[str]:
        """Return files that belong to this file, but are neither read nor inputs themselves."""
        return []

    def file_notes(self, location: str) -> list[str]:
        """Return what a user should know about a file: what it lacks, and what is used instead.

        Raises:
            DataError: the file cannot be read.
        """
        return []

    def declared_schema(self) -> dict[str, Field] | None:
        """Return the columns that every file has, or None if the file decides."""
        return None

    def with_optional(self, names: Collection[str]) -> Self:
        """Return this reader for files in which some columns may be missing.

        Args:
            names: Columns that are read only if the file has them.
        """
        return self

    @abstractmethod
    def pieces(self, location: str) -> list[FilePiece]:
        """Divide a file into pieces. This must be fast, and give the same pieces for the same content and settings.

        Raises:
            DataError: the file cannot be read, or has no events.
        """

    @abstractmethod
    def load(self, location: str, piece: FilePiece) -> Table:
        """Read the events of one piece. A piece may have no events.

        Raises:
            DataError: the events cannot be read. The message is one line; it says where in the file, but does not
                contain the name of the file, which the caller adds.
        """

    def item_counts(self, location: str, piece: FilePiece) -> ItemCounts:
        """Return the number of items per event of all ragged columns of a piece. Readers may do it without the values.

        Raises:
            DataError: the events cannot be read.
        """
        return ItemCounts.of_table(self.load(location, piece))

    def declared_items(self, names: Iterable[str]) -> ItemGroups:
        """Return the columns that the settings declare as the same items, of the columns with these names."""
        return ()


class ColumnReader(Reader):
    """Base class of readers of files with named columns, of which some can be chosen."""

    compares_lengths: ClassVar[bool] = True

    columns: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    """Columns to read in addition to `columns`, if the file has them."""
    items: tuple[tuple[str, ...], ...] = ()
    """Groups of columns, by name or by patterns such as `jet_*`: the columns of a group describe the same items, and
    different items than all other columns. Columns in no group are the same items if they have equal lengths in all
    events."""

    def declared_items(self, names: Iterable[str]) -> ItemGroups:
        return match_groups(self.items, names)

    def with_optional(self, names: Collection[str]) -> Self:
        optional = tuple(name for name in self.columns if name in names)
        required = tuple(name for name in self.columns if name not in names)
        return self.model_copy(update={"columns": required, "optional": (*self.optional, *optional)})

    def columns_to_read(self, file_columns: Iterable[str], what: str) -> list[str]:
        """Return the columns to read from a file.

        Args:
            file_columns: The columns that the file has.
            what: What the file calls a column, for the message of an error.

        Returns:
            The names in the order of the settings. An empty list means all columns.

        Raises:
            DataError: the file does not have one of `columns`.
        """
        names = list(file_columns)
        check_names(self.columns, names, what)
        return [*self.columns, *(name for name in self.optional if name in names)]


@dataclass(frozen=True)
class FilePieces(Sequence[Table]):
    """The events of a file as a lazy sequence of tables. A table is read when it is asked for, and is not stored.

    Args:
        reader: The reader with its settings.
        location: Path or URL of the file.
        items: The columns that are the same items, as all files of a dataset decide it. None lets this file decide.
    """

    reader: Reader
    location: str
    items: ItemGroups | None = None

    _plans: dict[Stat, list[FilePiece]] = field(default_factory=dict, compare=False, repr=False)
    _groups: dict[Stat, ItemGroups] = field(default_factory=dict, compare=False, repr=False)

    def with_optional(self, names: Collection[str]) -> FilePieces:
        """Return the same sequence for a file in which some of these columns may be missing."""
        return FilePieces(self.reader.with_optional(names), self.location, self.items)

    def with_items(self, items: ItemGroups | None) -> FilePieces:
        """Return the same sequence with the decision which columns are the same items."""
        return replace(self, items=items)

    def item_counts(self, index: int) -> ItemCounts:
        """Return the number of items per event of a piece, for the columns whose items are not declared."""
        counts = self.reader.item_counts(self.location, self.plan[index])
        return counts.without(name for group in self.reader.declared_items(counts.sets) for name in group)

    @property
    def plan(self) -> list[FilePiece]:
        """The pieces of the file. They are determined once, and again if the file has changed."""
        try:
            status = stat(self.location)
        except DataError:  # not a file, or a missing one: the reader reports it
            return self.reader.pieces(self.location)
        if status not in self._plans:
            self._plans.clear()
            self._plans[status] = self.reader.pieces(self.location)
        return self._plans[status]

    def __len__(self) -> int:
        return len(self.plan)

    @overload
    def __getitem__(self, index: int) -> Table: ...
    @overload
    def __getitem__(self, index: slice) -> list[Table]: ...
    def __getitem__(self, index: int | slice) -> Table | list[Table]:
        if isinstance(index, slice):
            return [self._load(piece) for piece in self.plan[index]]
        return self._load(self.plan[index])

    def _load(self, piece: FilePiece) -> Table:
        table = self.reader.load(self.location, piece)
        declared = self.reader.declared_items(table)
        return share_items(table, (*declared, *(self._file_groups(table, piece) if self.items is None else self.items)))

    def _file_groups(self, table: Table, piece: FilePiece) -> ItemGroups:
        """Return the columns of the same items that are not declared.

        The other pieces of the file are only read if this one has such columns.
        """
        if not self.reader.compares_lengths:
            return ()
        declared = {name for group in self.reader.declared_items(table) for name in group}
        counts = ItemCounts.of_table(table).without(declared)
        if not counts.groups:
            return ()
        status = stat(self.location)
        if status not in self._groups:
            self._groups.clear()
            self._groups[status] = self._compare_all(counts, piece)
        return self._groups[status]

    def _compare_all(self, counts: ItemCounts, loaded: FilePiece) -> ItemGroups:
        for index, piece in enumerate(self.plan):
            if piece != loaded:
                counts = ItemCounts.combine([counts, self.item_counts(index)])
            if not counts.groups:
                return ()
        return counts.groups


_MAX_PIECES = 1_000_000
"""Pieces of a file. A damaged file may state any number of events."""


def cut_evenly(total: int, size: int) -> list[FilePiece]:
    """Divide the range 0 to `total` into pieces of at most `size`.

    Raises:
        DataError: the total is 0, or a number that no file has.
    """
    if total <= 0:
        raise DataError("no events in it")
    if total > size * _MAX_PIECES:
        raise DataError(
            f"{total:,} events in pieces of {size:,}: the file is damaged, or needs larger pieces (`chunk`)"
        )
    return [FilePiece(first, min(first + size, total)) for first in range(0, total, size)]


@contextmanager
def without_file_name(location: str) -> Iterator[None]:
    """Remove the name of the file from the errors of the storage: the caller of a reader adds it."""
    try:
        yield
    except DataError as error:
        raise DataError(str(error).removeprefix(f"{mask_secrets(split_inside(location)[0])}: ")) from error


@contextmanager
def open_file(location: str) -> Iterator[BinaryIO]:
    """Open a file for reading.

    Raises:
        DataError: the file cannot be opened.
    """
    with ExitStack() as stack:
        with without_file_name(location):
            stream = stack.enter_context(open_binary(location))
        yield stream


def as_numbers(values: NDArray[Any], name: str) -> NDArray[Any]:
    """Return an array of numbers in the byte order of this machine.

    Args:
        values: The array.
        name: Name of its column, for the message of an error.

    Raises:
        DataError: the array does not hold numbers.
    """
    if values.dtype.kind not in "biufc":
        raise DataError(f"'{name}' holds {values.dtype}, not numbers; choose other columns with the reader's columns")
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def make_table(columns: Mapping[str, Column], units: Mapping[str, str]) -> Table:
    """Return a table of these columns with these units.

    Raises:
        DataError: a unit is set for a column that does not exist.
    """
    check_names(units, columns, "column")
    return Table(columns, units=units)


def check_names(names: Iterable[str], existing: Iterable[str], what: str) -> None:
    """Check that all names exist.

    Args:
        names: The names to check.
        existing: The names that exist.
        what: What is named, for the message of an error: `column`, `array`...

    Raises:
        DataError: a name does not exist. The message contains the nearest one that does.
    """
    known_names = list(existing)
    for name in names:
        if name not in known_names:
            raise DataError(f"no {what} '{name}'{nearest(name, known_names)}")


def column_names(paths: Sequence[str]) -> list[str]:
    """Return the names of columns from their paths in a file.

    A name is the last part of the path. If two paths have the same last part, it is the whole path with `_` for `/`.

    Raises:
        DataError: two columns would still have the same name.
    """
    last_parts = [path.rpartition("/")[2] for path in paths]
    counts = Counter(last_parts)
    names = [path.replace("/", "_") if counts[name] > 1 else name for path, name in zip(paths, last_parts, strict=True)]
    most_common, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise DataError(f"two columns would be called '{most_common}'; choose one of them with the reader's columns")
    return names
