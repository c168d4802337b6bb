"""Tables against awkward arrays: the same operations on both."""

from __future__ import annotations

from typing import Any

import awkward as ak
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.data.table import Ragged, Table, concat
from clew.errors import DataError
from clew.testing import assert_same_table, columns_sharing_offsets

from . import MANY, families, tables, tables_and_windows, tables_with_items


def awkward_twin(table: Table) -> Any:
    """The same events as an awkward array, made without the conversion of clew."""
    fields = {}
    for name, column in table.items():
        if isinstance(column, Ragged):
            fields[name] = ak.unflatten(ak.from_numpy(column.values), column.lengths)
        else:
            fields[name] = ak.from_numpy(column)
    return ak.zip(fields, depth_limit=1)


def assert_equal(table: Table, array: Any) -> None:
    assert len(table) == len(array)
    assert list(table) == ak.fields(array)
    for name, column in table.items():
        values = column.values if isinstance(column, Ragged) else column
        rows = column if isinstance(column, Ragged) else values
        assert [row.tolist() for row in rows] == ak.to_list(array[name])
        flat = ak.flatten(array[name]) if isinstance(column, Ragged) else array[name]
        assert ak.to_numpy(flat).dtype == values.dtype


def booleans(data: st.DataObject, count: int) -> Any:
    return np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=bool)


@MANY
@given(tables(), st.data())
def test_take_agrees_for_any_order_repeats_and_negative_numbers(table: Table, data: st.DataObject) -> None:
    numbers = st.integers(-len(table), max(len(table) - 1, 0))
    events = np.array(data.draw(st.lists(numbers, max_size=10 if len(table) else 0)), dtype=np.int64)
    assert_equal(table.take(events), awkward_twin(table)[events])
    assert_equal(table.take(events.tolist()), awkward_twin(table)[events])


@MANY
@given(tables(), st.data())
def test_filter_agrees(table: Table, data: st.DataObject) -> None:
    mask = booleans(data, len(table))
    assert_equal(table.filter(mask), awkward_twin(table)[mask])


@MANY
@given(tables_and_windows())
def test_slice_agrees(cut: tuple[Table, int, int | None]) -> None:
    table, start, stop = cut
    events = np.arange(len(table))[start:stop]  # awkward itself fails on records cut at 1:0
    assert_equal(table.slice(start, stop), awkward_twin(table)[events])


@MANY
@given(families())
def test_concat_agrees(family: list[Table]) -> None:
    assert_equal(concat(family), ak.concatenate([awkward_twin(table) for table in family]))


@MANY
@given(tables_with_items(), st.data())
def test_select_agrees(table: Table, data: st.DataObject) -> None:
    like = table.ragged("c0")
    mask, array = booleans(data, len(like.values)), awkward_twin(table)
    per_event = ak.unflatten(ak.from_numpy(mask), like.lengths)
    for name, column in table.items():
        if isinstance(column, Ragged) and column.offsets is like.offsets:
            array = ak.with_field(array, array[name][per_event], name)
    assert_equal(table.select("c0", mask).pick(*ak.fields(array)), array)


@MANY
@given(tables())
def test_pick_and_join_agree(table: Table) -> None:
    array, names = awkward_twin(table), list(reversed(list(table)))
    assert_equal(table.pick(*names), array[names])
    number = np.arange(len(table))
    assert_equal(table.join({"new": number}), ak.with_field(array, number, "new"))


@MANY
@given(tables())
def test_to_awkward_gives_the_same_type_and_values(table: Table) -> None:
    array = table.to_awkward()
    assert array.type == awkward_twin(table).type
    assert_equal(table, array)


@MANY
@given(tables())
def test_a_table_comes_back_from_awkward_unchanged(table: Table) -> None:
    for array in (table.to_awkward(), awkward_twin(table)):
        back = Table.from_awkward(array)
        assert_equal(back, awkward_twin(table))
        assert all(
            any(group <= wider for wider in columns_sharing_offsets(back)) for group in columns_sharing_offsets(table)
        )


@MANY
@given(tables(), st.data())
def test_an_awkward_array_may_be_cut_before_it_becomes_a_table(table: Table, data: st.DataObject) -> None:
    mask, array = booleans(data, len(table)), awkward_twin(table)
    assert_equal(Table.from_awkward(array[mask]), awkward_twin(table.filter(mask)))
    assert_equal(Table.from_awkward(array[::-1]), awkward_twin(table.take(np.arange(len(table))[::-1])))
    assert_equal(Table.from_awkward(array[1:]), awkward_twin(table.slice(1)))


def test_to_awkward_shares_the_values() -> None:
    values = np.arange(3.0)
    array = Table({"x": Ragged(values, [0, 1, 3])}).to_awkward()
    assert np.shares_memory(values, ak.to_numpy(array["x"].layout.content))


def test_a_table_without_columns_is_an_array_without_fields() -> None:
    array = Table({}).to_awkward()
    assert (len(array), ak.fields(array)) == (0, [])


@pytest.mark.parametrize(
    "field",
    [
        ["a", "bc"],
        [["a"], ["bc"]],
        [{"u": {"v": 1}}, {"u": {"v": 2}}],
        [[{"u": [1]}], []],
        [1, None],
        [[1], None],
        [[1, None], [2]],
        [1, [2]],
        [[[1, 2], [3]], []],
        [[[1, 2], [3, 4]], [[5, 6]]],
    ],
)
def test_fields_that_are_no_columns_are_refused_by_name(field: list[Any]) -> None:
    with pytest.raises(DataError, match=r"field 'bad(_u)?' of type .* is not a table column"):
        Table.from_awkward(ak.Array({"good": [1, 2], "bad": field}))


def test_an_array_without_fields_is_refused() -> None:
    with pytest.raises(DataError, match="named fields"):
        Table.from_awkward(ak.Array([1, 2]))


def test_regular_and_option_types_without_gaps_become_plain_columns() -> None:
    vector = ak.to_regular(ak.Array([[1, 2], [3, 4]]))
    pairs = ak.to_regular(ak.Array([[[1, 2]], []]), axis=2)
    full = ak.Array([1, None, 3])[[0, 2]]
    table = Table.from_awkward(ak.zip({"v": vector, "p": pairs, "full": full}, depth_limit=1))
    expected: dict[str, Any] = {"v": [[1, 2], [3, 4]], "p": Ragged([[1, 2]], [0, 1, 1]), "full": [1, 3]}
    assert_same_table(table, Table(expected))
