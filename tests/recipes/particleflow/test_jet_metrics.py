"""Jets and missing momentum of particle flow, on events made by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from clew import Ragged, Table, metrics
from clew.recipes.particleflow.jet_metrics import (
    cluster_jets,
    cluster_true_jets,
    make_jet_metrics,
    match_jets,
    region_masks,
)
from clew.recipes.particleflow.metric_types import ResponseHistogram
from clew.recipes.particleflow.metrics import ParticleFlowMetricsConfig, true_particles

Particle = tuple[float, float, float]
"""pT, eta, phi of a particle."""
NO_JETS = ParticleFlowMetricsConfig(jets=False)


def table(events: list[list[Particle]], **columns: Any) -> Table:
    rows = [[1, 0, pt, eta, math.sin(phi), math.cos(phi), pt * math.cosh(eta)] for ps in events for pt, eta, phi in ps]
    targets = Ragged.from_lengths(np.array(rows, dtype=np.float32).reshape(-1, 7), [len(each) for each in events])
    return Table({"targets": targets, **columns})


def objects(samples: Table) -> Table:
    """Predicted particles: those of another table."""
    column = samples.ragged("targets")
    return Table({name: column.share(values) for name, values in true_particles(samples).items()})


def measured(
    true: list[list[Particle]], predicted: list[list[Particle]], settings: ParticleFlowMetricsConfig, **columns: Any
) -> dict[str, metrics.Metric]:
    samples = table(true, **columns)
    return make_jet_metrics(samples, true_particles(samples), objects(table(predicted)), settings)


def filled(metric: metrics.Metric) -> dict[float, float]:
    """Weights by the lower edge of their bin."""
    assert isinstance(metric, ResponseHistogram)
    return {
        round(float(metric.edges[place]), 4): float(metric.counts[place]) for place in np.flatnonzero(metric.counts)
    }


def test_the_banner_of_fastjet_is_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """It is printed once per process, so this test comes first."""
    pytest.importorskip("fastjet", reason="pip install 'clew[hep]'")
    particles = {"pid": np.ones(1), "pt": np.array([30.0]), "eta": np.zeros(1), "phi": np.zeros(1)}
    cluster_jets(particles, np.array([0, 1]), 0.4, 5.0)
    print("the next line", flush=True)
    assert capfd.readouterr().out == "the next line\n"


def test_missing_momentum_is_that_of_all_particles_of_an_event() -> None:
    """Of the first event 40 of 50 GeV are found; the second has 3 GeV where nothing is true."""
    true, predicted = [[(50.0, 0.0, 0.0)], [(0.0, 0.0, 0.0)]], [[(40.1, 0.0, 0.0)], [(3.1, 0.0, math.pi / 2)]]
    results = measured(true, predicted, NO_JETS, weight=[2.0, 0.5])
    assert filled(results["met_response"]) == {0.8: 2.0, 2.0: 0.5}  # the last bin is above all edges
    assert filled(results["met_resolution"]) == {-10.0: 2.0, 0.0: 2.5, 3.0: 0.5}
    assert sorted(results) == ["met_resolution", "met_response"]


@pytest.mark.parametrize("jets", [True, False])
def test_jets_are_clustered_if_they_are_wanted(jets: bool) -> None:
    pytest.importorskip("fastjet", reason="pip install 'clew[hep]'")
    samples, settings = table([[(50.0, 0.0, 0.0)]]), ParticleFlowMetricsConfig(jets=jets)
    found = cluster_true_jets(true_particles(samples), samples.ragged("targets").offsets, settings)
    assert (found is not None) is jets and ("jet_response" in measured([[]], [[]], settings)) is jets


def test_particles_closer_than_the_radius_are_one_jet() -> None:
    pytest.importorskip("fastjet", reason="pip install 'clew[hep]'")
    particles = {
        "pid": np.array([1.0, 2, 3, 1, 0]),
        "pt": np.array([20.0, 10, 30, 4, 99]),
        "eta": np.array([1.0, 1.3, -3, 0, 2]),
        "phi": np.array([0.1, 0.1, 3, 1, 2]),
    }
    first, second = cluster_jets(particles, np.array([0, 4, 5]), 0.4, 5.0)
    assert len(second) == 0, "the only particle of the second event is none"
    assert first[:, 0] == pytest.approx([30, 30])
    pair, single = first[np.argsort(-first[:, 1])]
    assert single[1:] == pytest.approx([-3, 3])
    pz = 20 * math.sinh(1.0) + 10 * math.sinh(1.3)
    assert pair == pytest.approx([30, math.asinh(pz / 30), 0.1])


def test_jets_are_ordered_by_momentum_and_extreme_particles_are_limited() -> None:
    pytest.importorskip("fastjet", reason="pip install 'clew[hep]'")
    pt, eta, phi = np.array([10.0, 1e9, 20.0, -5.0]), np.array([0.0, 0.0, 99.0, 2.0]), np.array([1.0, 2.0, -1.0, 3.0])
    (jets,) = cluster_jets({"pt": pt, "eta": eta, "phi": phi, "pid": np.ones(4)}, np.array([0, 4]), 0.4, 5.0)
    expected = np.array([[1e5, 0, 2], [20, 8, 2 * np.pi - 1], [10, 0, 1]])
    np.testing.assert_allclose(jets, expected, rtol=1e-6, atol=1e-9)


def test_jets_count_by_region_and_with_the_weight_of_their_event() -> None:
    pytest.importorskip("fastjet", reason="pip install 'clew[hep]'")
    true = [[(50.0, 0.0, 0.0), (40.0, 3.0, 2.0)], [(30.0, 1.0, 1.0), (15.0, 1.0, -1.0)], []]
    predicted = [[(45.1, 0.1, 0.0), (40.1, 3.0, 2.3)], [(15.1, 1.0, 1.1), (20.0, 2.0, 2.0)], []]
    results = measured(true, predicted, ParticleFlowMetricsConfig(), weight=[2.0, 0.5, 7.0])
    assert filled(results["jet_response"]) == filled(results["jet_resolution"]) == {0.9: 2.0, 0.5: 0.5}
    assert filled(results["inside/jet_response"]) == {0.9: 2.0, 0.5: 0.5} and not filled(
        results["outside/jet_response"]
    )
    assert results["jet_efficiency"] == metrics.Ratio(2.5, 4.5, 8.25)
    assert results["inside/jet_efficiency"] == metrics.Ratio(2.5, 2.5, 4.25)
    assert results["outside/jet_efficiency"] == metrics.Ratio(0.0, 2.0, 4.0)
    response = results["outside/jet_response"]
    assert isinstance(response, ResponseHistogram) and response.what == "pT of jets above 20 GeV, outside the tracker"


def test_the_tracker_ends_at_an_eta_of_2_5() -> None:
    masks = region_masks(np.array([-2.6, -2.5, -2.4, 0.0, 2.4, 2.5]))
    inside = [False, False, True, True, True, False]
    assert {name: mask.tolist() for name, mask in masks.items()} == {
        "": [True] * 6,
        "inside/": inside,
        "outside/": [not each for each in inside],
    }


def test_the_nearest_jet_within_the_distance_is_matched() -> None:
    true = np.array([[50.0, 0.0, 0.0], [40.0, 0.5, 0.0]])
    predicted = np.array([[30.0, -0.25, 0.0], [20.0, 0.125, 0.0], [10.0, 1.0, 0.0]])
    assert match_jets(true, predicted, 0.5)[0] == pytest.approx(20 / 50)
    assert math.isnan(match_jets(true, predicted, 0.5)[1]), "the nearest is taken, the next are 0.5 and 0.75 away"
    assert match_jets(true, predicted, 0.51)[1] == pytest.approx(10 / 40)
    assert np.isnan(match_jets(true, np.zeros((0, 3)), 0.5)).all()
