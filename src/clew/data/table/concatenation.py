"""Concatenation of tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clew.data.table.column import Column, describe_column
from clew.data.table.ragged import Offsets, Ragged, _trusted, offsets_of
from clew.data.table.table import Table
from clew.errors import DataError, list_names


def concat(tables: Sequence[Table]) -> Table:
    """Return one table of the events of several tables, one after the other.

    Args:
        tables: Tables with the same columns.

    Raises:
        DataError: there is no table, or columns, types, shapes or units differ.

    Example:
        >>> concat([Table({"n": [1, 2]}), Table({"n": [3]})]).fixed("n").tolist()
        [1, 2, 3]
    """
    if not tables:
        raise DataError("concat needs at least one table")
    first = tables[0]
    if len(tables) == 1:
        return first
    for table in tables[1:]:
        _check_alike(first, table)
    shared: dict[tuple[int, ...], Offsets] = {}
    columns: dict[str, Column] = {}
    for name, column in first.items():
        if isinstance(column, Ragged):
            parts = [table.ragged(name) for table in tables]
            key = tuple(id(part.offsets) for part in parts)
            if key not in shared:
                shared[key] = offsets_of(np.concatenate([part.lengths for part in parts]))
            columns[name] = _trusted(np.concatenate([part.values for part in parts]), shared[key])
        else:
            columns[name] = np.concatenate([table.fixed(name) for table in tables])
    return Table(columns, units=first.units, index_of=first.index_of)


def _check_alike(first: Table, other: Table) -> None:
    if list(first) != list(other):
        raise DataError(f"tables have different columns: {list_names(first)} and {list_names(other)}")
    for name, field in first.schema.items():
        other_field = other.schema[name]
        if (field.shape, field.ragged) != (other_field.shape, other_field.ragged):
            kinds = describe_column(first[name]), describe_column(other[name])
            raise DataError(f"column '{name}' is {kinds[0]} in one table, {kinds[1]} in another")
        if (field.unit, field.index_of) != (other_field.unit, other_field.index_of):
            raise DataError(f"column '{name}' is in [{field.unit}] in one table, in [{other_field.unit}] in another")
