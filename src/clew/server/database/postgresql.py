"""The PostgreSQL backend. Many rows are sent as one array per column, without waiting for the answer to each statement.

PostgreSQL parses long lists of values slowly; arrays are faster.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import postgresql

from clew.errors import ConfigError
from clew.server.database.backend import Backend, Rows, pool_size, quoted

_LOCK_NUMBER = 7265_2539
"""The advisory lock that a server holds while it uses a database."""
_RELEASE_SECONDS = 2.0
"""How long the lock of a server may last after it has closed its connection."""
_CHECK_AFTER_SECONDS = 1.0
"""A connection that was idle for longer is tested before use. Testing it each time would take as long as a write."""


class PostgresqlBackend(Backend):
    """A database on a PostgreSQL server, through psycopg."""

    def normalise(self, url: sa.URL) -> sa.URL:
        return url.set(drivername="postgresql+psycopg")

    def claim(self, url: sa.URL) -> Any:
        connection = sa.create_engine(url, poolclass=sa.NullPool).connect()
        end = time.monotonic() + _RELEASE_SECONDS
        while not connection.execute(sa.select(sa.func.pg_try_advisory_lock(_LOCK_NUMBER))).scalar():
            if time.monotonic() < end:
                time.sleep(0.1)
                continue
            connection.close()
            shown = url.render_as_string(hide_password=True)
            raise ConfigError(f"{shown}: another server uses this database; stop that one first")
        connection.commit()
        return connection

    def create_engine(self, url: sa.URL, *, writes: bool) -> sa.Engine:
        setting = "synchronous_commit=off" if writes else "default_transaction_read_only=on"
        options = {"options": f"-c {setting}"}
        engine = sa.create_engine(url, connect_args=options, hide_parameters=True, **pool_size(writes=writes))

        @event.listens_for(engine, "checkin")
        def note_time(_: Any, record: Any) -> None:
            record.info["since"] = time.monotonic()

        @event.listens_for(engine, "checkout")
        def check_idle_connection(connection: Any, record: Any, _: Any) -> None:
            idle = time.monotonic() - record.info.get("since", math.inf)
            if idle > _CHECK_AFTER_SECONDS and not _answers(engine, connection):
                raise sa.exc.InvalidatePoolError

        return engine

    @contextlib.contextmanager
    def begin(self, engine: sa.Engine, *, durable: bool) -> Iterator[sa.Connection]:
        with engine.begin() as connection:
            if durable:
                connection.exec_driver_sql("SET LOCAL synchronous_commit TO on")
            yield connection

    def connection_lost(self, engine: sa.Engine, error: BaseException) -> bool:
        return isinstance(getattr(error, "orig", error), engine.dialect.loaded_dbapi.OperationalError)

    def insert_if_absent(self, table: sa.Table) -> Any:
        return _insert_if_absent(table)

    @contextlib.contextmanager
    def pipelined(self, connection: sa.Connection) -> Iterator[None]:
        driver: Any = connection.connection.driver_connection
        with driver.pipeline():
            yield

    def insert(self, connection: sa.Connection, table: sa.Table, columns: Sequence[str], rows: Rows) -> None:
        _send(connection, _insert(table, tuple(columns)), _arrays(table, tuple(columns), rows))

    def insert_returning_ids(
        self, connection: sa.Connection, table: sa.Table, columns: Sequence[str], rows: Rows, *, key: tuple[str, ...]
    ) -> dict[tuple[Any, ...], int]:
        statement = f"{_insert(table, tuple(columns))} RETURNING id,{quoted(key)}"
        result = connection.exec_driver_sql(statement, _arrays(table, tuple(columns), rows))
        return {tuple(values): number for number, *values in result}

    def update(self, connection: sa.Connection, table: sa.Table, columns: Sequence[str], rows: Rows) -> None:
        with_id = ("id", *columns)
        _send(connection, _update(table, with_id), _arrays(table, with_id, rows))


def _answers(engine: sa.Engine, connection: Any) -> bool:
    try:
        return engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error:
        return False


def _send(connection: sa.Connection, statement: str, arrays: tuple[str, ...]) -> None:
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor:
        cursor.execute(statement, arrays)


def _arrays(table: sa.Table, columns: tuple[str, ...], rows: Rows) -> tuple[str, ...]:
    """One array literal per column. The driver would inspect the type of every value."""
    values = zip(*rows, strict=True)
    return tuple(
        f"{{{','.join(map(_formatter(table, name), column))}}}" for name, column in zip(columns, values, strict=True)
    )


@functools.cache
def _formatter(table: sa.Table, column: str) -> Callable[[Any], str]:
    return _number if table.c[column].type.python_type in (int, float) else _text


def _number(value: float | None) -> str:
    return "NULL" if value is None else repr(value)


def _text(value: str | None) -> str:
    return "NULL" if value is None else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _array_parameters(table: sa.Table, columns: tuple[str, ...]) -> str:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    return ",".join(f"%s::{table.c[name].type.compile(dialect)}[]" for name in columns)


@functools.cache
def _insert(table: sa.Table, columns: tuple[str, ...]) -> str:
    return f"INSERT INTO {table.name} ({quoted(columns)}) SELECT * FROM unnest({_array_parameters(table, columns)})"


@functools.cache
def _update(table: sa.Table, columns: tuple[str, ...]) -> str:
    assignments = ",".join(f'"{name}"=new_values."{name}"' for name in columns[1:])
    source = f"unnest({_array_parameters(table, columns)}) AS new_values({quoted(columns)})"
    return f"UPDATE {table.name} SET {assignments} FROM {source} WHERE {table.name}.id = new_values.id"


@functools.cache
def _insert_if_absent(table: sa.Table) -> Any:
    return postgresql.insert(table).on_conflict_do_nothing().returning(table.c.id)
