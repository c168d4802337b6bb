"""Many rows in one statement, each database in its own fastest way.

A statement a row would hand Python's lock to and fro at each: in a busy server waiting for the lock takes longer than
the rows. PostgreSQL parses long lists of values slowly; it gets arrays, a column each, and statements without waiting
for the answers to those before.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

_PARAMETERS = 6000
"""In one statement: SQLite takes more."""
Rows = Sequence[Sequence[Any]]


@contextlib.contextmanager
def together(connection: sa.Connection) -> Iterator[None]:
    """`insert` and `update` inside may fail as late as at its end; all of them take one journey to the database."""
    if connection.dialect.name != "postgresql":
        yield
        return
    driver: Any = connection.connection.driver_connection
    with driver.pipeline():
        yield


def insert(connection: sa.Connection, table: sa.Table, names: Sequence[str], rows: Rows) -> None:
    """Add rows, given as values of the columns `names`."""
    if connection.dialect.name == "postgresql":
        _send(connection, _insert_arrays(table, tuple(names)), _columns(table, tuple(names), rows))
        return
    for part in _parts(rows, len(names)):
        text = _insert(table.name, tuple(names), len(part))
        connection.exec_driver_sql(text, tuple(value for row in part for value in row))


def numbered(
    connection: sa.Connection, table: sa.Table, names: Sequence[str], rows: Rows, *, key: tuple[str, ...]
) -> dict[tuple[Any, ...], int]:
    """Add rows; the number (`id`) that each was given, by its values of `key`."""
    found: dict[tuple[Any, ...], int] = {}
    if connection.dialect.name == "postgresql":
        parts = [(_insert_arrays(table, tuple(names)), _columns(table, tuple(names), rows))]
    else:
        parts = [
            (_insert(table.name, tuple(names), len(part)), tuple(value for row in part for value in row))
            for part in _parts(rows, len(names))
        ]
    for text, told in parts:
        for number, *who in connection.exec_driver_sql(f"{text} RETURNING id,{_named(key)}", told):
            found[tuple(who)] = number
    return found


def update(connection: sa.Connection, table: sa.Table, names: Sequence[str], rows: Rows) -> None:
    """Set the columns `names` of rows, each given as its `id` and the values."""
    if connection.dialect.name == "postgresql":
        columns = ("id", *names)
        _send(connection, _from_arrays(table, columns), _columns(table, columns, rows))
        return
    for part in _parts(rows, len(names) + 1):
        text = _from_values(table.name, tuple(names), len(part))
        connection.exec_driver_sql(text, tuple(value for row in part for value in row))


def _parts(rows: Rows, columns: int) -> list[Rows]:
    most = _PARAMETERS // columns
    return [rows[begin : begin + most] for begin in range(0, len(rows), most)]


def _send(connection: sa.Connection, text: str, told: tuple[str, ...]) -> None:
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor:
        cursor.execute(text, told)


def _columns(table: sa.Table, names: tuple[str, ...], rows: Rows) -> tuple[str, ...]:
    """An array a column, as PostgreSQL writes them: the driver would look at the type of every value."""
    columns = zip(*rows, strict=True)
    return tuple(
        f"{{{','.join(map(_written(table, name), column))}}}" for name, column in zip(names, columns, strict=True)
    )


@functools.cache
def _written(table: sa.Table, name: str) -> Callable[[Any], str]:
    return _number if table.c[name].type.python_type in (int, float) else _text


def _number(value: float | None) -> str:
    return "NULL" if value is None else repr(value)


def _text(value: str | None) -> str:
    return "NULL" if value is None else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


@functools.cache
def _types(table: sa.Table, names: tuple[str, ...]) -> tuple[str, ...]:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    return tuple(str(table.c[name].type.compile(dialect)) for name in names)


def _values(columns: int, rows: int) -> str:
    return ",".join([f"({','.join('?' * columns)})"] * rows)


def _named(names: Sequence[str]) -> str:
    return ",".join(f'"{name}"' for name in names)


@functools.lru_cache(2000)
def _insert(table: str, names: tuple[str, ...], rows: int) -> str:
    return f"INSERT INTO {table} ({_named(names)}) VALUES {_values(len(names), rows)}"


@functools.cache
def _insert_arrays(table: sa.Table, names: tuple[str, ...]) -> str:
    return f"INSERT INTO {table.name} ({_named(names)}) SELECT * FROM unnest({_arrays(table, names)})"


def _arrays(table: sa.Table, names: tuple[str, ...]) -> str:
    return ",".join(f"%s::{kind}[]" for kind in _types(table, names))


@functools.lru_cache(2000)
def _from_values(table: str, names: tuple[str, ...], rows: int) -> str:
    sets = ",".join(f'"{name}"=fresh.column{place}' for place, name in enumerate(names, start=2))
    values = _values(len(names) + 1, rows)
    return f"UPDATE {table} SET {sets} FROM (VALUES {values}) AS fresh WHERE {table}.id = fresh.column1"


@functools.cache
def _from_arrays(table: sa.Table, names: tuple[str, ...]) -> str:
    sets = ",".join(f'"{name}"=fresh."{name}"' for name in names[1:])
    fresh = f"unnest({_arrays(table, names)}) AS fresh({_named(names)})"
    return f"UPDATE {table.name} SET {sets} FROM {fresh} WHERE {table.name}.id = fresh.id"
