"""The SQLite backend. Many rows are written with one long list of values per statement.

One statement per row would pass Python's global lock between threads once per row. On a busy server this takes longer
than writing the rows.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import sqlite

from clew.core.file_lock import hold_lock
from clew.errors import ConfigError
from clew.server.database.backend import Backend, Rows, pool_size, quoted
from clew.server.database.wal_checkpoint import WalCheckpointer

_PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=10000", "cache_size=-65536")
_MAX_PARAMETERS = 6000
"""Parameters in one statement. SQLite accepts more."""


class SqliteBackend(Backend):
    """A database in one file."""

    def claim(self, url: sa.URL) -> Any:
        path = Path(str(url.database))
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = contextlib.ExitStack()
        try:
            lock.enter_context(hold_lock(path.with_name(f"{path.name}.lock"), timeout=0))
        except BlockingIOError:
            raise ConfigError(f"{path}: another server uses this database; stop that one first") from None
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        return lock

    def create_engine(self, url: sa.URL, *, writes: bool) -> sa.Engine:
        engine = sa.create_engine(
            url,
            poolclass=sa.QueuePool,
            connect_args={"check_same_thread": False},
            hide_parameters=True,
            **pool_size(writes=writes),
        )

        @event.listens_for(engine, "connect")
        def configure(connection: Any, _: Any) -> None:
            connection.isolation_level = None  # the driver would start transactions late, and only for some statements
            for pragma in (*_PRAGMAS, "wal_autocheckpoint=0" if writes else "query_only=ON"):
                connection.execute(f"PRAGMA {pragma}")

        @event.listens_for(engine, "begin")
        def begin(connection: sa.Connection) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

        return engine

    @contextlib.contextmanager
    def begin(self, engine: sa.Engine, *, durable: bool) -> Iterator[sa.Connection]:
        with engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            if durable:
                driver.execute("PRAGMA synchronous=FULL")
            try:
                with connection.begin():
                    yield connection
            finally:
                if durable:
                    driver.execute("PRAGMA synchronous=NORMAL")

    def start_maintenance(self, url: sa.URL) -> Callable[[], None]:
        checkpointer = WalCheckpointer(Path(str(url.database)))
        checkpointer.start()
        return checkpointer.stop

    def connection_lost(self, engine: sa.Engine, error: BaseException) -> bool:
        return False  # a file does not close connections

    def insert_if_absent(self, table: sa.Table) -> Any:
        return _insert_if_absent(table)

    @contextlib.contextmanager
    def pipelined(self, connection: sa.Connection) -> Iterator[None]:
        yield

    def insert(self, connection: sa.Connection, table: sa.Table, columns: Sequence[str], rows: Rows) -> None:
        for part in _parts(rows, len(columns)):
            statement = _insert(table.name, tuple(columns), len(part))
            connection.exec_driver_sql(statement, _flat(part))

    def insert_returning_ids(
        self, connection: sa.Connection, table: sa.Table, columns: Sequence[str], rows: Rows, *, key: tuple[str, ...]
    ) -> dict[tuple[Any, ...], int]:
        ids: dict[tuple[Any, ...], int] = {}
        for part in _parts(rows, len(columns)):
            statement = f"{_insert(table.name, tuple(columns), len(part))} RETURNING id,{quoted(key)}"
            for number, *values in connection.exec_driver_sql(statement, _flat(part)):
                ids[tuple(values)] = number
        return ids

    def update(self, connection: sa.Connection, table: sa.Table, columns: Sequence[str], rows: Rows) -> None:
        for part in _parts(rows, len(columns) + 1):
            statement = _update(table.name, tuple(columns), len(part))
            connection.exec_driver_sql(statement, _flat(part))


def _parts(rows: Rows, columns: int) -> list[Rows]:
    size = _MAX_PARAMETERS // columns
    return [rows[begin : begin + size] for begin in range(0, len(rows), size)]


def _flat(rows: Rows) -> tuple[Any, ...]:
    return tuple(value for row in rows for value in row)


def _placeholders(columns: int, rows: int) -> str:
    return ",".join([f"({','.join('?' * columns)})"] * rows)


@functools.lru_cache(2000)
def _insert(table: str, columns: tuple[str, ...], rows: int) -> str:
    return f"INSERT INTO {table} ({quoted(columns)}) VALUES {_placeholders(len(columns), rows)}"


@functools.lru_cache(2000)
def _update(table: str, columns: tuple[str, ...], rows: int) -> str:
    assignments = ",".join(f'"{name}"=new_values.column{index}' for index, name in enumerate(columns, start=2))
    values = _placeholders(len(columns) + 1, rows)
    source = f"(VALUES {values}) AS new_values"
    return f"UPDATE {table} SET {assignments} FROM {source} WHERE {table}.id = new_values.column1"


@functools.cache
def _insert_if_absent(table: sa.Table) -> Any:
    return sqlite.insert(table).on_conflict_do_nothing().returning(table.c.id)
