"""Cuts on events and items, and computed columns."""

from __future__ import annotations

from typing import Any

import awkward as ak
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from clew.core.config import Document, Section, to_data, validate
from clew.data.table import Ragged, Table
from clew.data.transforms import AnyTransform, Compute, SameItems, Select, SelectItems
from clew.errors import ConfigError, DataError

EVENTS = st.lists(st.tuples(st.floats(0, 50), st.lists(st.floats(0, 2), max_size=5)), max_size=8)


def table(events: list[Any]) -> Table:
    hit = Ragged.from_lengths([x for _, hits in events for x in hits], [len(hits) for _, hits in events])
    columns: dict[str, Any] = {
        "event": np.arange(len(events)) + 100,
        "pt": np.array([pt for pt, _ in events], dtype=np.float64),
        "hit_pt": hit,
        "number": hit.share(np.arange(len(hit.values))),
        "leading": _leading(hit),
    }
    return Table(columns, units={"pt": "GeV"}, index_of={"leading": "hit_pt"})


def _leading(hit: Ragged) -> Ragged:
    """In each event with hits, a pointer to the greatest."""
    places = [int(np.argmax(event)) for event in hit if len(event)]
    return Ragged.from_lengths(np.array(places, dtype=np.int64), (hit.lengths > 0) * 1)


SAMPLE = table([(10, [0.2, 1.5]), (30, []), (50, [0.9, 0.1, 0.7])])


@given(EVENTS, st.floats(0, 50))
def test_select_keeps_the_events_that_pass(events: list[Any], cut: float) -> None:
    selected = Select(where=f"pt > {cut} || len(hit_pt) == 2")(table(events))
    expected = [event for event in events if event[0] > cut or len(event[1]) == 2]
    assert selected.fixed("pt").tolist() == [pt for pt, _ in expected]
    assert [hits.tolist() for hits in selected.ragged("hit_pt")] == [hits for _, hits in expected]
    assert selected.items_with("hit_pt") == ["hit_pt", "number"]


@given(EVENTS.filter(bool), st.floats(0, 2))
def test_select_items_is_the_mask_of_awkward(events: list[Any], cut: float) -> None:
    before = table(events).drop("leading")
    selected = SelectItems(where=f"hit_pt > {cut} & pt < 40")(before)
    array = before.to_awkward()
    mask = (array.hit_pt > cut) & (array.pt < 40)
    assert len(selected) == len(before)
    assert selected.to_awkward().hit_pt.tolist() == array.hit_pt[mask].tolist()
    assert selected.to_awkward().number.tolist() == array.number[mask].tolist()
    assert ak.all(selected.to_awkward().pt == array.pt)


def test_pointers_at_items_that_stay_follow_them() -> None:
    selected = SelectItems(where="hit_pt > 0.5")(SAMPLE)
    assert [event.tolist() for event in selected.ragged("number")] == [[1], [], [2, 4]]
    assert [event.tolist() for event in selected.ragged("leading")] == [[0], [], [0]]


def test_pointers_at_items_that_would_go_are_an_error() -> None:
    with pytest.raises(DataError, match="'leading' points at items that select would remove"):
        SelectItems(where="hit_pt < 1")(SAMPLE)


@given(EVENTS)
def test_compute_adds_a_column(events: list[Any]) -> None:
    computed = Compute(column="share", expression="hit_pt / (1 + pt)", unit="1/GeV")(table(events))
    before = table(events)
    expected = before.ragged("hit_pt").values / (1 + np.repeat(before.fixed("pt"), before.ragged("hit_pt").lengths))
    np.testing.assert_array_equal(computed.ragged("share").values, expected)
    assert computed.items_with("share") == ["hit_pt", "number", "share"]
    assert computed.units == {"pt": "GeV", "share": "1/GeV"}


def test_compute_makes_event_weights_and_replaces_columns() -> None:
    assert Compute(column="weight", expression="pt > 20")(SAMPLE).weights.tolist() == [0, 1, 1]
    replaced = Compute(column="pt", expression="pt * 1000", unit="MeV")(SAMPLE)
    assert (replaced.fixed("pt").tolist(), replaced.units["pt"]) == ([10_000, 30_000, 50_000], "MeV")
    assert Compute(column="one", expression="1")(SAMPLE).fixed("one").tolist() == [1, 1, 1]


