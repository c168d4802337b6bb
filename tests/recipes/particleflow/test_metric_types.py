"""Histograms of responses and resolutions, and ratios of several classes: values, errors and what is drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clew import figure
from clew.metrics import wilson_interval
from clew.recipes.particleflow.metric_types import (
    ClassRatioCurve,
    DifferenceHistogram,
    ResolutionHistogram,
    ResponseHistogram,
)

EDGES = np.array([0.0, 1.0, 2.0, 4.0])
COUNTS = np.array([2.0, 6.0, 1.0, 1.0])
"""Of ten entries the last is above all edges."""
WIDTH = (2.8 - 0.8) / 2
"""84% lie below 2 + 0.4 * 2, 16% below 0.8."""


def curve(edges: list[float]) -> ClassRatioCurve:
    x, passed = np.array([1.0, 2, 20, 2, 3, 500]), np.array([True, False, True, True, True, True])
    classes, weights = np.array([1, 1, 1, 2, 0, 2]), np.array([1.0, 2, 3, 4, 5, 6])
    return ClassRatioCurve.of(x, passed, classes, edges, ("a", "b"), axis="x [GeV]", label="share", weights=weights)


def test_entries_are_counted_by_bin_and_above_the_last_edge() -> None:
    made = ResponseHistogram.of(
        [-1, 0.5, 1.0, 3.9, 4.0, 99], EDGES, axis="ratio", what="pT", weights=[1, 2, 3, 4, 5, 6]
    )
    assert made.counts.tolist() == [3, 3, 4, 11] and (made.axis, made.what) == ("ratio", "pT")


def test_quantiles_are_interpolated_within_a_bin() -> None:
    response = ResponseHistogram(EDGES, COUNTS, "ratio", "pT")
    assert [response.quantile(share) for share in (0.1, 0.2, 0.5, 0.8, 0.85, 0.95)] == pytest.approx(
        [0.5, 1, 1.5, 2, 3, 4]
    )
    assert math.isnan(ResponseHistogram(EDGES, 0 * COUNTS, "ratio", "pT").quantile(0.5))


def test_a_response_is_its_median_and_a_resolution_the_width_over_it() -> None:
    """Errors are those of a normal distribution of ten entries."""
    response, resolution, difference = (
        kind(EDGES, COUNTS, "ratio", "pT") for kind in (ResponseHistogram, ResolutionHistogram, DifferenceHistogram)
    )
    assert (response.value, response.width) == pytest.approx((1.5, WIDTH))
    assert response.error == pytest.approx(1.2533 * WIDTH / math.sqrt(10))
    assert (resolution.value, resolution.error) == pytest.approx((WIDTH / 1.5, 0.96 * WIDTH / 1.5 / math.sqrt(10)))
    assert (difference.value, difference.error) == pytest.approx((WIDTH, 0.96 * WIDTH / math.sqrt(10)))


@pytest.mark.parametrize("kind", [ResponseHistogram, ResolutionHistogram, DifferenceHistogram])
def test_nothing_counted_is_nan(kind: type[ResponseHistogram]) -> None:
    empty = kind(EDGES, 0 * COUNTS, "ratio", "pT")
    assert math.isnan(empty.value) and math.isnan(empty.error)


def test_a_resolution_needs_a_median_above_zero() -> None:
    made = ResolutionHistogram(np.array([-2.0, -1.0, 0.0]), np.array([3.0, 1.0, 0.0]), "ratio", "pT")
    assert made.quantile(0.5) < 0 and math.isnan(made.value)


def test_a_response_is_drawn_as_a_density() -> None:
    drawn = ResponseHistogram(EDGES, COUNTS, "ratio", "pT").figure("x")
    assert drawn is not None
    (steps,) = drawn["data"]
    assert steps["x"] == EDGES.tolist() and steps["y"] == pytest.approx([0.2, 0.6, 0.05, 0.05])
    assert steps["name"] == "median 1.500, half of the central 68% 1.000; 10.0% lie above 4" and steps["showlegend"]
    text = {key: drawn["layout"][key]["text"] for key in ("title",)}
    assert text == {"title": "Response, pT"} and drawn["layout"]["xaxis"]["title"]["text"] == "ratio"
    (line,) = drawn["layout"]["shapes"]
    assert [line[key] for key in ("x0", "x1", "y0", "y1")] == [1, 1, 0, 1]
    inside = ResponseHistogram(EDGES, np.array([2.0, 6, 2, 0]), "ratio", "pT").figure("x")
    assert inside is not None and "above" not in inside["data"][0]["name"]


def test_a_difference_is_drawn_as_a_density_and_a_resolution_is_not_drawn() -> None:
    drawn = DifferenceHistogram(EDGES, COUNTS, "GeV", "missing pT").figure("x")
    assert drawn is not None and drawn["layout"]["title"]["text"] == "Difference, missing pT"
    assert drawn["data"][0]["y"] == pytest.approx([0.2, 0.6, 0.05, 0.05]) and drawn["data"][0]["showlegend"]
    assert drawn["data"][0]["name"] == "half of the central 68% 1"
    ResolutionHistogram(EDGES, COUNTS, "ratio", "pT").figure("x")
    assert ResolutionHistogram(EDGES, COUNTS, "ratio", "pT").figures("x") == {}


def test_ratios_count_the_weights_of_each_class() -> None:
    made = curve([1, 10, 100])
    assert made.passed.tolist() == [[1, 3], [4, 0]]
    assert made.total.tolist() == [[3, 3], [4, 0]] and made.squares.tolist() == [[5, 9], [16, 0]]
    assert made.value == pytest.approx(8 / 10)
    assert math.isnan(curve([1000, 2000]).value)


@pytest.mark.parametrize(
    ("edges", "kind", "centres"),
    [
        ([1, 10, 100], "log", [math.sqrt(10), math.sqrt(1000)]),
        ([2, 10, 100], "linear", [6, 55]),
        ([0, 10, 100], "linear", [5, 55]),
    ],
)
def test_ratios_are_drawn_with_intervals_at_the_centres_of_bins(
    edges: list[float], kind: str, centres: list[float]
) -> None:
    made = curve(edges)
    drawn = made.figure("x")
    first, second = drawn["data"]
    assert first["x"] == second["x"] == pytest.approx(centres, rel=1e-5)
    assert drawn["layout"]["xaxis"].get("type", "linear") == kind
    low, high = wilson_interval(made.passed[0], made.total[0], made.squares[0])
    share = made.passed[0] / made.total[0]
    assert first["y"] == pytest.approx(share, rel=1e-5) and second["y"][1] is None
    assert first["error_y"]["array"] == pytest.approx(high - share, abs=1e-5)
    assert first["error_y"]["arrayminus"] == pytest.approx(share - low, abs=1e-5)
    assert (first["error_y"]["thickness"], first["error_y"]["width"]) == (1.2, 0), "many curves in one plot"
    assert first["text"] == figure.plain(made.total[0]) and [first["name"], second["name"]] == ["a", "b"]
    assert first["line"]["color"] != second["line"]["color"] and drawn["layout"]["yaxis"]["range"] == [0, 1.05]
