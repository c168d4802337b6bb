"""Many rows in one statement, each database in its own fastest way.

A statement a row would hand Python's lock to and fro at each: in a busy server waiting for the lock takes longer than
the rows. PostgreSQL parses long lists of values slowly; it gets rows by COPY, and arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

_PARAMETERS = 6000
"""In one statement: SQLite takes more."""
Rows = Sequence[Sequence[Any]]


def insert(connection: sa.Connection, table: sa.Table, names: Sequence[str], rows: Rows) -> None:
    """Add rows, given as values of the columns `names`."""
    if connection.dialect.name == "postgresql":
        driver: Any = connection.connection
        with driver.cursor() as cursor, cursor.copy(f"COPY {table.name} ({_named(names)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
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
        told = tuple(list(each) for each in zip(*rows, strict=True))
        text = _insert_arrays(table.name, tuple(names), _types(connection, table, names))
        parts = [(text, told)]
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
        text = _from_arrays(table.name, columns, _types(connection, table, columns))
        connection.exec_driver_sql(text, tuple(list(each) for each in zip(*rows, strict=True)))
        return
    for part in _parts(rows, len(names) + 1):
        text = _from_values(table.name, tuple(names), len(part))
        connection.exec_driver_sql(text, tuple(value for row in part for value in row))


def _parts(rows: Rows, columns: int) -> list[Rows]:
    most = _PARAMETERS // columns
    return [rows[begin : begin + most] for begin in range(0, len(rows), most)]


def _types(connection: sa.Connection, table: sa.Table, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(table.c[name].type.compile(connection.dialect)) for name in names)


def _values(columns: int, rows: int) -> str:
    return ",".join([f"({','.join('?' * columns)})"] * rows)


def _named(names: Sequence[str]) -> str:
    return ",".join(f'"{name}"' for name in names)


@functools.lru_cache(2000)
def _insert(table: str, names: tuple[str, ...], rows: int) -> str:
    return f"INSERT INTO {table} ({_named(names)}) VALUES {_values(len(names), rows)}"


@functools.cache
def _insert_arrays(table: str, names: tuple[str, ...], types: tuple[str, ...]) -> str:
    return f"INSERT INTO {table} ({_named(names)}) SELECT * FROM unnest({_arrays(types)})"


def _arrays(types: tuple[str, ...]) -> str:
    return ",".join(f"%s::{kind}[]" for kind in types)


@functools.lru_cache(2000)
def _from_values(table: str, names: tuple[str, ...], rows: int) -> str:
    sets = ",".join(f'"{name}"=fresh.column{place}' for place, name in enumerate(names, start=2))
    values = _values(len(names) + 1, rows)
    return f"UPDATE {table} SET {sets} FROM (VALUES {values}) AS fresh WHERE {table}.id = fresh.column1"


@functools.cache
def _from_arrays(table: str, names: tuple[str, ...], types: tuple[str, ...]) -> str:
    sets = ",".join(f'"{name}"=fresh."{name}"' for name in names[1:])
    return (
        f"UPDATE {table} SET {sets} FROM unnest({_arrays(types)}) AS fresh({_named(names)}) WHERE {table}.id = fresh.id"
    )
