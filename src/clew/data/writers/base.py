"""The base class of writers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from clew.data.table import Field, Table
from clew.errors import DataError, list_names


class TableWriter(ABC):
    """Base class of writers. A writer writes one file, one table at a time, so that only one table is in memory.

    All tables must have the columns of the first one. The file is complete after `close`, which the end of a `with`
    block calls. Use a temporary path (`clew.core.files.atomic_path`) if an incomplete file must never be visible.

    Args:
        path: The file to write.

    Example:
        >>> import pathlib, tempfile
        >>> from clew.data.writers import find
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "scores.h5"
        >>> with find(path)(path) as writer:
        ...     writer.append(Table({"score": [0.1, 0.9]}))
        ...     writer.append(Table({"score": [0.5]}))
        >>> Table.load(path).fixed("score").tolist()
        [0.1, 0.9, 0.5]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._schema: dict[str, Field] | None = None

    def append(self, table: Table) -> None:
        """Write the next events.

        Raises:
            DataError: this file format cannot store a column, or a column differs from the one in the first table.
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
        """Open the file for tables with the columns of `like`."""

    @abstractmethod
    def _write(self, table: Table) -> None:
        """Write the next events. Their columns are already checked."""


@contextmanager
def write_in_background(writer: TableWriter) -> Iterator[Callable[[Table], None]]:
    """Return a function that appends tables to a writer in a background thread, one table behind the caller.

    The file is complete when the block ends. An error in the thread is raised by the next call, or at the end of the
    block.
    """
    with writer, ThreadPoolExecutor(1, thread_name_prefix="writer") as pool:
        pending: list[Future[None]] = []

        def append(table: Table) -> None:
            for future in pending:
                future.result()
            pending[:] = [pool.submit(writer.append, table)]

        yield append
        for future in pending:
            future.result()


def _check_numbers(table: Table) -> None:
    for name, field in table.schema.items():
        if field.dtype[1] not in "biuf":
            raise DataError(f"column '{name}' holds {field.dtype}; only numbers can be written")


def _check_alike(schema: dict[str, Field], table: Table) -> None:
    table_schema = table.schema
    if list(table_schema) != list(schema):
        raise DataError(f"columns differ from event to event: {list_names(schema)}, later {list_names(table_schema)}")
    for name, field in schema.items():
        if table_schema[name] != field:
            later = _describe(table_schema[name])
            raise DataError(f"column '{name}' differs from event to event: {_describe(field)}, later {later}")


def _describe(field: Field) -> str:
    shape = "".join(f"[{size}]" for size in field.shape)
    return f"{'ragged ' if field.ragged else ''}{field.dtype[1:]}{shape} {field.unit}".strip()
