"""Metrics of generated showers, on numbers that can be checked by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from clew.recipes.fastsim.features import Showers
from clew.recipes.fastsim.geometry import Geometry, GridLayer
from clew.recipes.fastsim.metrics import HistogramPair, compare_showers

TRUE, GENERATED = np.array([30.0, 10.0, 0.0, 20.0, 15.0]), np.array([5.0, 15.0, 0.0, 0.0, 5.0])
"""The third bin is empty; the last has an equal share of both."""
EDGES = np.arange(6.0)


def separation(p: np.ndarray, q: np.ndarray) -> float:
    used = p + q > 0
    return float(((p - q)[used] ** 2 / (p + q)[used]).sum() / 2)


def slope(function: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
    """The derivative by each share that is not 0, by differences."""
    steps = 1e-6 * np.eye(len(at))
    return np.array([(function(at + each) - function(at - each)) / 2e-6 if at @ each else 0.0 for each in steps])


def test_separation_power_of_histograms() -> None:
    equal = HistogramPair.of([1, 2, 3], [1, 2, 3], [0, 2.5, 5], axis="x")
    apart = HistogramPair.of([1, 1], [4, 4, 4], [0, 2.5, 5], axis="x")
    assert equal.value == 0 and apart.value == 1
    assert (equal + equal).value == 0 and 0 < (equal + apart).value < 1
    pair = HistogramPair(EDGES, TRUE, GENERATED, "x")
    assert pair.value == pytest.approx(separation(TRUE / 75, GENERATED / 25))


def test_the_error_propagates_the_counts_of_both_histograms() -> None:
    """And the value of two equal sources: a quarter of each further bin that is filled."""
    p, q = TRUE / 75, GENERATED / 25
    slopes = slope(lambda changed: separation(changed, q), p), slope(lambda changed: separation(p, changed), q)
    variance = sum(
        ((each**2 * shares).sum() - (each * shares).sum() ** 2) / count
        for each, shares, count in zip(slopes, (p, q), (75, 25), strict=True)
    )
    equal = (4 - 1) / 4 * (1 / 75 + 1 / 25)
    error = HistogramPair(EDGES, TRUE, GENERATED, "x").error
    assert error == pytest.approx(math.sqrt(variance + equal**2), rel=1e-6)


@pytest.mark.parametrize(("true", "generated"), [(TRUE, 0 * TRUE), (0 * TRUE, TRUE)])
def test_an_empty_histogram_has_no_separation(true: np.ndarray, generated: np.ndarray) -> None:
    pair = HistogramPair(EDGES, true, generated, "x")
    assert math.isnan(pair.value) and math.isnan(pair.error)
    drawn = pair.figure("x")["data"]
    assert sorted(max(trace["y"]) for trace in drawn) == [0, 0.4]


def test_values_outside_count_in_the_outermost_bins() -> None:
    pair = HistogramPair.of([-5, 0.5, 9], [1.5, 7], [0, 1, 2], axis="x")
    assert pair.true.tolist() == [2, 1] and pair.generated.tolist() == [0, 2]


def test_both_histograms_are_drawn_as_shares() -> None:
    drawn = HistogramPair(EDGES, TRUE, GENERATED, "width of layers [mm]").figure("x")
    true, generated = drawn["data"]
    assert true["y"] == pytest.approx([0.4, 2 / 15, 0, 4 / 15, 0.2, 0.2], rel=1e-5)
    assert generated["y"] == [0.2, 0.6, 0, 0, 0.2, 0.2] and true["x"] == generated["x"] == EDGES.tolist()
    assert drawn["layout"]["title"]["text"] == "Width of layers: separation 0.32 ± 0.09"
    assert drawn["layout"]["xaxis"]["title"]["text"] == "width of layers [mm]"


def test_showers_are_compared_by_response_layers_voxels_and_widths() -> None:
    """Two layers of two by two voxels. The second generated shower is empty."""
    geometry = Geometry("two layers", (GridLayer(0, 2, 2), GridLayer(1, 2, 2)))
    true = Showers(np.array([100.0]), np.array([[10.0, 0, 10, 0, 79.9, 0.1, 0, 0]]))
    generated = Showers(np.array([100.0, 50.0]), np.array([[0, 0, 0, 0, 60.0, 0, 0, 0], np.zeros(8)]))
    pairs = compare_showers(true, generated, geometry)

    def filled(name: str) -> list[list[tuple[float, float]]]:
        pair = pairs[f"separation/{name}"]
        return [
            [(round(float(pair.edges[i]), 3), float(counts[i])) for i in np.flatnonzero(counts)]
            for counts in (pair.true, pair.generated)
        ]

    assert filled("response") == [[(1.0, 1)], [(0.5, 1), (0.6, 1)]]
    assert filled("layers") == [[(-0.5, pytest.approx(0.2)), (0.5, pytest.approx(0.8))], [(0.5, 1)]]
    assert filled("voxels") == [[(-1.0, 1), (1.0, 2), (1.875, 1)], [(1.75, 1)]]
    assert filled("lit") == [[(0.5, 1)], [(0.0, 1), (0.12, 1)]]
    assert filled("width") == [[(0.0, 1), (0.5, 1)], [(0.0, 1)]]
