"""The contract of a database backend: what SQLite and PostgreSQL do differently.

Nothing outside this package compares the name of a database. Code asks `backend_of(connection)` instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa

READER_CONNECTIONS = 16
"""Connections that read. All are opened at the start and stay, so that handles do not grow with the load. SQLite would
keep files of connections that were closed meanwhile."""
Rows = Sequence[Sequence[Any]]


class Backend(ABC):
    """One kind of database."""

    def normalise(self, url: sa.URL) -> sa.URL:
        """Return the URL with the driver that clew uses."""
        return url

    @abstractmethod
    def claim(self, url: sa.URL) -> Any:
        """Reserve a database for this server.

        Returns:
            An object whose `close` releases the database.

        Raises:
            ConfigError: another server uses the database.
        """

    @abstractmethod
    def create_engine(self, url: sa.URL, *, writes: bool) -> sa.Engine:
        """Make an engine with one connection that writes, or with a pool of connections that only read."""

    @abstractmethod
    def begin(self, engine: sa.Engine, *, durable: bool) -> AbstractContextManager[sa.Connection]:
        """Open a transaction of the engine that writes. It is committed at the end of the block.

        Args:
            engine: The engine that writes.
            durable: The commit waits until the rows are on disk, where even a power failure leaves them. Otherwise the
                rows survive the end of this process (SIGKILL included), and are on disk a few seconds later.
        """

    def start_maintenance(self, url: sa.URL) -> Callable[[], None]:
        """Start what an open database needs in the background; return a function that ends it."""
        return lambda: None

    @abstractmethod
    def connection_lost(self, engine: sa.Engine, error: BaseException) -> bool:
        """Return whether `error` means that the database closed the connection, so that a new one may work."""

    @abstractmethod
    def insert_if_absent(self, table: sa.Table) -> Any:
        """Return a statement that inserts a row unless a unique column conflicts; it returns the new `id`."""

    @abstractmethod
    def pipelined(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Send all `insert` and `update` calls in the block together; errors may be raised as late as at its end."""

    @abstractmethod
    def insert(self, connection: sa.Connection, table: sa.Table, columns: Sequence[str], rows: Rows) -> None:
        """Insert rows in as few statements as possible.

        Args:
            columns: Names of the columns.
            rows: One sequence of values per row, in the order of `columns`.
        """

    @abstractmethod
    def insert_returning_ids(
        self, connection: sa.Connection, table: sa.Table, columns: Sequence[str], rows: Rows, *, key: tuple[str, ...]
    ) -> dict[tuple[Any, ...], int]:
        """Insert rows and return the `id` of each row by its values in the columns `key`."""

    @abstractmethod
    def update(self, connection: sa.Connection, table: sa.Table, columns: Sequence[str], rows: Rows) -> None:
        """Set the columns of existing rows. Each row is its `id`, followed by the values."""


def pool_size(*, writes: bool) -> dict[str, Any]:
    """Return the pool options of an engine: one connection to write, several to read."""
    if writes:
        return {"pool_size": 1, "max_overflow": 0}
    return {"pool_size": READER_CONNECTIONS, "max_overflow": 0, "pool_use_lifo": True}


def quoted(columns: Sequence[str]) -> str:
    """Return column names as an SQL list."""
    return ",".join(f'"{name}"' for name in columns)


def backend_of(connection: sa.Connection | sa.Engine) -> Backend:
    """Return the backend of a connection or an engine."""
    return backend_named(connection.dialect.name)


def backend_named(name: str) -> Backend:
    """Return a backend by the name that a database URL begins with.

    Raises:
        KeyError: clew does not support this database.
    """
    from clew.server.database.postgresql import PostgresqlBackend
    from clew.server.database.sqlite import SqliteBackend

    return {"sqlite": SqliteBackend, "postgresql": PostgresqlBackend}[name]()