def test_a_cut_on_items_does_not_select_events() -> None:
    with pytest.raises(ConfigError, match=r"select 'hit_pt > 1' has one value per item.*any\(\), all\(\) or sum"):
        Select(where="hit_pt > 1")(SAMPLE)
    with pytest.raises(ConfigError, match=r"select_items 'pt > 1' has one value per event.*use select"):
        SelectItems(where="pt > 1")(SAMPLE)


def test_weights_of_items_are_refused() -> None:
    with pytest.raises(ConfigError, match="compute weight = 'hit_pt': event weights need one value per event"):
        Compute(column="weight", expression="hit_pt")(SAMPLE)


def test_a_computed_nan_is_named_with_its_event() -> None:
    with pytest.raises(DataError, match=r"column 'x' holds NaN or infinity, first in event 101; guard it with where"):
        Compute(column="x", expression="max(hit_pt)")(SAMPLE)


def test_an_unknown_column_is_reported_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no column 'hit_p'; did you mean 'hit_pt'"):
        Select(where="any(hit_p > 1)")(SAMPLE)


def test_a_wrong_expression_is_reported_with_its_setting() -> None:
    class Settings(Section):
        transforms: tuple[AnyTransform, ...]

    with pytest.raises(ValidationError):
        Select(where="pt >")
    with pytest.raises(ConfigError, match=r"transforms\.0\.where: 'pt >': cannot be understood") as caught:
        validate(Settings, Document({"transforms": [{"kind": "select", "where": "pt >"}]}))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "transform", [Select(where="pt > 20"), SelectItems(where="hit_pt > 0.5"), Compute(column="a", expression="pt * 2")]
)
def test_they_come_back_from_settings_and_take_no_events(transform: Any) -> None:
    assert TypeAdapter(AnyTransform).validate_python(to_data(transform)) == transform
    assert len(transform(SAMPLE.slice(0, 0))) == 0


def test_columns_can_be_declared_to_describe_the_same_items() -> None:
    a, b = Ragged.from_lists([[1, 2], [3]]), Ragged.from_lists([[4, 5], [6]])
    events = Table({"part_a": a, "part_b": b, "other": Ragged.from_lists([[1, 2], [3]]), "part_n": np.arange(2)})
    table = SameItems(columns=("part_*",))(events)
    assert table.items_with("part_a") == ["part_a", "part_b"]
    assert lists_of(SelectItems(where="part_a > 1 && part_b > 5")(table)) == [[], [6]]


def lists_of(events: Table) -> list[list[int]]:
    return [each.tolist() for each in events.ragged("part_b")]


def test_columns_of_other_items_are_reported() -> None:
    events = Table({"a": Ragged.from_lists([[1], [2]]), "b": Ragged.from_lists([[1], [2, 3]])})
    with pytest.raises(DataError, match="'a' and 'b' do not describe the same items: event 1 has 1 and 2 items"):
        SameItems(columns=("a", "b"))(events)


def test_computed_event_weights_are_numbers_and_other_columns_keep_their_type() -> None:
    weight, flag = (Compute(column=name, expression="pt > 20") for name in ("weight", "flag"))
    assert weight(SAMPLE).fixed("weight").dtype == np.float64 and flag(SAMPLE).fixed("flag").dtype == bool
    assert Compute(column="twice", expression="2 * number")(SAMPLE).ragged("twice").values.dtype.kind == "i"


def test_transforms_name_the_columns_that_they_read_and_make() -> None:
    compute = Compute(column="share", expression="hit_pt / (1 + pt)")
    assert (sorted(compute.needs), compute.makes) == (["hit_pt", "pt"], ("share",))
    assert Select(where="pt > 1").needs == ("pt",) and SameItems(columns=("a",)).needs == ()
    assert sorted(SelectItems(where="hit_pt > pt").needs) == ["hit_pt", "pt"]


def test_a_single_column_describes_its_own_items() -> None:
    events = Table({"a": Ragged.from_lists([[1], [2]]), "b": Ragged.from_lists([[1], [2]])})
    assert SameItems(columns=("a",))(events) is events and SameItems(columns=("c*",))(events) is events
    shared = SameItems(columns=("a", "b"))(events)
    assert shared.ragged("b").offsets is shared.ragged("a").offsets and SameItems(columns=("*",))(shared) is shared
