"""Tables: what they accept, which items belong together, pointers between items, and views."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.data.table import Field, Ragged, Table, concat
from clew.errors import DataError
from clew.testing import assert_same_table, columns_sharing_offsets

from . import MANY, families, tables, tables_and_windows, tables_with_items


def graph() -> Table:
    """Two events: three nodes with edges 0-1 and 1-2, then two nodes with edge 1-0."""
    nodes = Ragged([10.0, 11.0, 12.0, 20.0, 21.0], [0, 3, 5])
    edges = Ragged([[0, 1], [1, 2], [1, 0]], [0, 2, 3])
    columns = {"node": nodes, "charge": nodes.share([1, 2, 3, 4, 5]), "edge": edges, "true": edges.share([1, 0, 1])}
    return Table({**columns, "run": [7, 8]}, index_of={"edge": "node"})


def lists(table: Table, name: str) -> list[Any]:
    return [event.tolist() for event in table.ragged(name)]


def drawn_events(table: Table) -> st.SearchStrategy[list[int]]:
    numbers = st.integers(-len(table), max(len(table) - 1, 0))
    return st.lists(numbers, max_size=10 if len(table) else 0)


@pytest.mark.parametrize("column", [3.0, Ragged([1.0], [0, 1]), [1, 2, 3]])
def test_columns_that_do_not_cover_the_same_events_are_refused(column: Any) -> None:
    with pytest.raises(DataError, match=r"'b' is a single value|columns differ in length: a 2, b [13]"):
        Table({"a": [1, 2], "b": column})


def test_lists_of_different_lengths_are_refused_with_the_way_out() -> None:
    with pytest.raises(DataError, match=r"column 'hits'.*Ragged\.from_lists"):
        Table({"hits": [[1.0, 2.0], [3.0]]})


def test_an_unknown_column_suggests_the_nearest() -> None:
    with pytest.raises(DataError, match="no column 'chrge' in the table; did you mean 'charge'"):
        graph()["chrge"]
    with pytest.raises(DataError, match="no column 'nod'"):
        graph().drop("nod")


def test_get_gives_its_default_for_an_unknown_column() -> None:
    assert graph().get("chrge") is None
    assert graph().get("chrge", 5) == 5
    assert graph().get("run") is not None
    assert "run" in graph() and "chrge" not in graph()


def test_fixed_and_ragged_refuse_the_other_kind() -> None:
    with pytest.raises(DataError, match="column 'node' is ragged"):
        graph().fixed("node")
    with pytest.raises(DataError, match="column 'run' has one value per event"):
        graph().ragged("run")


def test_the_schema_has_type_shape_unit_and_pointer() -> None:
    table = graph().join({"p": np.zeros((2, 3), "f4")}, units={"p": "GeV"})
    assert table.schema["p"] == Field("<f4", (3,), unit="GeV")
    assert table.schema["edge"] == Field("<i8", (2,), ragged=True, index_of="node")
    assert repr(table.pick("p", "edge")) == "Table(2 events; p: float32[3], edge: ragged int64[2])"


def test_weights_are_ones_by_default_and_may_be_negative() -> None:
    assert graph().weights.tolist() == [1.0, 1.0]
    weighted = graph().join({"weight": np.array([-1, 2], dtype=np.int32)})
    assert weighted.weights.tolist() == [-1.0, 2.0]
    assert weighted.weights.dtype == np.float64
    with pytest.raises(DataError, match="column 'weight' is ragged"):
        _ = graph().join({"weight": graph().ragged("charge")}).weights


def test_nan_policy_error_names_column_and_event() -> None:
    fixed = Table({"pt": [1.0, np.nan, np.nan]})
    with pytest.raises(DataError, match="column 'pt' holds NaN or infinity, first in event 1"):
        fixed.check()
    ragged = Table({"n": [1, 2, 3], "x": Ragged([[1.0, 1.0], [1.0, np.inf]], [0, 1, 1, 2])})
    with pytest.raises(DataError, match="column 'x' holds NaN or infinity, first in event 2"):
        ragged.check("error")


def test_nan_policy_drop_removes_whole_events_and_allow_passes() -> None:
    x = Ragged([1.0, np.nan, 3.0, 4.0], [0, 1, 3, 3, 4])
    table = Table({"run": [0, 1, 2, 3], "pt": [1.0, 1.0, 1.0, -np.inf], "x": x, "y": x.share([1, 2, 3, 4])})
    clean = table.check("drop")
    assert clean.fixed("run").tolist() == [0, 2]
    assert lists(clean, "y") == [[1], []]
    assert columns_sharing_offsets(clean) == {frozenset({"x", "y"})}
    assert table.check("allow") is table


def test_a_finite_table_passes_every_policy_untouched() -> None:
    table = graph()
    assert table.check("error") is table
    assert table.check("drop") is table


@MANY
@given(tables(), st.data())
def test_columns_that_share_offsets_share_them_after_every_operation(table: Table, data: st.DataObject) -> None:
    before = columns_sharing_offsets(table)
    events = data.draw(drawn_events(table))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(table), max_size=len(table))), dtype=bool)
    results = [table.take(events), table.filter(mask), table.slice(1, -1), concat([table, table.slice(0, 2)])]
    results += [table.pick(*reversed(list(table))), table.join({"new": np.zeros(len(table))})]
    assert [columns_sharing_offsets(result) for result in results] == [before] * len(results)


@MANY
@given(tables_with_items(), st.data())
def test_select_leaves_the_items_sharing_one_offsets_array(table: Table, data: st.DataObject) -> None:
    count = len(table.ragged("c0").values)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=bool)
    members = table.items_with("c0")
    selected = table.select("c0", mask)
    assert len({id(selected.ragged(name).offsets) for name in members}) == 1
    assert all(selected[name] is table[name] for name in table if name not in members)


@MANY
@given(tables_and_windows())
def test_slices_are_views(cut: tuple[Table, int, int | None]) -> None:
    table, start, stop = cut
    for name, column in table.slice(start, stop).items():
        whole = table[name]
        part = column.values if isinstance(column, Ragged) else column
        source = whole.values if isinstance(whole, Ragged) else whole
        assert part.size == 0 or np.shares_memory(part, source)


@MANY
@given(tables(), st.lists(st.integers(0, 8), max_size=3))
def test_cutting_a_table_and_joining_the_pieces_changes_nothing(table: Table, cuts: list[int]) -> None:
    edges = sorted([0, *(min(cut, len(table)) for cut in cuts), len(table)])
    pieces = [table.slice(a, b) for a, b in itertools.pairwise(edges)]
    assert_same_table(concat(pieces), table)


@MANY
@given(families())
def test_concat_has_the_events_of_all_in_order(family: list[Table]) -> None:
    whole, start = concat(family), 0
    for table in family:
        assert_same_table(whole.slice(start, start + len(table)), table)
        start += len(table)
    assert len(whole) == start


@MANY
@given(tables())
def test_pick_drop_and_join_are_exact(table: Table) -> None:
    first, *rest = list(table)
    assert_same_table(table.pick(*rest), table.drop(first))
    assert_same_table(table.drop(first).join({first: table[first]}, units={"c0": "mm"}).pick(*table), table)
    assert list(table.pick(*rest)) == rest


@pytest.mark.parametrize(
    ("events", "complaint"),
    [
        ([0, 2], "event 2 is not in a table with 2 events"),
        ([-3, 0], "event -3 is not in a table with 2 events"),
        ([1.0], "take needs event numbers, got float64"),
        ([True, False], "got bool .*; filter takes a mask"),
        ([[0, 1]], "take needs .* got int64 \\(1, 2\\)"),
    ],
)
def test_take_refuses_what_names_no_event(events: Any, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        graph().take(events)


@pytest.mark.parametrize("mask", [[1, 0], [True], [[True, False]]])
def test_masks_of_the_wrong_type_or_length_are_refused(mask: Any) -> None:
    with pytest.raises(DataError, match="filter needs 2 booleans"):
        graph().filter(mask)
    with pytest.raises(DataError, match="select needs 5 booleans for 'node'"):
        graph().select("node", mask)


def test_concat_shares_offsets_only_where_all_tables_share_them() -> None:
    x = Ragged([1.0, 2.0, 3.0], [0, 1, 3])
    shared = Table({"x": x, "y": x.share(np.array([4.0, 5.0, 6.0]))})
    separate = Table({"x": Ragged([7.0], [0, 0, 1]), "y": Ragged([8.0, 9.0], [0, 2, 2])})
    joined = concat([shared, separate])
    assert [event.tolist() for event in joined.ragged("x")] == [[1.0], [2.0, 3.0], [], [7.0]]
    assert [event.tolist() for event in joined.ragged("y")] == [[4.0], [5.0, 6.0], [8.0, 9.0], []]
    twice = concat([shared, shared])
    assert twice.ragged("x").offsets is twice.ragged("y").offsets


def test_concat_refuses_tables_that_are_not_alike() -> None:
    with pytest.raises(DataError, match="at least one table"):
        concat([])
    with pytest.raises(DataError, match="different columns: a and b"):
        concat([Table({"a": [1]}), Table({"b": [1]})])
    with pytest.raises(DataError, match=r"'a' is int64 in one table, int64\[2\] in another"):
        concat([Table({"a": [1]}), Table({"a": [[1, 2]]})])
    with pytest.raises(DataError, match="'a' is int64 in one table, ragged int64 in another"):
        concat([Table({"a": [1]}), Table({"a": Ragged([1], [0, 1])})])


def test_select_keeps_all_events_and_renumbers_pointers() -> None:
    table = graph().select("edge", np.array([False, True, True]))
    assert lists(table, "true") == [[0], [1]]
    smaller = table.select("charge", np.array([False, True, True, True, True]))
    assert lists(smaller, "node") == [[11.0, 12.0], [20.0, 21.0]]
    assert lists(smaller, "edge") == [[[0, 1]], [[1, 0]]]
    assert len(smaller) == 2


def test_select_refuses_to_drop_an_item_that_is_pointed_at() -> None:
    with pytest.raises(DataError, match="'edge' points at items that select would remove; drop those first"):
        graph().select("node", np.array([False, True, True, True, True]))


def test_select_refuses_pointers_that_leave_their_event() -> None:
    nodes = Ragged([1.0, 2.0, 3.0], [0, 1, 3])
    for parent in ([-1, 0, 1], [0, 0, 2], [1, 0, 0]):
        table = Table({"node": nodes, "parent": nodes.share(parent)}, index_of={"parent": "node"})
        with pytest.raises(DataError, match="'parent' points outside its event"):
            table.select("node", np.array([True, True, True]))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "uint64"])
def test_pointers_within_the_same_items_are_cut_and_renumbered(dtype: str) -> None:
    nodes = Ragged([1.0, 2.0, 3.0, 4.0], [0, 1, 4])
    parent = nodes.share(np.array([0, 1, 2, 2], dtype=dtype))
    table = Table({"node": nodes, "parent": parent}, index_of={"parent": "node"})
    selected = table.select("node", np.array([True, False, True, True]))
    assert lists(selected, "parent") == [[0], [1, 1]]
    assert selected.ragged("parent").values.dtype == np.dtype(dtype)


def test_items_that_point_at_others_are_not_the_same_items_even_where_there_are_as_many() -> None:
    nodes, edges = Ragged([1.0, 2.0, 3.0], [0, 3]), Ragged([[0, 1], [1, 2], [0, 2]], [0, 3])
    table = Table({"node": nodes, "edge": edges, "true": edges.share([1, 0, 1])}, index_of={"edge": "node"})
    assert table.items_with("node") == ["node"]
    assert table.items_with("true") == ["edge", "true"]
    assert lists(table.select("edge", np.array([True, False, True])), "node") == [[1.0, 2.0, 3.0]]


def test_offsets_that_are_equal_by_chance_do_not_make_the_same_items() -> None:
    x = Ragged([1, 2], [0, 2])
    table = Table({"x": x, "y": x.share([3, 4]), "other": Ragged([5, 6], [0, 2])})
    assert table.items_with("x") == ["x", "y"]
    chosen = table.select("x", np.array([False, True]))
    assert [lists(chosen, name) for name in table] == [[[2]], [[4]], [[5, 6]]]


def test_take_and_concat_keep_pointers_local_to_their_event() -> None:
    table = graph()
    assert lists(table.take([1, 0, 1]), "edge") == [[[1, 0]], [[0, 1], [1, 2]], [[1, 0]]]
    both = concat([table.slice(1), table])
    assert lists(both, "edge") == [[[1, 0]], [[0, 1], [1, 2]], [[1, 0]]]
    assert both.index_of == table.take([1, 0]).index_of == {"edge": "node"}


def test_a_pointer_follows_its_items_when_the_column_it_names_goes() -> None:
    table = graph().drop("node")
    assert table.index_of == {"edge": "charge"}
    assert graph().pick("edge", "charge").index_of == {"edge": "charge"}
    with pytest.raises(DataError, match="points at items that select would remove"):
        table.select("charge", np.array([False, True, True, True, True]))


def test_a_pointer_is_plain_numbers_once_its_items_are_gone() -> None:
    assert graph().pick("edge", "run").index_of == {}


@pytest.mark.parametrize(
    ("index_of", "complaint"),
    [
        ({"edge": "nodes"}, "'edge' points at the items of 'nodes', which is not in the table"),
        ({"edge": "run"}, "column 'run' has one value per event"),
        ({"run": "node"}, "column 'run' has one value per event"),
        ({"node": "edge"}, "'node' points at 'edge' and must be integers"),
    ],
)
def test_invalid_pointers_are_refused(index_of: dict[str, str], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        Table(dict(graph()), index_of=index_of)


def test_join_keeps_the_unit_of_a_replaced_column_by_default() -> None:
    table = Table({"x": [1.0]}, units={"x": "mm"})
    assert table.join({"x": [2.0]}).units == {"x": "mm"}
    assert table.join({"x": [2.0]}, units={"x": "cm"}).units == {"x": "cm"}
    assert table["x"] is not table.join({"x": [2.0]})["x"]


def test_a_table_without_columns_has_no_events() -> None:
    assert len(Table({})) == 0
    assert len(graph().pick()) == 0
    assert len(concat([Table({}), Table({})])) == 0
