"""Comparison of tables."""

from __future__ import annotations

import numpy as np

from clew.data.table import Ragged, Table


def assert_same_table(left: Table, right: Table) -> None:
    """Fail unless two tables have equal columns, types, units, indices and values, and share offsets in the same way.

    Args:
        left: A table.
        right: The table to compare with.

    Raises:
        AssertionError: the tables differ.

    Example:
        >>> assert_same_table(Table({"x": [1, 2]}), Table({"x": [1, 2]}))
    """
    assert list(left) == list(right)
    assert left.schema == right.schema
    assert len(left) == len(right)
    assert columns_sharing_offsets(left) == columns_sharing_offsets(right)
    for name in left:
        one, other = left[name], right[name]
        if isinstance(one, Ragged) and isinstance(other, Ragged):
            np.testing.assert_array_equal(one.offsets, other.offsets, f"offsets of column '{name}'")
            np.testing.assert_array_equal(one.values, other.values, f"column '{name}'")
        else:
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other), f"column '{name}'")


def columns_sharing_offsets(table: Table) -> set[frozenset[str]]:
    """Return the sets of ragged columns that have the same offsets array.

    Example:
        >>> x = Ragged.from_lists([[1.0], [2.0, 3.0]])
        >>> columns_sharing_offsets(Table({"x": x, "y": x.share([4, 5, 6])})) == {frozenset({"x", "y"})}
        True
    """
    groups: dict[int, list[str]] = {}
    for name, column in table.items():
        if isinstance(column, Ragged):
            groups.setdefault(id(column.offsets), []).append(name)
    return {frozenset(names) for names in groups.values()}
