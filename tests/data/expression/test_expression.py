"""Expressions against NumPy and awkward, their precedence, and every way to write a wrong one."""

from __future__ import annotations

import pickle
from typing import Any

import awkward as ak
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.data.expression import Expression
from clew.data.table import Ragged, Table
from clew.errors import ConfigError

NUMBERS = st.floats(-50, 50, width=32)
EVENT = st.tuples(NUMBERS, NUMBERS, st.integers(-4, 4), st.lists(st.tuples(NUMBERS, st.integers(0, 3)), max_size=4))
EVENTS = st.lists(EVENT, max_size=8)


def table(events: list[Any]) -> Table:
    """pt, eta and flag per event; hit_pt and station of the same items; `other` of other items."""
    items = [item for event in events for item in event[3]]
    hit = Ragged.from_lengths(np.array([x for x, _ in items], dtype=np.float32), [len(event[3]) for event in events])
    columns: dict[str, Any] = {
        "pt": np.array([event[0] for event in events], dtype=np.float32),
        "eta": np.array([event[1] for event in events], dtype=np.float64),
        "flag": np.array([event[2] for event in events], dtype=np.int8),
        "hit_pt": hit,
        "station": hit.share(np.array([s for _, s in items], dtype=np.uint8)),
        "other": Ragged.from_lengths(np.zeros(len(events)), np.ones(len(events), dtype=int)),
        "edge": Ragged.from_lengths(np.zeros((len(events), 2), dtype=int), np.ones(len(events), dtype=int)),
    }
    return Table(columns)


SAMPLE = table([(10, 1, 1, [(1, 0), (2, 1)]), (30, 2, 0, []), (50, -3, 6, [(3, 2)])])


def lists(text: str, events: Table = SAMPLE) -> Any:
    value = Expression(text).evaluate(events)
    return [item.tolist() for item in value] if isinstance(value, Ragged) else value.tolist()


FIXED = {
    "pt + eta * 2 - flag / 3": lambda a: a.pt + a.eta * 2 - a.flag / 3,
    "-pt // 3 + pt % 7": lambda a: -a.pt // 3 + a.pt % 7,
    "flag ** 2 + abs(eta) ** 0.5": lambda a: a.flag**2 + np.abs(a.eta) ** 0.5,
    "pt > 20 && abs(eta) < 2.5 || flag == 1": lambda a: ((a.pt > 20) & (abs(a.eta) < 2.5)) | (a.flag == 1),
    "pt > 20 & abs(eta) < 2.5 | flag == 1": lambda a: ((a.pt > 20) & (abs(a.eta) < 2.5)) | (a.flag == 1),
    "(pt > 20) & ~(eta < 0)": lambda a: (a.pt > 20) & ~(a.eta < 0),
    "-10 < pt <= 10 != flag": lambda a: (a.pt > -10) & (a.pt <= 10) & (a.flag != 10),
    "not pt > 0 and !(eta > 0)": lambda a: ~(a.pt > 0) & ~(a.eta > 0),
    "sqrt(abs(pt)) + exp(-abs(eta)) + log10(1 + abs(pt))": lambda a: (
        np.sqrt(abs(a.pt)) + np.exp(-abs(a.eta)) + np.log10(1 + abs(a.pt))
    ),
    "arctan2(pt, eta) + sinh(eta / 50) - maximum(pt, minimum(eta, 3))": lambda a: (
        np.arctan2(a.pt, a.eta) + np.sinh(a.eta / 50) - np.maximum(a.pt, np.minimum(a.eta, 3))
    ),
    "where(flag, pt, eta)": lambda a: np.where(a.flag != 0, a.pt, a.eta),
    "isfinite(log(pt))": lambda a: a.pt > 0,
    "(flag & 2) != 0": lambda a: (a.flag & 2) != 0,
    "(pt > 0) + (eta > 0)": lambda a: (a.pt > 0).astype(int) + (a.eta > 0),
}


@pytest.mark.parametrize("text", FIXED)
@given(EVENTS)
def test_values_per_event_are_those_of_numpy(text: str, events: list[Any]) -> None:
    events_table = table(events)
    wide = {
        n: c.astype(np.int64) if c.dtype == np.int8 else c for n, c in events_table.items() if isinstance(c, np.ndarray)
    }
    with np.errstate(all="ignore"):
        expected = np.asarray(FIXED[text](type("Columns", (), wide)))
    values = Expression(text).evaluate(events_table)
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("text", ["-10 < pt <= 10 != flag"])
def test_a_chain_compares_neighbours(text: str) -> None:
    assert lists(text) == [True, False, False]
    assert lists("0 < 1 < 2 > 5") == [False, False, False]


