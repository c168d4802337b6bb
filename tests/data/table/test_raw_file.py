"""Tables as plain bytes, for caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew import Ragged, Table
from clew.data.table import hdf5, raw_file
from clew.errors import DataError


def _table() -> Table:
    rng = np.random.default_rng(1)
    hit = Ragged.from_lengths(rng.normal(size=(7, 3)).astype(np.float16), [3, 0, 4])
    edge = Ragged.from_lengths(np.array([[0, 1], [2, 3]], dtype=np.int32), [1, 0, 1])
    columns: dict[str, Any] = {
        "number": np.arange(3, dtype=">i4"),
        "passed": np.array([True, False, True]),
        "image": rng.normal(size=(3, 2, 2))[:, ::-1],  # not contiguous
        "hit": hit,
        "layer": hit.share(np.arange(7, dtype=np.uint8)),
        "edge": edge,
        "nothing": Ragged.from_lengths(np.empty((0, 5)), [0, 0, 0]),
    }
    return Table(columns, units={"hit": "mm"}, index_of={"edge": "hit"})


def _again(table: Table) -> Table:
    image = raw_file.to_bytes(table, {"read": 5})
    result, facts = raw_file.from_bytes(np.frombuffer(image, dtype=np.uint8))
    assert facts == {"read": 5}
    return result


def test_a_table_comes_back_with_all_its_columns_units_and_references() -> None:
    table, again = _table(), _again(_table())
    assert (list(again), again.schema, hdf5.item_sets(again)) == (list(table), table.schema, hdf5.item_sets(table))
    for name, column in table.items():
        other = again[name]
        pairs = [(column, other)]
        if isinstance(column, Ragged) and isinstance(other, Ragged):
            pairs = [(column.values, other.values), (column.offsets, other.offsets)]
        for one, two in pairs:
            np.testing.assert_array_equal(one, two)


def test_a_table_without_events_and_one_without_columns() -> None:
    assert len(_again(_table().take([]))) == 0
    assert list(_again(Table({}))) == []


def test_the_bytes_depend_on_the_table_only() -> None:
    assert raw_file.to_bytes(_table(), {}) == raw_file.to_bytes(_again(_table()), {})


def test_texts_and_objects_are_refused() -> None:
    for values in (np.array(["a", "b"]), np.array([{}, {}], dtype=object)):
        with pytest.raises(DataError, match="column 'name' has the type"):
            raw_file.to_bytes(Table({"name": values}), {})


@pytest.mark.parametrize("size", [0, 7, 20, 300])
def test_a_part_of_the_bytes_is_no_table(size: int) -> None:
    image = np.frombuffer(raw_file.to_bytes(_table(), {}), dtype=np.uint8)
    with pytest.raises((ValueError, KeyError, TypeError)):
        raw_file.from_bytes(image[:size])
