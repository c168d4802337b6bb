"""Metrics: exact for any split of the data, and equal to numbers computed by hand."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew import figure
from clew.metrics import (
    F1,
    Binned,
    Confusion,
    Mean,
    Metric,
    Ratio,
    Roc,
    add_metrics,
    metric_from_data,
    metric_to_data,
    metric_values,
    wilson_interval,
)

EDGES = [0.0, 0.25, 0.5, 1.0]
Fill = Callable[[Any, Any, Any, Any], Metric]
FILLS: dict[str, Fill] = {
    "mean": lambda x, a, b, w: Mean(float((x * w).sum()), float(w.sum())),
    "ratio": lambda x, a, b, w: Ratio.of(a),
    "weighted ratio": lambda x, a, b, w: Ratio.of(a, w),
    "f1": lambda x, a, b, w: F1.of(a, b),
    "weighted f1": lambda x, a, b, w: F1.of(a, b, w),
    "binned": lambda x, a, b, w: Binned.of(x, a, EDGES, axis="x [mm]", label="efficiency", weights=w),
    "roc": lambda x, a, b, w: Roc.of(x, a),
    "weighted roc": lambda x, a, b, w: Roc.of(x, a, w),
    "confusion": lambda x, a, b, w: Confusion.of(a, b, ("no", "yes")),
    "weighted confusion": lambda x, a, b, w: Confusion.of(a, b, ("no", "yes"), w),
}


@st.composite
def samples(draw: st.DrawFn) -> tuple[Any, Any, Any, Any]:
    """Scores in [0, 1], two boolean arrays and weights (some negative), all of one length."""
    count = draw(st.integers(0, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    flags = rng.random((2, count)) < draw(st.sampled_from([0.0, 0.3, 1.0]))
    return rng.random(count), flags[0], flags[1], rng.uniform(-1, 3, count)


def assert_close(left: Metric, right: Metric) -> None:
    assert type(left) is type(right)
    for part in dataclasses.fields(left):
        left_value, right_value = getattr(left, part.name), getattr(right, part.name)
        assert (
            left_value == right_value
            if isinstance(left_value, (str, tuple))
            else np.allclose(left_value, right_value, rtol=0, atol=1e-12)
        )


@pytest.mark.parametrize("name", FILLS)
@settings(max_examples=50, deadline=None)
@given(samples(), st.lists(st.integers(0, 30), max_size=5))
def test_a_tally_is_the_same_under_any_split(name: str, sample: tuple[Any, ...], cuts: list[int]) -> None:
    fill, whole = FILLS[name], FILLS[name](*sample)
    pieces = zip(*(np.split(array, sorted(cuts)) for array in sample), strict=True)
    summed = add_metrics({"it": fill(*piece)} for piece in pieces)["it"]
    assert_close(summed, whole)
    if "weighted" not in name:
        assert summed.value == pytest.approx(whole.value, rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("name", FILLS)
def test_nothing_counted_is_nan(name: str) -> None:
    none, flags = np.zeros(0), np.zeros(0, dtype=bool)
    empty = FILLS[name](none, flags, flags, none)
    assert math.isnan(empty.value)
    assert math.isnan(empty.error)


@pytest.mark.parametrize(
    ("passed", "total", "expected"),
    [(50, 100, 0.049751859510499), (1, 4, 0.2), (9, 9, 0.05), (0, 9, 0.05), (1, 1, 0.25)],
)
def test_the_wilson_error_is_that_of_the_formula(passed: int, total: int, expected: float) -> None:
    assert Ratio(passed, total).error == pytest.approx(expected, rel=1e-12)
    assert Ratio.of([True] * passed + [False] * (total - passed)).error == pytest.approx(expected, rel=1e-12)


def test_weights_all_alike_change_neither_value_nor_error() -> None:
    passed = [True, False, False, False]
    heavy, plain = Ratio.of(passed, [3.0] * 4), Ratio.of(passed)
    assert (heavy.value, heavy.error) == pytest.approx((plain.value, plain.error), rel=1e-12)


def test_negative_weights_count_against() -> None:
    ratio = Ratio.of([True, True, False, False], [2.0, -1.0, 1.0, 1.0])
    assert (ratio.passed, ratio.total, ratio.squares) == (1.0, 3.0, 7.0)
    assert ratio.value == pytest.approx(1 / 3)
    count = 9 / 7
    expected = math.sqrt((2 / 9) / count + 1 / (4 * count**2)) / (1 + 1 / count)
    assert ratio.error == pytest.approx(expected, rel=1e-12)


def test_a_total_that_is_not_positive_has_no_error() -> None:
    assert math.isnan(Ratio.of([True, False], [1.0, -1.0]).value)
    assert math.isnan(Ratio.of([True, False], [1.0, -2.0]).error)
    assert np.isnan(wilson_interval([0, 1], [0, -1], [0, 1])).all()


def test_a_fraction_beyond_its_limits_has_the_interval_of_the_limit() -> None:
    """Negative weights can make one: 11 of 10, or -1 of 10."""
    beyond, at_limit = (wilson_interval(passed, [10, 10], [10, 10]) for passed in ([11, -1], [10, 0]))
    np.testing.assert_allclose(beyond, at_limit)


def test_an_interval_is_the_value_with_its_error_on_both_sides() -> None:
    class Counted(Mean):
        error = 0.25

    assert Counted(6.0, 2.0).interval == (2.75, 3.25)


def test_mean_divides_the_total_by_the_weight() -> None:
    assert (Mean(6.0, 2.0) + Mean(0.0, 2.0)).value == 1.5


@settings(max_examples=60, deadline=None)
@given(samples())
def test_f1_is_the_harmonic_mean_of_precision_and_recall(sample: tuple[Any, ...]) -> None:
    _, predicted, true, _ = sample
    score = F1.of(predicted, true).value
    if (predicted & true).any():
        precision, recall = (predicted & true).sum() / predicted.sum(), (predicted & true).sum() / true.sum()
        assert score == pytest.approx(2 / (1 / precision + 1 / recall), rel=1e-12)
    else:
        assert score == 0.0 if (predicted | true).any() else math.isnan(score)


def test_f1_value_and_error_of_known_counts() -> None:
    score = F1(hits=8, false=1, missed=3)
    assert score.value == 0.8
    assert score.error == pytest.approx(math.sqrt(1536) / 400, rel=1e-12)


def mann_whitney(scores: Any, truth: Any) -> float:
    signal, background = scores[truth][:, None], scores[~truth][None, :]
    return float(np.mean((signal > background) + 0.5 * (signal == background)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(Roc.BINS // 4, 3 * Roc.BINS // 4), st.booleans()), min_size=2, max_size=40))
def test_auc_of_scores_a_bin_apart_is_exact_ties_included(pairs: list[tuple[int, bool]]) -> None:
    logits = (np.array([pair[0] for pair in pairs]) - Roc.BINS / 2 + 0.5) * 2 * Roc.REACH / Roc.BINS
    scores, truth = 1 / (1 + np.exp(-logits)), np.array([pair[1] for pair in pairs])
    area = Roc.of(scores, truth).value
    if truth.all() or not truth.any():
        assert math.isnan(area)
    else:
        assert area == pytest.approx(mann_whitney(scores, truth), abs=1e-12)


@pytest.mark.parametrize("power", [0.5, 1.0, 3.0])
def test_auc_of_smooth_scores_is_within_two_bins(power: float) -> None:
    rng = np.random.default_rng(1)
    truth = rng.random(3000) < 0.3
    scores = rng.random(3000) ** np.where(truth, 1 / power, 1.0)
    assert Roc.of(scores, truth).value == pytest.approx(mann_whitney(scores, truth), abs=2 / Roc.BINS)


def test_scores_at_and_beyond_the_ends_are_counted_in_the_last_bins() -> None:
    roc = Roc.of([-0.1, 0.0, 1.0, 1.2], [False, False, True, True])
    assert (roc.background[0], roc.signal[-1], roc.value) == (2, 2, 1.0)


def test_binned_leaves_out_values_outside_its_edges() -> None:
    binned = Binned.of([-1, 0.1, 0.3, 0.9, 5, np.nan], [1, 1, 0, 1, 1, 1], EDGES, axis="x", label="efficiency")
    assert binned.passed.tolist() == [1, 0, 1]
    assert binned.total.tolist() == [1, 1, 1]
    assert binned.value == pytest.approx(2 / 3)


def test_errors_of_weighted_bins_count_squared_weights() -> None:
    x, passed, weight = np.array([0.1, 0.2, 0.1, 0.9]), np.array([1, 0, 1, 1], bool), np.array([2.0, 3.0, 0.5, 4.0])
    binned = Binned.of(x, passed, [0.0, 0.5, 1.0], axis="x", label="efficiency", weights=weight)
    assert binned.passed.tolist() == [2.5, 4.0]
    assert binned.total.tolist() == [5.5, 4.0]
    assert binned.squares.tolist() == [2.0**2 + 3.0**2 + 0.5**2, 16.0]
    in_bin = x < 0.5
    alone = Ratio.of(passed[in_bin], weight[in_bin])
    bars = binned.figure("efficiency")["data"][1]["error_y"]
    assert bars["array"][0] + bars["arrayminus"][0] == pytest.approx(2 * alone.error, rel=1e-5)
    effective = 5.5**2 / 13.25  # events of weight 1 with the same error
    assert alone.error == pytest.approx(Ratio(effective * 2.5 / 5.5, effective, effective).error)


@pytest.mark.parametrize(("passed", "total"), [(0, 5), (5, 5), (19, 20), (1, 1000)])
def test_the_interval_of_a_fraction_stays_within_0_and_1(passed: int, total: int) -> None:
    low, high = Ratio(passed, total).interval
    assert 0 <= low <= passed / total <= high <= 1
    assert high - low > 0
    mask = np.arange(total) < passed
    drawn = Binned.of(np.zeros(total), mask, [-1.0, 1.0], axis="x", label="efficiency").figure("")["data"][1]
    value, bars = drawn["y"][0], drawn["error_y"]
    assert value + bars["array"][0] == pytest.approx(high, rel=1e-5)
    assert value - bars["arrayminus"][0] == pytest.approx(low, rel=1e-5, abs=1e-5)


def numbers_in(data: Any) -> list[Any]:
    text = json.dumps(data, allow_nan=False)
    return [item for trace in json.loads(text)["data"] for axis in "xy" for item in trace[axis]]


def test_a_roc_also_shows_the_scores_of_both_classes() -> None:
    plots = Roc.of([0.06, 0.07, 0.9, 0.99, 0.99], [False, False, False, True, True]).figures("auc")
    assert list(plots) == ["", "scores"]
    background, signal = (trace["y"][:-1] for trace in plots["scores"]["data"])
    assert signal[-1] == 1.0 and sum(signal) == 1.0
    assert background[2] == pytest.approx(2 / 3) and sum(background) == pytest.approx(1.0)
    assert Mean(1.0, 1.0).figures("loss") == {}


def test_a_binned_figure_is_plain_json_with_gaps_for_empty_bins() -> None:
    binned = Binned.of([0.1, 0.6], [True, False], EDGES, axis="pT [GeV]", label="efficiency")
    drawn = binned.figure("Efficiency")
    assert numbers_in(drawn).count(None) == 1
    assert drawn["data"][1]["y"] == [1.0, None, 0.0]
    assert drawn["layout"]["xaxis"]["title"]["text"] == "pT [GeV]"
    assert drawn["data"][1]["x"] == [0.125, 0.375, 0.75]
    assert drawn["data"][1]["error_x"]["array"] == [0.125, 0.125, 0.25]
    assert drawn["data"][1]["text"] == [1, 0, 1]


@pytest.mark.parametrize("name", ["binned", "roc"])
@settings(max_examples=40, deadline=None)
@given(samples())
def test_every_figure_is_strict_json(name: str, sample: tuple[Any, ...]) -> None:
    drawn = FILLS[name](*sample).figure("title")
    assert drawn is not None
    assert numbers_in(drawn)


def test_tallies_without_a_plot_draw_nothing() -> None:
    assert Mean(1.0, 1.0).figure("title") is None


def test_plain_numbers_lose_only_what_json_cannot_hold() -> None:
    assert figure.plain([1.0, math.nan, -math.inf, 0.123456789]) == [1.0, None, None, 0.123457]
    assert figure.plain(np.array([1, 2])) == [1, 2]
    assert figure.plain([]) == []


def test_kinds_do_not_mix() -> None:
    with pytest.raises(TypeError, match="cannot add Ratio to Mean"):
        Mean(1.0, 1.0) + Ratio(1, 1)  # type: ignore[operator]
    with pytest.raises(TypeError, match="cannot add Mean to Ratio"):
        add_metrics([{"a": Ratio(1, 1)}, {"a": Mean(1.0, 1.0)}])


def test_binned_tallies_with_other_edges_or_labels_do_not_add() -> None:
    left = Binned.of([0.1], [True], EDGES, axis="x", label="efficiency")
    for right in (
        Binned.of([0.1], [True], [0.0, 1.0], axis="x", label="efficiency"),
        Binned.of([0.1], [True], EDGES, axis="y", label="efficiency"),
    ):
        with pytest.raises(AssertionError, match="differs"):
            _ = left + right


def test_tallies_that_are_there_for_their_plot_give_no_number() -> None:
    binned = Binned.of([0.1], [True], EDGES, axis="x", label="efficiency")
    assert metric_values({"efficiency": binned, "loss": Mean(1.0, 2.0)}) == {"loss": 0.5}


def test_a_name_missing_from_a_batch_counts_as_zero_there() -> None:
    total = add_metrics([{"a": Ratio(1, 2)}, {"b": Ratio(1, 1)}, {"a": Ratio(1, 2)}])
    assert total == {"a": Ratio(2, 4), "b": Ratio(1, 1)}
    assert metric_values(total) == {"a": 0.5, "b": 1.0}
    assert add_metrics([]) == {}


def test_a_confusion_counts_what_was_taken_for_what() -> None:
    confusion = Confusion.of([0, 1, 1, 2, 0], [0, 1, 2, 2, 7], ("a", "b", "c"))
    assert confusion.counts.tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
    assert confusion.value == 0.75
    drawn = confusion.figure("flavour")
    assert drawn["data"][0]["z"][2] == [0.0, 0.5, 0.5]
    assert drawn["layout"]["title"]["text"] == "Flavour, shares of each true class"
    json.dumps(drawn, allow_nan=False)
    assert metric_values({"confusion": confusion}) == {}


def test_a_short_logarithmic_axis_has_numbers_between_powers_of_ten() -> None:
    def ticks(*y: float) -> object:
        drawn = figure.figure([figure.line([0, 1], y, "it")], title="", yaxis={"type": "log"})
        return drawn["layout"]["yaxis"].get("dtick")

    assert [ticks(1, 1e5), ticks(1, 20), ticks(1, 2)] == [1, "D2", None]


@pytest.mark.parametrize(("classes", "texts"), [(12, True), (13, False)])
def test_a_large_confusion_has_colours_instead_of_numbers(classes: int, texts: bool) -> None:
    drawn = Confusion.of([0], [0], [str(number) for number in range(classes)]).figure("x")["data"][0]
    assert ("texttemplate" in drawn) is texts is not drawn["showscale"]
    assert (drawn["zmin"], drawn["zmax"]) == (0, 1) and [stop for stop, _ in drawn["colorscale"]] == [0, 1]


def test_a_roc_is_drawn_down_to_a_background_of_one_in_a_hundred_thousand() -> None:
    drawn = Roc.of([0.1, 0.4, 0.6, 0.9], [False, True, False, True]).figure("x")
    assert drawn["layout"]["xaxis"]["range"] == [-5, 0] and drawn["layout"]["yaxis"]["range"] == [0, 1.05]
    (curve,) = drawn["data"]
    assert curve["name"] == "area 0.7500" and min(curve["x"]) == 1e-6
    assert sorted(set(curve["y"])) == [0, 0.5, 1]


@pytest.mark.parametrize("name", FILLS)
def test_a_metric_is_read_as_it_was_written(name: str) -> None:
    flags = np.array([True, False, True])
    metric = FILLS[name](np.array([0.1, 0.4, 0.9]), flags, ~flags, np.array([1.0, 2.0, 0.5]))
    data = json.loads(json.dumps(metric_to_data(metric)))
    assert not {"edges", "names", "axis", "label"} & data.keys()
    assert_close(metric_from_data(data, metric), metric)
    assert metric_from_data(data, metric + metric).value == pytest.approx(metric.value)


def test_a_fraction_is_drawn_over_the_shape_of_its_sample() -> None:
    """The sample is a grey area behind the points, its highest bin 1; the range leaves room above 1."""
    x, passed = [0.1, 0.3, 0.3, 0.4, 0.9, 0.9], [True, True, False, True, False, False]
    drawn = Binned.of(x, passed, EDGES, axis="pT [GeV]", label="efficiency").figure("x")
    sample, points = drawn["data"]
    grey = figure.COLOURS[6]
    assert sample == {
        "type": "scatter", "mode": "lines", "x": EDGES, "y": [0.333333, 1.0, 0.666667, 0.666667],
        "name": "sample (shape)", "line": {"shape": "hv", "color": grey}, "fill": "tozeroy", "opacity": 0.35,
    }  # fmt: skip
    assert points["y"] == [1.0, 0.666667, 0.0] and points["marker"]["color"] == figure.COLOURS[0]
    assert points["error_x"] == {"type": "data", "array": [0.125, 0.125, 0.25], "thickness": 1, "width": 0}
    layout = drawn["layout"]
    assert (layout["title"]["text"], layout["yaxis"]["title"]["text"]) == ("Efficiency against pT", "efficiency")
    assert layout["yaxis"]["range"] == [0, 1.05]
    small = Binned.of([0.1], [True], EDGES, axis="x", label="y", weights=[0.5]).figure("x")["data"][0]
    assert small["y"] == [0.5, 0.0, 0.0, 0.0], "fewer than one event are not stretched"


def test_scores_are_drawn_for_both_classes() -> None:
    roc = Roc.of([0.06, 0.07, 0.91, 0.99, 0.99], [False, False, False, True, True])
    drawn = roc.score_figure("auc")
    for trace, colour in zip(drawn["data"], figure.COLOURS[1::-1], strict=True):
        assert trace["x"] == pytest.approx(np.linspace(0, 1, 41).tolist())
        assert (trace["fill"], trace["opacity"], trace["line"]["color"]) == ("tozeroy", 0.6, colour)
    assert [trace["name"] for trace in drawn["data"]] == ["background", "signal"]
    background, signal = ({i: y for i, y in enumerate(trace["y"][:-1]) if y} for trace in drawn["data"])
    assert background == pytest.approx({2: 2 / 3, 36: 1 / 3}, rel=1e-5) and signal == {39: 1.0}
    layout = drawn["layout"]
    assert (layout["title"]["text"], layout["xaxis"]["range"]) == ("Scores, auc", [0, 1])
    assert layout["xaxis"]["title"]["text"] == "score" and layout["yaxis"]["rangemode"] == "tozero"
    empty = Roc.of([], []).score_figure("auc")["data"]
    assert all(set(trace["y"]) == {0.0} for trace in empty)


def test_rates_start_at_the_highest_threshold() -> None:
    fake, real = Roc.of([0.2, 0.6, 0.8], [False, True, False], [1.0, 2.0, 3.0]).rates()
    assert (fake[0], real[0], fake[-1], real[-1]) == (0, 0, 1, 1) and len(fake) == Roc.BINS + 1
    steps = {float(value) for value in fake}, {float(value) for value in real}
    assert steps == ({0.0, 0.75, 1.0}, {0.0, 1.0})
    assert fake[np.argmax(real > 0)] == 0.75, "the signal comes after three of four weights of background"


def test_a_confusion_ignores_classes_without_a_name() -> None:
    confusion = Confusion.of([0, 1, 1, 0], [0, 1, -1, 2], ("a", "b"), [1.0, 2.0, 4.0, 8.0])
    assert confusion.counts.tolist() == [[1, 0], [0, 2]]
    drawn = Confusion.of([0], [0], ("a", "b")).figure("x")
    assert drawn["data"][0]["z"] == [[1.0, 0.0], [0.0, 0.0]], "a class that is not there has no shares"
    assert drawn["data"][0]["x"] == drawn["data"][0]["y"] == ("a", "b")
    assert (drawn["layout"]["xaxis"]["type"], drawn["layout"]["yaxis"]["autorange"]) == ("category", "reversed")


def test_an_f1_of_weights_below_zero_has_an_error_of_0() -> None:
    assert F1(hits=8.0, false=-1.0, missed=-3.0).error == 0.0
    assert math.isnan(F1(0.0, 0.0, 0.0).error)


def test_squares_are_those_of_weights_of_1_if_none_are_given() -> None:
    assert (Ratio(3, 5).squares, Ratio(3, 5, 0.0).squares, Ratio(3, 5, 7.0).squares) == (5.0, 0.0, 7.0)
    assert (Ratio(1, 2) + Ratio(3, 5)) == Ratio(4, 7, 7)