RAGGED = {
    "hit_pt * 2 + station": lambda a: a.hit_pt * 2 + ak.values_astype(a.station, np.int64),
    "hit_pt > 0.5 && station != 2": lambda a: (a.hit_pt > 0.5) & (a.station != 2),
    "hit_pt > pt & station < 2": lambda a: (a.hit_pt > a.pt) & (a.station < 2),
    "sqrt(abs(hit_pt)) - eta": lambda a: np.sqrt(abs(a.hit_pt)) - a.eta,
    "len(hit_pt) + sum(station)": lambda a: ak.num(a.hit_pt) + ak.sum(a.station, axis=1),
    "sum(hit_pt > 0 || station == 1)": lambda a: ak.sum((a.hit_pt > 0) | (a.station == 1), axis=1),
    "max(hit_pt)": lambda a: ak.fill_none(ak.max(a.hit_pt, axis=1), np.nan),
    "min(station)": lambda a: ak.fill_none(ak.min(a.station, axis=1), np.nan),
    "first(hit_pt)": lambda a: ak.fill_none(ak.firsts(a.hit_pt), np.nan),
    "any(hit_pt > 1)": lambda a: ak.any(a.hit_pt > 1, axis=1),
    "all(hit_pt > pt) and flag > 0": lambda a: ak.all(a.hit_pt > a.pt, axis=1) & (a.flag > 0),
}


@pytest.mark.parametrize("text", RAGGED)
@given(EVENTS.filter(bool))
def test_values_of_items_are_those_of_awkward(text: str, events: list[Any]) -> None:
    events_table = table(events)
    expected, values = RAGGED[text](events_table.to_awkward()), Expression(text).evaluate(events_table)
    if isinstance(values, Ragged):
        assert values.offsets is events_table.ragged("hit_pt").offsets
        assert ak.num(expected).tolist() == values.lengths.tolist()
        np.testing.assert_array_equal(values.values, ak.flatten(expected).to_numpy())
    else:
        np.testing.assert_array_equal(values, ak.to_numpy(expected))


@given(EVENTS)
def test_a_sum_is_correct_to_double_precision(events: list[Any]) -> None:
    sums = Expression("sum(hit_pt)").evaluate(table(events))
    expected = [sum(float(x) for x, _ in event[3]) for event in events]
    np.testing.assert_allclose(np.asarray(sums), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("pt > 20 & eta < 0", "(pt > 20) and (eta < 0)"),
        ("pt > 20 | eta < 0 & flag", "(pt > 20) or ((eta < 0) and flag)"),
        ("!flag && pt > 1", "(flag == 0) and (pt > 1)"),
        ("not flag & pt > 1", "(flag == 0) and (pt > 1)"),
        ("!(pt > 20) || eta != 1", "(not pt > 20) or eta != 1"),
        ("any(hit_pt > 1 & station == 2)", "sum((hit_pt > 1) * (station == 2)) > 0"),
        ("pt\n  > 20", "pt > 20"),
        ("flag == !flag", "flag == (flag == 0)"),
    ],
)
def test_precedence_is_that_of_a_cut(text: str, same: str) -> None:
    assert list(map(bool, lists(text))) == lists(same)


def test_small_integers_do_not_wrap() -> None:
    big = Table({"a": np.array([100], dtype=np.int8), "b": np.array([1], dtype=np.uint8)})
    assert lists("a * 300 + a * a", big) == [40_000]
    assert lists("b - 2", big) == [-1]
    assert lists("a ** -1", big) == [0.01]


def test_a_number_alone_is_a_value_for_every_event() -> None:
    assert lists("2.5") == [2.5, 2.5, 2.5]
    assert lists("2 ** 200 > 1") == [True] * 3
    assert lists("10 ** 10 ** 10 > 0") == [True] * 3


def test_an_event_without_items_passes_no_cut_on_its_extremes() -> None:
    assert lists("max(hit_pt) > 1") == lists("min(hit_pt) > 0") == [True, False, True]
    assert lists("where(len(hit_pt) > 0, first(station), -1)") == [0, -1, 2]


def test_lengths_are_known_of_items_that_are_no_numbers() -> None:
    assert lists("len(edge)") == [1, 1, 1]


