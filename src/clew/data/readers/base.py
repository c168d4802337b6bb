"""The contract of a reader, and what readers share."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, ClassVar, NamedTuple, Self, overload

from numpy.typing import NDArray

from clew.core.config import Section
from clew.data.table import Column, Field, Table
from clew.errors import DataError, nearest
from clew.storage import Stat, mask_secrets, open_binary, split_inside, stat


class Piece(NamedTuple):
    """A part of a file: bytes or entries, as the reader counts them."""

    start: int
    stop: int


class Reader(Section):
    """Reads one kind of file. Its settings are its fields; it holds nothing else, so it travels between processes.

    All tables of a file have the same columns, dtypes, units and shared offsets, whatever the events of a piece are:
    which columns describe the same items is decided by how the file is built, never by lengths that happen to agree
    in a piece.
    """

    endings: ClassVar[tuple[str, ...]] = ()
    """Endings of the files it takes, in lower case."""

    @classmethod
    def kind_name(cls) -> str:
        """What people call it."""
        return cls.__name__.lower()

    @classmethod
    def takes(cls, name: str) -> bool:
        """Whether files of this name, given in lower case and without folders, are for it."""
        return name.endswith(tuple(cls.endings))

    def companions(self, location: str) -> list[str]:
        """Other files that the events of this one come from; they count in its checksum."""
        return []

    def beside(self, location: str) -> list[str]:
        """Files that come with this one and are neither read nor inputs themselves."""
        return []

    def declared(self) -> dict[str, Field] | None:
        """The columns and units it always gives, or None where the file decides."""
        return None

    def lenient(self, names: Collection[str]) -> Self:
        """This reader, for files that may lack some of these columns."""
        return self

    @abstractmethod
    def pieces(self, location: str) -> list[Piece]:
        """How the file is cut; cheap, and the same every time for the same content and settings.

        Raises:
            DataError: the file cannot be read, or has no events.
        """

    @abstractmethod
    def load(self, location: str, piece: Piece) -> Table:
        """The events of one piece; there may be none.

        Raises:
            DataError: they cannot be read; one line that says where in the file, without the file's name.
        """


class Choosing(Reader):
    """A reader that can be told which columns to read."""

    columns: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    """Columns to read besides `columns`, where the file has them."""

    def lenient(self, names: Collection[str]) -> Self:
        optional = tuple(name for name in self.columns if name in names)
        kept = tuple(name for name in self.columns if name not in names)
        return self.model_copy(update={"columns": kept, "optional": (*self.optional, *optional)})

    def chosen(self, there: Iterable[str], what: str) -> list[str]:
        """What to read of a file with these columns; nothing stands for all of them.

        Raises:
            DataError: one that must be there is not.
        """
        known = list(there)
        check_known(self.columns, known, what)
        return [*self.columns, *(name for name in self.optional if name in known)]


@dataclass(frozen=True)
class Pieces(Sequence[Table]):
    """A file's events as a lazy sequence of tables; each is read when asked for, and not kept."""

    reader: Reader
    location: str

    _plans: dict[Stat, list[Piece]] = field(default_factory=dict, compare=False, repr=False)

    def lenient(self, names: Collection[str]) -> Pieces:
        """The same of a file that may lack some of these columns."""
        return Pieces(self.reader.lenient(names), self.location)

    @property
    def plan(self) -> list[Piece]:
        """Where the pieces lie; found once, and anew when the file has changed since."""
        try:
            now = stat(self.location)
        except DataError:  # not a file at all, or a missing one: the reader knows
            return self.reader.pieces(self.location)
        if now not in self._plans:
            self._plans.clear()
            self._plans[now] = self.reader.pieces(self.location)
        return self._plans[now]

    def __len__(self) -> int:
        return len(self.plan)

    @overload
    def __getitem__(self, index: int) -> Table: ...
    @overload
    def __getitem__(self, index: slice) -> list[Table]: ...
    def __getitem__(self, index: int | slice) -> Table | list[Table]:
        if isinstance(index, slice):
            return [self.reader.load(self.location, piece) for piece in self.plan[index]]
        return self.reader.load(self.location, self.plan[index])


def even(total: int, size: int) -> list[Piece]:
    """0 .. total cut into pieces of at most `size`.

    Raises:
        DataError: the total is 0.
    """
    if total <= 0:
        raise DataError("no events in it")
    return [Piece(first, min(first + size, total)) for first in range(0, total, size)]


@contextmanager
def unnamed(location: str) -> Iterator[None]:
    """Within, the storage's errors lose the file's name, which whoever calls a reader puts in front."""
    try:
        yield
    except DataError as error:
        raise DataError(str(error).removeprefix(f"{mask_secrets(split_inside(location)[0])}: ")) from error


@contextmanager
def opened(location: str) -> Iterator[BinaryIO]:
    """A file open for reading.

    Raises:
        DataError: it cannot be opened.
    """
    with ExitStack() as stack:
        with unnamed(location):
            stream = stack.enter_context(open_binary(location))
        yield stream


def numbers(values: NDArray[Any], name: str) -> NDArray[Any]:
    """An array of numbers in this machine's byte order.

    Raises:
        DataError: it holds anything else.
    """
    if values.dtype.kind not in "biufc":
        raise DataError(f"'{name}' holds {values.dtype}, not numbers; choose others with the reader's columns")
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def declare(columns: Mapping[str, Column], units: Mapping[str, str]) -> Table:
    """A table of these columns with these units.

    Raises:
        DataError: there is a unit for a column that is not there.
    """
    check_known(units, columns, "column")
    return Table(columns, units=units)


def check_known(asked: Iterable[str], there: Iterable[str], what: str) -> None:
    """That all names asked for exist.

    Raises:
        DataError: one does not; the message has the nearest that does.
    """
    known = list(there)
    for name in asked:
        if name not in known:
            raise DataError(f"no {what} '{name}'{nearest(name, known)}")


def column_names(paths: Sequence[str]) -> list[str]:
    """What columns are called: the last part of their paths or, where two share it, the whole with _ for /.

    Raises:
        DataError: two are still called the same.
    """
    last = [path.rpartition("/")[2] for path in paths]
    alike = Counter(last)
    names = [path.replace("/", "_") if alike[name] > 1 else name for path, name in zip(paths, last, strict=True)]
    twice, times = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        raise DataError(f"two columns would be called '{twice}'; choose one of them with the reader's columns")
    return names
