"""Areas and rejections: exact against counting pairs, the same for any split, errors against a bootstrap by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clew.data.table import Table
from clew.recipes.jets.metrics import JetsMetricsConfig, make_metrics
from clew.recipes.jets.roc_metrics import (
    Rejection,
    RejectionCurves,
    RocArea,
    ScoreHistograms,
    histograms,
    rejection,
    replicas,
    spread,
)

RNG = np.random.default_rng(3)
TRUTH = RNG.random(3000) < 0.4
SCORES = 1 / (1 + np.exp(-(RNG.normal(size=3000) + 1.5 * TRUTH)))
WEIGHTS = RNG.uniform(0.2, 3, 3000)


def _area(scores: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> float:
    s, b = scores[truth], scores[~truth]
    right = (s[:, None] > b[None, :]) + 0.5 * (s[:, None] == b[None, :])
    pair = weights[truth][:, None] * weights[~truth][None, :]
    return float((right * pair).sum() / pair.sum())


@pytest.mark.parametrize("weights", [np.ones(3000), WEIGHTS])
def test_the_area_is_the_share_of_pairs_in_order(weights: np.ndarray) -> None:
    area = RocArea(*histograms(SCORES, TRUTH, weights))
    assert area.value == pytest.approx(_area(SCORES, TRUTH, weights), abs=1e-4)


@pytest.mark.parametrize("weights", [np.ones(3000), WEIGHTS])
def test_its_error_is_that_of_resampled_events(weights: np.ndarray) -> None:
    rng, drawn = np.random.default_rng(0), []
    for _ in range(200):
        rows = rng.integers(0, 3000, 3000)
        drawn.append(RocArea(*histograms(SCORES[rows], TRUTH[rows], weights[rows])).value)
    assert RocArea(*histograms(SCORES, TRUTH, weights)).error == pytest.approx(np.std(drawn), rel=0.2)


def test_the_rejection_is_read_off_the_sorted_scores() -> None:
    cut = np.quantile(SCORES[TRUTH], 0.5)
    expected = 1 / (SCORES[~TRUTH] > cut).mean()
    rejection = Rejection(*histograms(SCORES, TRUTH, np.ones(3000)), 0.5)
    assert rejection.value == pytest.approx(expected, rel=0.02)
    passed = (SCORES[~TRUTH] > cut).mean()
    binomial = expected * math.sqrt((1 - passed) / passed / (~TRUTH).sum())
    assert binomial < rejection.error < 2.5 * binomial  # the threshold has an error too


def test_without_background_to_count_there_is_no_rejection() -> None:
    perfect = histograms(np.array([0.9, 0.8, 0.1]), np.array([True, True, False]), np.ones(3))
    assert math.isnan(Rejection(*perfect, 0.5).value) and RocArea(*perfect).value == 1.0
    assert math.isnan(RocArea(*histograms(np.array([0.5]), np.array([True]), np.ones(1))).value)


def test_any_split_gives_the_same() -> None:
    label = RNG.integers(0, 3, 200)
    logits, samples = RNG.normal(size=(200, 3)), Table({"label": label, "jet_pt": RNG.uniform(200, 900, 200)})
    whole = make_metrics(samples, logits, ("a", "b", "c"), JetsMetricsConfig())
    first = make_metrics(samples.slice(0, 33), logits[:33], ("a", "b", "c"), JetsMetricsConfig())
    rest = make_metrics(samples.slice(33), logits[33:], ("a", "b", "c"), JetsMetricsConfig())
    for name, tally in whole.items():
        added = first[name] + rest[name]
        assert added.value == tally.value and (math.isnan(tally.error) or added.error == tally.error), name


def test_one_against_one_uses_the_two_probabilities() -> None:
    label, logits = RNG.integers(0, 3, 300), RNG.normal(size=(300, 3))
    curves = make_metrics(Table({"label": label}), logits, ("a", "b", "c"), JetsMetricsConfig())["c/curves"]
    assert isinstance(curves, RejectionCurves) and curves.backgrounds == ("all", "a", "b")
    of = label != 1
    odds = 1 / (1 + np.exp(logits[of, 0] - logits[of, 2]))
    assert curves.areas()["a"][0] == pytest.approx(_area(odds, label[of] == 2, np.ones(of.sum())), abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("style", ["CMS", "ATLAS"])
def test_curves_are_drawn_in_the_style_of_an_experiment(style: str) -> None:
    sums, squares = histograms(SCORES, TRUTH, WEIGHTS)
    pairs = RejectionCurves(sums[None], squares[None], "top", ("QCD",), style)
    axes = pairs.draw().axes[0]
    assert axes.get_xlabel() == "top efficiency" and axes.get_yscale() == "log"
    assert len(axes.lines) == 1 and "AUC 0.8" in str(axes.lines[0].get_label())
    assert pairs.figure("curves") == pairs.figure("curves")


def test_scores_are_drawn_as_shares() -> None:
    drawn = ScoreHistograms(*histograms(SCORES, TRUTH, WEIGHTS), "top", "QCD").figure("scores")
    assert sum(value or 0 for value in drawn["data"][0]["y"][:-1]) == pytest.approx(1, rel=1e-4)
    assert [trace["name"] for trace in drawn["data"]] == ["top", "QCD"]


def test_negative_weights_are_accepted() -> None:
    weights = np.where(np.arange(3000) % 10 == 0, -1.0, 1.0)
    area = RocArea(*histograms(SCORES, TRUTH, weights))
    assert area.value == pytest.approx(_area(SCORES, TRUTH, weights), abs=1e-3)
    assert 0.005 < area.error < 0.05


def test_scores_are_drawn_between_0_and_1() -> None:
    """One bin of 50 for each score; bins without jets are gaps."""
    scores, truth = np.array([0.0199, 0.31, 0.31, 0.97]), np.array([False, False, True, True])
    drawn = ScoreHistograms(*histograms(scores, truth, np.ones(4)), "top", "QCD").figure("scores")
    shares = [{place: value for place, value in enumerate(trace["y"][:-1]) if value} for trace in drawn["data"]]
    assert shares == [{15: 0.5, 48: 0.5}, {0: 0.5, 15: 0.5}]
    assert drawn["data"][0]["x"] == pytest.approx(np.linspace(0, 1, 51)) and drawn["data"][0]["y"][1] is None
    assert drawn["layout"]["title"]["text"] == "Discriminant, top against QCD"
    assert drawn["layout"]["yaxis"]["type"] == "log"


def test_a_spread_needs_more_than_half_of_the_replicas() -> None:
    assert spread([1.0, 3.0, math.inf]) == pytest.approx(math.sqrt(2))
    assert math.isnan(spread([1.0, 3.0, math.nan, math.nan]))


def test_replicas_have_the_mean_and_the_spread_of_weighted_counts() -> None:
    """Signal and background in bins with plain, weighted and cancelling weights; one bin is empty in both."""
    sums = np.array([[400.0, 90.0, 1.0, 0.0], [100.0, 0.0, 10.0, 0.0]])
    squares = np.array([[400.0, 270.0, 50.0, 0.0], [100.0, 0.0, 20.0, 0.0]])
    drawn = replicas(sums, squares, seed=1)
    assert drawn.shape == (400, 2, 3)
    assert (np.abs(drawn.mean(axis=0) - sums[:, :3]) <= 4 * np.sqrt(squares[:, :3] / 400)).all()
    np.testing.assert_allclose(drawn.std(axis=0), np.sqrt(squares[:, :3]), rtol=0.12)
    assert np.array_equal(drawn, replicas(sums, squares, seed=1)) and not np.array_equal(drawn, replicas(sums, squares))


def test_weights_that_cancel_are_drawn_from_a_normal_distribution() -> None:
    """Small weights of both signs: no Poisson number has this sum and these squares."""
    drawn = replicas(np.array([[0.6], [0.0]]), np.array([[0.365], [0.0]]), seed=1)[:, 0, 0]
    assert abs(drawn.mean() - 0.6) < 4 * math.sqrt(0.365 / 400)
    assert (drawn < 0).mean() == pytest.approx(0.16, abs=0.06), "a normal distribution, one deviation above 0"


def test_a_rejection_interpolates_between_thresholds() -> None:
    """Half of the signal in each of two bins, a tenth and nine tenths of the background."""
    sums = np.zeros((2, 4000))
    sums[:, [3000, 1000]] = [[5, 5], [1, 9]]
    assert rejection(sums, 0.5) == pytest.approx(10)
    assert rejection(sums, 0.75) == pytest.approx(1 / (0.1 + 0.45))
    ends = np.zeros((2, 4000))
    ends[0, 0] = ends[1, -1] = 1
    assert rejection(ends, 0.5) == 1.0, "the highest scores are those of the background"
    for empty in (0, 1):
        missing = sums.copy()
        missing[empty] = 0
        assert math.isnan(rejection(missing, 0.5))


def test_curves_are_shown_as_a_picture() -> None:
    sums, squares = histograms(SCORES, TRUTH, WEIGHTS)
    drawn = RejectionCurves(sums[None], squares[None], "top", ("QCD",), "CMS").figure("curves")
    assert drawn["layout"]["title"]["text"] == "Rejection against efficiency, top"
    assert drawn["layout"]["images"][0]["source"].startswith("data:image/svg+xml;base64,")