def test_names_are_the_columns_needed() -> None:
    assert set(Expression("sum(hit_pt > cut) + sum * where(a, 1, a)").names) == {"hit_pt", "cut", "sum", "a"}


def test_it_travels_between_processes() -> None:
    again = pickle.loads(pickle.dumps(Expression("pt > 20")))
    assert again.evaluate(SAMPLE).tolist() == [False, True, True]
    assert repr(again) == "Expression('pt > 20')"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("pt >", "cannot be understood"),
        ("pt > 20 &", "a value is missing"),
        ("", "a value is missing"),
        ("sqrt()", "a value is missing"),
        ("pt) and (eta", "cannot be understood"),
        ("pt = 3", "cannot be understood"),
        ("pt\0", "cannot be understood"),
        ("jet.pt > 3", "'jet.pt' is not allowed"),
        ("pt[0]", "not allowed"),
        ("'text'", "not allowed"),
        ("pt if eta else 1", "not allowed"),
        ("lambda: 1", "not allowed"),
        ("pt in eta", "not allowed"),
        ("pt, eta", "not allowed"),
        ("pt @ eta", "not allowed"),
        ("pt ^ eta", "not allowed"),
        ("None", "not allowed"),
        ("[x for x in pt]", "not allowed"),
        ("(lambda: 1)()", "not allowed"),
        ("sqr(pt)", "no function 'sqr'; did you mean 'sqrt'?"),
        ("__import__('os').system('x')", "not allowed"),
        ("eval(pt)", "no function 'eval'"),
        ("max(pt, eta)", "max takes 1 argument, not 2; maximum takes two"),
        ("where(pt, 1)", "where takes 3 arguments, not 2"),
        ("!pt > 20", "bind tighter"),
        ("~flag < 3", "bind tighter"),
        ("(" * 300, "cannot be understood"),
        ("+".join(["pt"] * 20_000), "nested too deeply"),
    ],
)
def test_invalid_expressions_are_reported_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Expression(text)
    assert complaint in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("hit_ptt > 3", "'hit_ptt > 3': no column 'hit_ptt'; did you mean 'hit_pt'?"),
        ("len(hits)", "no column 'hits'"),
        ("hit_pt > other", "'hit_pt' and 'other' do not describe the same items"),
        ("sum(pt)", "sum needs a ragged column, 'pt' has one value per event"),
        ("len(pt)", "len needs a ragged column"),
        ("edge + 1", "column 'edge' holds arrays of (2,) per item, not single numbers"),
        ("pt | 1", "& and | take conditions or integers"),
        ("~flag", "~ takes a condition"),
    ],
)
def test_expressions_that_do_not_fit_the_columns_are_reported_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Expression(text).evaluate(SAMPLE)
    assert complaint in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@given(st.text(st.sampled_from("pt eta()&|!~<>=+-*/%,.0123 andornotsum\n"), max_size=30))
def test_any_text_is_an_expression_or_a_config_error(text: str) -> None:
    try:
        value = Expression(text).evaluate(SAMPLE)
    except ConfigError:
        return
    assert len(value) == len(SAMPLE)


def test_numbers_are_conditions_that_are_neither_0_nor_nan() -> None:
    events = Table({"a": np.array([0.0, 2.0, -1.0, np.nan]), "n": np.array([0, 3, -1, 1])})
    assert [np.asarray(Expression(text).evaluate(events)).tolist() for text in ("!a", "a && n", "a || 0", "!n")] == [
        [True, False, False, True],
        [False, True, True, False],
        [False, True, True, False],
        [True, False, False, False],
    ]


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("x ** y", "f4", [1, 8]),
        ("x ** 2", "f4", [1, 4]),
        ("n ** 2", "i8", [1, 4]),
        ("n ** -1", "f8", [1, 0.5]),
        ("n ** m", "f8", [1, 8]),
        ("2 ** m", "f8", [8, 8]),
        ("n ** 0.5", "f8", [1, 2**0.5]),
    ],
)
def test_powers_are_integers_only_if_they_cannot_be_fractions(text: str, kind: str, values: list[float]) -> None:
    x, n = np.array([1, 2], dtype="f4"), np.array([1, 2])
    made = Expression(text).evaluate(Table({"x": x, "y": 3 + 0 * x, "n": n, "m": 3 + 0 * n}))
    assert isinstance(made, np.ndarray) and made.dtype == kind and made.tolist() == pytest.approx(values)
