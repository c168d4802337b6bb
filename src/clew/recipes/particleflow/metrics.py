"""Metrics of particle flow. They are sums and counts, so they are exact for any split of the events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from clew import Section, Table, metrics
from clew.recipes.particleflow import jet_metrics
from clew.recipes.particleflow.columns import CLASSES, ELEMENTS, NEUTRAL_HADRON, NONE, PHOTON, TARGETS
from clew.recipes.particleflow.metric_types import ClassRatioCurve, ResolutionHistogram, ResponseHistogram
from clew.recipes.particleflow.rule_based import RuleBasedConfig, reconstruct_by_rule

Floats = NDArray[np.float64]
PARTICLES = CLASSES[1:]
RATIO_EDGES = np.linspace(0, 2, 81)
ENERGY_RATIO_EDGES = np.linspace(0, 5, 501)


class ParticleFlowMetricsConfig(Section):
    """Bins of the figures, and the definition of jets."""

    padded_length: Annotated[int, Field(ge=0)] = 6400
    """Length to which events are padded in `accuracy_padded`, the accuracy of the benchmark of 2022, which counts
    padding as correct. 0: do not compute it."""
    pt_edges: tuple[float, ...] = (0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200)
    """Edges of the bins in pT, GeV."""
    eta_edges: tuple[float, ...] = tuple(np.arange(-5, 5.1, 0.5).tolist())
    """Edges of the bins in pseudorapidity."""
    jets: bool = True
    """Whether to cluster jets, if fastjet is installed."""
    jet_radius: Annotated[float, Field(gt=0)] = 0.4
    """Radius parameter R of anti-kt jets."""
    jet_pt: Annotated[float, Field(gt=0)] = 20.0
    """Minimum pT of a true jet, GeV."""
    jet_match: Annotated[float, Field(gt=0)] = 0.2
    """Maximum distance in eta-phi between a predicted jet and its true jet."""
    rule: bool = True
    """Whether `clew evaluate` computes the metrics of rule-based particle flow as well, as `rule/...`."""
    rule_based: RuleBasedConfig = RuleBasedConfig()


def make_metrics(
    samples: Table, objects: Table, settings: ParticleFlowMetricsConfig, true_jets: Sequence[Floats] | None = None
) -> dict[str, metrics.Metric]:
    """Return accuracy, efficiency and fake rate of each class (also against pt and eta), jet and missing-pT metrics.

    The efficiency of a class is the fraction of its true elements that are predicted as this class. The fake rate is
    the fraction of elements predicted as a class whose true class is another one or none. Metrics whose names start
    with `inside/` and `outside/` count the elements (or true jets) inside and outside the acceptance of the tracker.
    `true_jets` are those of `jet_metrics.cluster_true_jets`, if they are known already.
    """
    truth, predicted = true_particles(samples), {name: objects.ragged(name).values for name in objects}
    weight = samples.weights[samples.ragged(TARGETS).events]
    true_class, predicted_class = truth["pid"].astype(np.int64), predicted["pid"].astype(np.int64)
    correct = true_class == predicted_class
    results = element_metrics(samples, truth, objects)
    if settings.padded_length:
        results["accuracy_padded"] = _padded_accuracy(samples, correct, weight, settings.padded_length)
    results |= _responses(truth, predicted, correct & (true_class != NONE), weight)
    results |= jet_metrics.make_jet_metrics(samples, truth, objects, settings, true_jets)
    results["confusion"] = metrics.Confusion.of(predicted_class, true_class, CLASSES, weight)
    return results | _curves(truth, predicted, correct, weight, settings)


def rule_metrics(
    samples: Table, settings: ParticleFlowMetricsConfig, true_jets: Sequence[Floats] | None = None
) -> dict[str, metrics.Metric]:
    """Return the metrics of rule-based particle flow on these samples: of elements, jets and missing pT.

    `true_jets` are those of `jet_metrics.cluster_true_jets`, if they are known already.
    """
    truth, objects = true_particles(samples), reconstruct_by_rule(samples.ragged(ELEMENTS), settings.rule_based)
    return {
        **element_metrics(samples, truth, objects),
        **jet_metrics.make_jet_metrics(samples, truth, objects, settings, true_jets),
    }


def element_metrics(samples: Table, truth: dict[str, Floats], objects: Table) -> dict[str, metrics.Metric]:
    """Return accuracy, efficiencies, fake rates and energy resolutions of neutral classes, of all and by region."""
    predicted, weight = objects.ragged("pid").values, samples.weights[samples.ragged(TARGETS).events]
    true, energy = truth["pid"].astype(np.int64), objects.ragged("energy").values / np.maximum(truth["energy"], 1e-6)
    eta = samples.ragged(ELEMENTS).values[:, 2] if ELEMENTS in samples else truth["eta"]
    results: dict[str, metrics.Metric] = {}
    for prefix, region in jet_metrics.region_masks(eta).items():
        results[f"{prefix}accuracy"] = metrics.Ratio.of((predicted == true)[region], weight[region])
        for number, name in enumerate(PARTICLES, 1):
            short, is_true, is_predicted = (
                name.replace(" ", "_"),
                region & (true == number),
                region & (predicted == number),
            )
            both = is_true & is_predicted
            results[f"{prefix}efficiency/{short}"] = metrics.Ratio.of(both[is_true], weight[is_true])
            results[f"{prefix}fake/{short}"] = metrics.Ratio.of(~both[is_predicted], weight[is_predicted])
            if number in (NEUTRAL_HADRON, PHOTON):
                what = f"energy of {name}s{jet_metrics.REGION_TITLES[prefix]}"
                results[f"{prefix}energy_resolution/{short}"] = ResolutionHistogram.of(
                    energy[both], ENERGY_RATIO_EDGES, axis="predicted / true", what=what, weights=weight[both]
                )
    return results


def true_particles(samples: Table) -> dict[str, Floats]:
    """Return the true particles in the columns of `reconstruct`, one value per element."""
    pid, charge, pt, eta, sine, cosine, energy = samples.ragged(TARGETS).values.T.astype(np.float64)
    return {"pid": pid, "charge": charge, "pt": pt, "eta": eta, "phi": np.arctan2(sine, cosine), "energy": energy}


def _padded_accuracy(samples: Table, correct: NDArray[np.bool_], weight: Floats, length: int) -> metrics.Ratio:
    empty = np.maximum(length - samples.ragged(TARGETS).lengths, 0) @ samples.weights
    return metrics.Ratio(float(weight[correct].sum() + empty), float(weight.sum() + empty))


def _responses(
    truth: dict[str, Floats], predicted: dict[str, Floats], correct: NDArray[np.bool_], weight: Floats
) -> dict[str, metrics.Metric]:
    """Return predicted over true pT and energy of particles of the correct class."""
    results: dict[str, metrics.Metric] = {}
    for name in ("pt", "energy"):
        ratio = predicted[name][correct] / np.maximum(truth[name][correct], 1e-6)
        what = f"{'pT' if name == 'pt' else 'energy'} of particles of the right class"
        axis = "predicted / true"
        results[f"{name}_response"] = ResponseHistogram.of(
            ratio, RATIO_EDGES, axis=axis, what=what, weights=weight[correct]
        )
    return results


def _curves(
    truth: dict[str, Floats],
    predicted: dict[str, Floats],
    correct: NDArray[np.bool_],
    weight: Floats,
    settings: ParticleFlowMetricsConfig,
) -> dict[str, metrics.Metric]:
    results: dict[str, metrics.Metric] = {}
    axes: Sequence[tuple[str, tuple[float, ...], str]] = (
        ("pt", settings.pt_edges, "pT [GeV]"),
        ("eta", settings.eta_edges, "pseudorapidity"),
    )
    for name, edges, axis in axes:
        kinds = (("efficiency", truth, correct, "true"), ("fake", predicted, ~correct, "predicted"))
        for what, particles, passed, source in kinds:
            results[f"{what}_{name}"] = ClassRatioCurve.of(
                particles[name],
                passed,
                particles["pid"],
                edges,
                PARTICLES,
                axis=f"{source} {axis}",
                label="fake rate" if what == "fake" else what,
                weights=weight,
            )
    return results
