"""The contract of a writer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from clew.data.table import Field, Table
from clew.errors import DataError


class Writer(ABC):
    """Writes one file, a table at a time; memory holds one of them. All must have the columns of the first.

    The file is whole once `close` has returned, which leaving a `with` block does. It is written where it is told to
    be: who must not leave half a file behind gives a temporary name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._schema: dict[str, Field] | None = None

    def append(self, table: Table) -> None:
        """Write the next events.

        Raises:
            DataError: a column that this kind of file cannot hold, or that differs from table to table.
        """
        if self._schema is None:
            _check_numbers(table)
            self._schema = table.schema
            self._begin(table)
        _check_alike(self._schema, table)
        self._write(table)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Finish the file."""

    @abstractmethod
    def _begin(self, like: Table) -> None:
        """Open the file for tables with these columns."""

    @abstractmethod
    def _write(self, table: Table) -> None:
        """Write the next events, whose columns are known to fit."""


@contextmanager
def behind(writer: Writer) -> Iterator[Callable[[Table], None]]:
    """Give what appends to a writer in a thread, one table behind; the file is whole when the block ends.

    What goes wrong in the thread is raised by the next call, or at the end of the block.
    """
    with writer, ThreadPoolExecutor(1, thread_name_prefix="writer") as pool:
        under_way: list[Future[None]] = []

        def append(table: Table) -> None:
            for each in under_way:
                each.result()
            under_way[:] = [pool.submit(writer.append, table)]

        yield append
        for each in under_way:
            each.result()


def _check_numbers(table: Table) -> None:
    for name, field in table.schema.items():
        if field.dtype[1] not in "biuf":
            raise DataError(f"column '{name}' holds {field.dtype}; only numbers can be written")


def _check_alike(schema: dict[str, Field], table: Table) -> None:
    here = table.schema
    if list(here) != list(schema):
        raise DataError(f"columns differ from event to event: {', '.join(schema)}, later {', '.join(here)}")
    for name, field in schema.items():
        if here[name] != field:
            raise DataError(f"column '{name}' differs from event to event: {_told(field)}, later {_told(here[name])}")


def _told(field: Field) -> str:
    shape = "".join(f"[{size}]" for size in field.shape)
    return f"{'ragged ' if field.ragged else ''}{field.dtype[1:]}{shape} {field.unit}".strip()
