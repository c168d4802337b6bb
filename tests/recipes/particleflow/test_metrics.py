"""Losses and figures of particle flow, on numbers that can be checked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clew import Batch, Ragged, Table
from clew.data.dataset.batch import RaggedTensor
from clew.metrics import Confusion, Ratio
from clew.recipes.particleflow import ParticleFlow, ParticleFlowConfig, generator, jet_metrics, metrics
from clew.recipes.particleflow.generator import ParticleFlowGeneratorConfig
from clew.recipes.particleflow.loss import class_weights, element_losses, flow_loss
from clew.recipes.particleflow.metric_types import ClassRatioCurve, ResponseHistogram
from clew.recipes.particleflow.rule_based import reconstruct_by_rule
from clew.recipes.particleflow.settings import ParticleFlowLossConfig


def _samples(pid: list[int], pt: list[float]) -> Table:
    rows = [[p, 0, x, 0.5, 0.0, 1.0, 2 * x] for p, x in zip(pid, pt, strict=True)]
    column = Ragged.from_lengths(np.array(rows, dtype=np.float32), [2, len(pid) - 2])
    return Table({"targets": column})


def _objects(samples: Table, pid: list[int], factor: float = 1.0) -> Table:
    truth, column = metrics.true_particles(samples), samples.ragged("targets")
    scaled = {name: values * (factor if name in ("pt", "energy") else 1) for name, values in truth.items()}
    return Table({name: column.share(np.asarray(v)) for name, v in {**scaled, "pid": np.array(pid)}.items()})


def test_accuracy_efficiency_and_fakes_count_elements() -> None:
    samples = _samples([1, 1, 2, 3, 0], [1, 2, 3, 4, 0])
    results = metrics.make_metrics(
        samples, _objects(samples, [1, 3, 2, 3, 3]), metrics.ParticleFlowMetricsConfig(padded_length=10)
    )
    values = {name: tally.value for name, tally in results.items()}
    assert values["accuracy"] == pytest.approx(3 / 5)
    assert values["accuracy_padded"] == pytest.approx((3 + 15) / 20)
    assert values["efficiency/charged_hadron"] == 0.5 and values["fake/charged_hadron"] == 0
    assert values["efficiency/photon"] == 1 and values["fake/photon"] == pytest.approx(2 / 3)
    assert np.isnan(values["efficiency/muon"])


def test_a_scale_is_seen_in_every_response() -> None:
    samples = _samples([1, 1, 2, 3, 1], [30, 40, 50, 30, 25])
    results = metrics.make_metrics(
        samples, _objects(samples, [1, 1, 2, 3, 1], 0.81), metrics.ParticleFlowMetricsConfig()
    )
    for name in ("pt_response", "energy_response", "met_response"):
        assert results[name].value == pytest.approx(0.81, abs=0.025), name
    pytest.importorskip("fastjet", reason="pip install 'clew[hep]'")
    assert results["jet_response"].value == pytest.approx(0.81, abs=0.025) and results["jet_efficiency"].value == 1


def test_jets_are_matched_once_and_around_the_seam() -> None:
    true = np.array([[50, 0.0, np.pi - 0.01], [40, 0.1, np.pi - 0.01], [30, 3.0, 0.0]])
    predicted = np.array([[45, 0.0, -np.pi + 0.01]])
    ratio = jet_metrics.match_jets(true, predicted, 0.2)
    assert ratio[0] == pytest.approx(0.9) and np.isnan(ratio[1:]).all()


def test_jets_of_many_events_are_those_of_one_event_at_a_time() -> None:
    pytest.importorskip("fastjet", reason="pip install 'clew[hep]'")
    from tests.recipes.particleflow.jets_one_by_one import cluster_one_by_one

    rng, lengths = np.random.default_rng(2), np.array([0, 400, 1, 0, 250, 30, 0])
    count, offsets = int(lengths.sum()), np.concatenate([[0], np.cumsum(lengths)])
    particles = {"pt": rng.exponential(8, count), "eta": rng.normal(0, 2, count)}
    particles |= {"phi": rng.uniform(-np.pi, np.pi, count), "pid": rng.integers(0, 6, count).astype(np.float64)}
    jets = jet_metrics.cluster_jets(particles, offsets, 0.4, 5.0)
    expected = cluster_one_by_one(particles, offsets, 0.4, 5.0)
    assert sum(map(len, expected)) > 50 and len(jets) == len(lengths)
    for each, reference in zip(jets, expected, strict=True):
        np.testing.assert_allclose(each, reference, rtol=1e-9, atol=1e-9)


def test_momenta_are_summed_by_event() -> None:
    particles = {"pid": np.array([1, 0, 2, 1]), "pt": np.array([3.0, 9.0, 4.0, 5.0]), "phi": np.zeros(4)}
    particles["phi"][2] = np.pi / 2
    sums = jet_metrics.momentum_sums(particles, np.array([0, 2, 2, 4]))
    np.testing.assert_allclose(sums, [[3, 0], [0, 0], [5, 4]], atol=1e-12)


def test_metrics_of_parts_add_up() -> None:
    rng = np.random.default_rng(1)
    x, passed, kind, ones = rng.uniform(1, 100, 90), rng.random(90) < 0.5, rng.integers(0, 3, 90), np.ones(90)

    def curves(rows: slice) -> ClassRatioCurve:
        names, weights = ("a", "b"), ones[rows]
        return ClassRatioCurve.of(
            x[rows], passed[rows], kind[rows], [1, 10, 100], names, axis="x", label="y", weights=weights
        )

    def response(rows: slice) -> ResponseHistogram:
        return ResponseHistogram.of(x[rows] / 50, [0, 0.5, 1, 1.5], axis="x", what="y", weights=ones[rows])

    everything, first, rest = slice(None), slice(0, 30), slice(30, None)
    np.testing.assert_array_equal((curves(first) + curves(rest)).passed, curves(everything).passed)
    assert curves(everything).total.sum() == (kind > 0).sum()
    assert (response(first) + response(rest)).value == response(everything).value
    assert response(everything).counts.sum() == 90 and response(everything).value == pytest.approx(
        np.median(x / 50), abs=0.1
    )


def test_class_weights_are_one_on_average() -> None:
    expected = ParticleFlowLossConfig().expected_counts
    weights = class_weights(expected)
    assert np.average(weights, weights=expected) == pytest.approx(1)
    assert weights[5] / weights[1] == pytest.approx((expected[1] / expected[5]) ** 0.5)


def test_momenta_count_where_there_is_a_particle() -> None:
    targets = torch.tensor([[0.0, 0, 0, 0, 0, 0, 0], [1, 1, 3, 0, 0, 1, 3]])
    momentum = torch.tensor([[3.0, -1, 1, 1, 2], [0, 0, 0, 0, 0]])  # no particle: anything may be predicted
    outputs = {"class": torch.zeros(2, 6), "charge": torch.tensor([0.0, 1]), "momentum": momentum}
    settings = ParticleFlowLossConfig()
    each = element_losses(outputs, targets, settings)
    class_loss = np.log(6) * np.array(class_weights(settings.expected_counts))[[0, 1]]
    huber = 2 * (np.log(4) - 0.5) + 0.5  # of log(1 + 3) twice, and of a cosine of 1
    np.testing.assert_allclose(each.numpy(), class_loss + np.array([0, huber]), rtol=1e-5)


def test_padding_counts_with_the_weight_of_its_event() -> None:
    samples = _samples([1, 1, 2, 3, 0], [1, 2, 3, 4, 0]).join({"weight": [3.0, 0.5]})
    objects = _objects(samples, [1, 3, 2, 3, 3])
    results = metrics.make_metrics(samples, objects, metrics.ParticleFlowMetricsConfig(padded_length=10))
    right, all_elements, padding = 3 * 1 + 0.5 * 2, 3 * 2 + 0.5 * 3, 3 * 8 + 0.5 * 7
    assert results["accuracy"].value == pytest.approx(right / all_elements)
    assert results["accuracy_padded"].value == pytest.approx((right + padding) / (all_elements + padding))


def test_a_batch_with_capacity_has_the_loss_of_its_elements() -> None:
    """The items behind the last event have no weight, whatever the network predicts there."""
    offsets, targets = torch.tensor([0, 2, 5]), torch.rand(5, 7, generator=torch.manual_seed(1))
    columns: dict[str, Tensor | RaggedTensor] = {
        "elements": RaggedTensor(torch.zeros(5, 1), offsets),
        "targets": RaggedTensor(targets, offsets),
    }
    plain = Batch(2, columns, torch.tensor([2.0, 0.5]))
    plain.capacity = {"elements": 9, "targets": 9}
    roomy = plain.empty_with_capacity()
    roomy.fill(plain)
    outputs = {"class": torch.randn(9, 6), "charge": torch.randn(9), "momentum": torch.randn(9, 5)}
    settings = ParticleFlowLossConfig()
    total, weight = flow_loss({name: value[:5] for name, value in outputs.items()}, plain, settings)
    with_room, room_weight = flow_loss(outputs, roomy, settings)
    assert float(with_room) == pytest.approx(float(total), rel=1e-6)
    assert float(room_weight) == float(weight) == 5


def _by_region() -> tuple[Table, Table]:
    """Photons, a neutral hadron and an element without a particle, inside and outside of the tracker."""
    eta, pid, energy = [0.0, 1.0, 3.0, -4.0, 0.5], [3, 3, 2, 3, 0], [0.5, 20.0, 10.0, 30.0, 0.0]
    rows = [[p, 0, e, h, 0.0, 1.0, e] for p, h, e in zip(pid, eta, energy, strict=True)]
    targets = Ragged.from_lengths(np.array(rows, dtype=np.float32), [2, 3])
    elements = targets.share(np.array([[1, e, h, 0, 1, e, e, 0, 0, 0, 0, 0] for h, e in zip(eta, energy, strict=True)]))
    samples = Table({"targets": targets, "elements": elements, "weight": [2.0, 0.5]})
    predicted = {"pid": [3, 3, 2, 1, 0], "energy": [0.75, 10, 5, 30, 0], "pt": [0.25, 20, 10, 30, 0]}
    rest = {"eta": eta, "phi": [0] * 5, "charge": [0] * 5}
    return samples, Table({name: targets.share(np.array(v, float)) for name, v in {**predicted, **rest}.items()})


def _filled(metric: object) -> dict[float, float]:
    assert isinstance(metric, ResponseHistogram)
    return {
        round(float(metric.edges[place]), 4): float(metric.counts[place]) for place in np.flatnonzero(metric.counts)
    }


def test_responses_are_those_of_particles_of_the_right_class() -> None:
    results = metrics.make_metrics(*_by_region(), metrics.ParticleFlowMetricsConfig(jets=False))
    assert _filled(results["pt_response"]) == {0.5: 2.0, 1.0: 2.5}
    assert _filled(results["energy_response"]) == {1.5: 2.0, 0.5: 2.5}
    assert _filled(results["energy_resolution/photon"]) == {1.5: 2.0, 0.5: 2.0}
    assert _filled(results["outside/energy_resolution/neutral_hadron"]) == {0.5: 0.5}
    response, resolution = results["pt_response"], results["outside/energy_resolution/neutral_hadron"]
    assert isinstance(response, ResponseHistogram) and isinstance(resolution, ResponseHistogram)
    assert response.what == "pT of particles of the right class"
    assert resolution.what == "energy of neutral hadrons, outside the tracker"


def test_elements_are_counted_inside_and_outside_of_the_tracker() -> None:
    results = metrics.make_metrics(*_by_region(), metrics.ParticleFlowMetricsConfig(jets=False))
    assert results["accuracy"] == Ratio(5.0, 5.5, 8.75)
    assert results["inside/accuracy"] == Ratio(4.5, 4.5, 8.25) and results["outside/accuracy"] == Ratio(0.5, 1.0, 0.5)
    assert results["outside/efficiency/photon"] == Ratio(0.0, 0.5, 0.25)
    assert results["outside/fake/charged_hadron"] == Ratio(0.5, 0.5, 0.25)
    assert results["inside/fake/charged_hadron"] == Ratio(0.0, 0.0, 0.0)
    confusion = results["confusion"]
    assert isinstance(confusion, Confusion) and confusion.counts[3].tolist() == [0, 0.5, 0, 4, 0, 0]


def test_efficiencies_and_fake_rates_are_plotted_against_momentum_and_angle() -> None:
    settings = metrics.ParticleFlowMetricsConfig(
        jets=False, rule=False, pt_edges=(0.2, 0.4, 1, 50), eta_edges=(-5, 2, 5)
    )
    results = metrics.make_metrics(*_by_region(), settings)
    curves = {name: curve for name, curve in results.items() if isinstance(curve, ClassRatioCurve)}
    assert {name: (curve.axis, curve.label) for name, curve in curves.items()} == {
        "efficiency_pt": ("true pT [GeV]", "efficiency"),
        "fake_pt": ("predicted pT [GeV]", "fake rate"),
        "efficiency_eta": ("true pseudorapidity", "efficiency"),
        "fake_eta": ("predicted pseudorapidity", "fake rate"),
    }
    photon, charged = 2, 0
    assert curves["efficiency_pt"].passed[photon].tolist() == [0, 2, 2]
    assert curves["efficiency_pt"].total[photon].tolist() == [0, 2, 2.5]
    assert curves["fake_pt"].total[photon].tolist() == [2, 0, 2] and not curves["fake_pt"].passed[photon].any()
    assert curves["fake_eta"].passed[charged].tolist() == [0.5, 0]


def test_events_longer_than_the_padded_length_have_no_padding() -> None:
    samples = _samples([1, 1, 2, 3, 0], [1, 2, 3, 4, 0])
    objects = _objects(samples, [1, 3, 2, 3, 3])
    for length, expected in ((2, 3 / 5), (3, 4 / 6)):
        config = metrics.ParticleFlowMetricsConfig(padded_length=length, jets=False)
        assert metrics.make_metrics(samples, objects, config)["accuracy_padded"].value == pytest.approx(expected)
    config = metrics.ParticleFlowMetricsConfig(padded_length=0, jets=False)
    assert "accuracy_padded" not in metrics.make_metrics(samples, objects, config)


def test_an_evaluation_adds_metrics_of_the_rule_if_they_are_wanted() -> None:
    samples, objects = _by_region()
    for rule in (True, False):
        settings = metrics.ParticleFlowMetricsConfig(jets=False, rule=rule)
        recipe = ParticleFlow(ParticleFlowConfig(metrics=settings))
        results = recipe.evaluation_metrics(samples, {}, objects)
        assert ("rule/accuracy" in results) is ("rule/met_response" in results) is rule
        assert recipe.evaluation_metrics(samples.drop("elements"), {}, objects) == {}
    without = metrics.make_metrics(samples.drop("elements"), objects, settings)
    assert without["inside/accuracy"] == metrics.make_metrics(samples, objects, settings)["inside/accuracy"]


def test_a_curve_counts_what_numpys_histogram_counts() -> None:
    numbers = np.random.default_rng(4)
    edges = np.array([0.0, 1.0, 2.5, 4.0])
    x = np.concatenate([numbers.uniform(-1, 5, 300), edges])
    classes, weights = numbers.integers(0, 5, len(x)), numbers.uniform(0, 2, len(x))
    passed = numbers.random(len(x)) < 0.4
    curve = ClassRatioCurve.of(x, passed, classes, edges, ("a", "b", "c"), axis="x", label="ratio", weights=weights)
    for number in range(3):
        mine = classes == number + 1
        expected = [np.histogram(x[mine], edges, weights=w[mine])[0] for w in (weights * passed, weights, weights**2)]
        counted = [curve.passed[number], curve.total[number], curve.squares[number]]
        np.testing.assert_allclose(counted, expected, rtol=1e-12)


def test_true_jets_of_a_batch_are_found_once_for_network_and_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = ParticleFlow(ParticleFlowConfig())
    table = generator.make_events(2, 1, 0, ParticleFlowGeneratorConfig(kind="parametric", pileup=5))
    objects, calls = reconstruct_by_rule(table.ragged("elements")), list[float]()
    cluster = jet_metrics.cluster_jets

    def counted(particles: Any, offsets: Any, radius: float, min_pt: float) -> Any:
        calls.append(min_pt)
        return cluster(particles, offsets, radius, min_pt)

    monkeypatch.setattr(jet_metrics, "cluster_jets", counted)
    network = recipe.metrics(table, {}, objects)
    rule = recipe.evaluation_metrics(table, {}, objects)
    assert calls.count(recipe.config.metrics.jet_pt) == 1 and len(calls) == 3
    assert rule["rule/jet_efficiency"].value == network["jet_efficiency"].value
