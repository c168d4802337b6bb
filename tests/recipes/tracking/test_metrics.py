"""The metrics of the tracking recipe add up, and weight events."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clew import Dataset, Table, metrics
from clew.metrics import Metric
from clew.recipes.tracking import Tracking

COUNTED = ("efficiency", "purity", "ghost_rate", "event_ratio", "f1", "trackml_score")


@pytest.fixture(scope="module")
def samples(dataset: Dataset) -> Table:
    return dataset.read("train").slice(0, 60)


def measured(samples: Table, logits: NDArray[Any]) -> dict[str, Metric]:
    recipe, outputs = Tracking(), {"output": logits}
    return dict(recipe.metrics(samples, outputs, recipe.reconstruct(samples, outputs)))


def truth(samples: Table) -> NDArray[np.float64]:
    return np.where(samples.ragged("label").values > 0, 12.0, -12.0)


def guesses(samples: Table) -> NDArray[np.float64]:
    """Logits that are mostly right, a function of the samples only."""
    node = samples.ragged("node").values
    starts = samples.ragged("node").offsets[samples.ragged("edge").events][:, None]
    noise = np.sin(1e4 * node[samples.ragged("edge").values + starts].sum(axis=(1, 2)))
    return np.asarray(truth(samples) / 6 + 3 * noise)


def test_perfect_scores_find_every_track_the_graph_holds(samples: Table) -> None:
    result = measured(samples, truth(samples))
    track = samples.ragged("track")
    tracks = sum(len(np.unique(numbers[numbers >= 0])) for numbers in track)
    assert result["efficiency"].value == pytest.approx(samples.ragged("label").values.sum() / tracks)
    assert result["efficiency"].value > 0.95
    assert [result[name].value for name in ("purity", "ghost_rate", "f1", "edge_auc")] == [1, 0, 1, 1]


def test_without_any_score_nothing_is_found_and_purity_is_undefined(samples: Table) -> None:
    result = measured(samples, -truth(samples) * 0 - 30)
    assert [result[name].value for name in ("efficiency", "event_ratio", "f1")] == [0, 0, 0]
    assert math.isnan(result["purity"].value)
    assert math.isnan(result["ghost_rate"].value)


def test_wrong_tracks_are_ghosts(samples: Table) -> None:
    result = measured(samples, -truth(samples))
    assert result["purity"].value == 0
    assert result["ghost_rate"].value == 1


def test_metrics_of_two_halves_add_to_those_of_the_whole(samples: Table) -> None:
    halves = [samples.slice(0, 23), samples.slice(23)]
    added = metrics.add_metrics(measured(half, guesses(half)) for half in halves)
    whole = measured(samples, guesses(samples))
    assert 0.1 < whole["efficiency"].value < 0.95
    for name, item in whole.items():
        for part, value in vars(item).items():
            np.testing.assert_array_equal(getattr(added[name], part), value, err_msg=f"{name}.{part}")


def test_an_event_of_weight_two_counts_as_two_events(samples: Table) -> None:
    weights = np.arange(len(samples)) % 3
    twice = samples.take(np.repeat(np.arange(len(samples)), weights))
    weighted = samples.join({"weight": weights.astype(float)})
    left, right = measured(weighted, guesses(weighted)), measured(twice, guesses(twice))
    for name in (*COUNTED, "edge_auc"):
        assert left[name].value == pytest.approx(right[name].value, rel=1e-12), name


def test_a_negative_weight_takes_an_event_away(samples: Table) -> None:
    three = samples.take([0, 1, 1]).join({"weight": [1.0, 1.0, -1.0]})
    left, right = measured(three, guesses(three)), measured(samples.slice(0, 1), guesses(samples.slice(0, 1)))
    for name in COUNTED:
        assert left[name].value == pytest.approx(right[name].value, rel=1e-12), name


def test_efficiency_against_momentum_and_angle_counts_every_track_in_range(samples: Table) -> None:
    result: dict[str, Any] = measured(samples, truth(samples))
    for name in ("efficiency_pt", "efficiency_theta"):
        assert 0.8 * result["efficiency"].total < result[name].total.sum() <= result["efficiency"].total
        assert (result[name].passed <= result[name].total).all()
