"""Scaling: fitted and configured numbers, and that the order of the data does not matter."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.data.table import Ragged, Table
from clew.data.transforms import Cylindrical, FittedTransform, MinMax, Standard, Transform, fit
from clew.errors import DataError

KINDS: list[type[MinMax] | type[Standard]] = [MinMax, Standard]
VALUES = st.floats(-1e6, 1e6)


def events() -> Table:
    x = Ragged([0.0, 10.0, 5.0], [0, 2, 2, 3])
    return Table({"x": x, "y": x.share([2, 2, 2]), "pt": np.array([1, 3, 5], dtype=np.int32)}, units={"x": "mm"})


def fitted(transform: FittedTransform, *chunks: Table) -> Any:
    return transform.fitted([transform.measure(chunk) for chunk in chunks])


def flat(table: Table, name: str) -> list[float]:
    column = table[name]
    return [float(value) for value in (column.values if isinstance(column, Ragged) else column)]


def bits(numbers: dict[str, float]) -> dict[str, bytes]:
    return {name: struct.pack("d", number) for name, number in numbers.items()}


def test_min_max_maps_the_range_to_minus_one_and_one() -> None:
    scale = fitted(MinMax(columns=("x", "pt")), events().slice(0, 1), events().slice(1))
    assert (scale.low, scale.high) == ({"x": 0.0, "pt": 1.0}, {"x": 10.0, "pt": 5.0})
    assert flat(scale(events()), "x") == [-1.0, 1.0, 0.0]
    assert flat(scale(events()), "pt") == [-1.0, 0.0, 1.0]


def test_min_max_does_not_clip_what_lies_outside() -> None:
    scale = MinMax(columns=("pt",), low={"pt": 0}, high={"pt": 2})
    assert flat(scale(events()), "pt") == [0.0, 2.0, 4.0]


def test_standard_gives_mean_zero_and_deviation_one() -> None:
    scale = fitted(Standard(columns=("pt", "x")), events().slice(0, 2), events().slice(2))
    assert (scale.mean, scale.std["pt"]) == ({"pt": 3.0, "x": 5.0}, pytest.approx(np.sqrt(8 / 3)))
    assert flat(scale(events()), "pt") == pytest.approx([-np.sqrt(1.5), 0.0, np.sqrt(1.5)])
    assert flat(scale(events()), "x") == pytest.approx([-np.sqrt(1.5), np.sqrt(1.5), 0.0])


@pytest.mark.parametrize("middle", [0.0, 1e6, 1e9, -1e12])
def test_standard_holds_for_a_narrow_column_far_from_zero(middle: float) -> None:
    table = Table({"t": middle + np.arange(100.0)})
    scale = fitted(Standard(columns=("t",)), table.slice(0, 37), table.slice(37, 37), table.slice(37))
    assert scale.std["t"] == pytest.approx(np.arange(100.0).std(), rel=1e-9)
    assert np.std(flat(scale(table), "t")) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("value", [0.0, 2.0, 0.1, 1e8 + 0.1, -1e-30])
def test_a_constant_column_stays_finite(value: float) -> None:
    for count in range(2, 12):
        table = Table({"c": np.full(count, value)})
        parts = [table.slice(0, count // 2), table.slice(count // 2)]
        assert flat(fitted(Standard(columns=("c",)), *parts)(table), "c") == pytest.approx([0.0] * count, abs=1e-6)
        assert flat(fitted(MinMax(columns=("c",)), *parts)(table), "c") == [-1.0] * count


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(VALUES, max_size=5), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_chunks_does_not_change_a_bit(
    kind: type[MinMax] | type[Standard], chunks: list[list[float]], random: Any
) -> None:
    chunks.append([1.0])
    transform: FittedTransform = kind(columns=("x",))
    parts = [transform.measure(Table({"x": np.array(chunk)})) for chunk in chunks]
    shuffled = random.sample(parts, len(parts))
    one: Any = transform.fitted(parts)
    two: Any = transform.fitted(shuffled)
    for field in ("low", "high") if kind is MinMax else ("mean", "std"):
        assert bits(getattr(one, field)) == bits(getattr(two, field))


def test_zeros_of_either_sign_are_one_zero() -> None:
    parts = [Table({"x": [0.0]}), Table({"x": [-0.0]})]
    for field in ("low", "high"):
        one, two = fitted(MinMax(columns=("x",)), *parts), fitted(MinMax(columns=("x",)), *reversed(parts))
        assert bits(getattr(one, field)) == bits(getattr(two, field)) == bits({"x": 0.0})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(VALUES, min_size=1, max_size=5), min_size=1, max_size=6))
def test_fitting_in_chunks_is_fitting_the_whole(chunks: list[list[float]]) -> None:
    whole = np.concatenate(chunks)
    tables = [Table({"x": chunk}) for chunk in chunks]
    ranges, moments = fitted(MinMax(columns=("x",)), *tables), fitted(Standard(columns=("x",)), *tables)
    assert (ranges.low["x"], ranges.high["x"]) == (whole.min(), whole.max())
    assert moments.mean["x"] == pytest.approx(whole.mean(), rel=1e-9, abs=1e-9)
    assert moments.std["x"] == pytest.approx(whole.std(), rel=1e-6, abs=1e-6)


def test_numbers_in_the_settings_are_not_fitted() -> None:
    given_all = MinMax(columns=("x",), low={"x": -100}, high={"x": 100})
    assert not given_all.needs_fit
    assert fit([given_all], lambda: pytest.fail("no pass over the data was needed")) == [given_all]
    half = Standard(columns=("x", "pt"), mean={"x": 1.0}, std={"x": 2.0})
    assert half.needs_fit
    (done,) = fit([half], lambda: [events()])
    assert isinstance(done, Standard)
    assert (done.mean, done.std["x"]) == ({"x": 1.0, "pt": 3.0}, 2.0)
    ranges = fitted(MinMax(columns=("x", "pt"), low={"pt": -1}, high={"x": 50}), events())
    assert (ranges.low, ranges.high) == ({"x": 0.0, "pt": -1.0}, {"x": 50.0, "pt": 5.0})


def test_each_transform_is_fitted_on_what_those_before_it_made() -> None:
    chain: list[Transform] = [MinMax(columns=("x",)), MinMax(columns=("x",)), Cylindrical(), MinMax(columns=("r",))]
    done: list[Any] = fit(chain, lambda: [events().slice(0, 1), events().slice(1)])
    assert (done[0].high, done[1].high) == ({"x": 10.0}, {"x": 1.0})
    assert done[3].high["r"] == pytest.approx(np.sqrt(5))
    assert done[2] is chain[2]


def test_a_pass_may_be_made_elsewhere() -> None:
    requests: list[tuple[FittedTransform, int]] = []

    def elsewhere(transform: FittedTransform, before: Any) -> list[Any]:
        requests.append((transform, len(before)))
        return [transform.measure(events())]

    done: list[Any] = fit([Cylindrical(), MinMax(columns=("x",))], lambda: pytest.fail("asked here"), elsewhere)
    assert requests == [(MinMax(columns=("x",)), 1)]
    assert done[1].high == {"x": 10.0}


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_without_values_cannot_be_fitted(kind: type[MinMax] | type[Standard]) -> None:
    with pytest.raises(DataError, match="cannot be fitted: no values in column 'x'"):
        fitted(kind(columns=("x",)), events().slice(0, 0), events().slice(1, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_transform_used_before_it_is_fitted_says_so(kind: type[MinMax] | type[Standard]) -> None:
    with pytest.raises(DataError, match=r"has no numbers for column 'x' yet; fit it first"):
        kind(columns=("x",))(events())


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_column_suggests_the_nearest(kind: type[MinMax] | type[Standard]) -> None:
    with pytest.raises(DataError, match="no column 'ptt' in the table; did you mean 'pt'"):
        kind(columns=("ptt",)).measure(events())


@pytest.mark.parametrize("kind", KINDS)
def test_scaled_columns_lose_their_unit_and_keep_their_offsets(kind: type[MinMax] | type[Standard]) -> None:
    scaled = fitted(kind(columns=("x",)), events())(events())
    assert scaled.units["x"] == ""
    assert scaled.ragged("x").offsets is scaled.ragged("y").offsets
    assert scaled.ragged("x").values.dtype == np.float64


def test_a_constant_column_is_shifted_and_not_scaled() -> None:
    """Events that were not fitted may have other values."""
    scale = fitted(Standard(columns=("y",)), events())
    assert (scale.mean, scale.std) == ({"y": 2.0}, {"y": 0.0})
    other = events().join({"y": events().ragged("y").share([2.0, 5.0, -1.0])})
    assert flat(scale(other), "y") == [0.0, 3.0, -3.0]


def test_numbers_of_the_settings_are_not_fitted_again() -> None:
    scale = fitted(Standard(columns=("pt", "x"), mean={"pt": 1.0}, std={"pt": 2.0}), events())
    assert scale.mean == {"pt": 1.0, "x": 5.0} and scale.std["pt"] == 2.0 and not scale.needs_fit
    assert Standard(columns=("pt",), mean={"pt": 1.0}).needs_fit


@pytest.mark.parametrize("kind", KINDS)
def test_parts_without_values_change_no_fit(kind: type[MinMax] | type[Standard]) -> None:
    whole = fitted(kind(columns=("pt",)), events())
    assert fitted(kind(columns=("pt",)), events().slice(0, 0), events()) == whole
    with pytest.raises(DataError, match="has no numbers for column 'pt' yet; fit it first"):
        kind(columns=("pt",))(events())
