"""Metrics of jet tagging. They are sums and counts: the result does not depend on how jets are split in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from clew import Section, Table, metrics
from clew.recipes.jets.inputs import LABEL
from clew.recipes.jets.roc_metrics import Rejection, RejectionCurves, RocArea, ScoreHistograms, histograms

Floats = NDArray[np.float64]
Efficiency = Annotated[float, Field(gt=0, lt=1)]


class JetsMetricsConfig(Section):
    """Signal and background classes, and the working points."""

    signals: tuple[str, ...] = ()
    """Signal classes. Default: the second of two classes, or all of three and more."""
    backgrounds: tuple[str, ...] = ()
    """Background classes. Default: all other classes."""
    efficiencies: tuple[Efficiency, ...] = (0.3, 0.5, 0.7)
    """Signal efficiencies at which the background rejection (one over the background efficiency) is reported."""
    pt_edges: tuple[float, ...] = (200, 300, 400, 500, 550, 600, 650, 700, 800, 1000)
    """Bin edges of the plot of accuracy against `jet_pt`, if samples have that column."""
    style: str = "CMS"
    """Style of the plots, one of mplhep (CMS, ATLAS, LHCb2, ALICE)."""

    def check(self, classes: Sequence[str]) -> None:
        """Check that all classes exist.

        Raises:
            ValueError: A class does not exist.
        """
        for name in (*self.signals, *self.backgrounds):
            if name not in classes:
                raise ValueError(f"metrics: no class '{name}', only {', '.join(classes)}")

    def pairs(self, classes: Sequence[str]) -> dict[str, list[str]]:
        """The backgrounds of each signal."""
        signals = self.signals or (classes[1:] if len(classes) == 2 else classes)
        rest = self.backgrounds or classes
        return {signal: [name for name in rest if name != signal] for signal in signals}


def make_metrics(
    samples: Table, logits: Floats, classes: Sequence[str], config: JetsMetricsConfig
) -> dict[str, metrics.Metric]:
    """Accuracy and confusion matrix; for every signal the area under the ROC curve, rejections, curves and scores.

    With several signals the names are `SIGNAL/auc` and so on. `auc` compares the signal with all its backgrounds by the
    discriminant p(signal) / (p(signal) + sum of p(background)).
    """
    label, weights, predicted = samples.fixed(LABEL), samples.weights, logits.argmax(axis=1)
    results: dict[str, metrics.Metric] = {"accuracy": metrics.Ratio.of(predicted == label, weights)}
    pairs = config.pairs(classes)
    for signal, backgrounds in pairs.items():
        task = f"{signal}/" if len(pairs) > 1 else ""
        signal_metrics = _signal_metrics(logits, label, weights, classes, signal, backgrounds, config)
        results |= {f"{task}{name}": value for name, value in signal_metrics.items()}
    results["confusion"] = metrics.Confusion.of(predicted, label, classes, weights)
    if "jet_pt" in samples:
        x, edges = samples.fixed("jet_pt"), config.pt_edges
        results["accuracy_pt"] = metrics.Binned.of(
            x, predicted == label, edges, axis="jet pT [GeV]", label="accuracy", weights=weights
        )
    return results


def _signal_metrics(
    logits: Floats,
    label: NDArray[np.int64],
    weights: Floats,
    classes: Sequence[str],
    signal: str,
    backgrounds: Sequence[str],
    settings: JetsMetricsConfig,
) -> dict[str, metrics.Metric]:
    """Metrics of one signal against all its backgrounds together, and against each of them."""
    number = {name: place for place, name in enumerate(classes)}

    def score_histograms(names: Sequence[str]) -> tuple[Floats, Floats]:
        against = [number[name] for name in names]
        used = np.isin(label, [number[signal], *against])
        odds = logits[used, number[signal]] - _log_sum(logits[used][:, against])
        return histograms(sigmoid(odds), label[used] == number[signal], weights[used])

    against_all = score_histograms(backgrounds)
    results: dict[str, metrics.Metric] = {"auc": RocArea(*against_all)}
    for share in settings.efficiencies:
        results[f"rejection_{share * 100:g}"] = Rejection(*against_all, share)
    against_one = [score_histograms([name]) for name in backgrounds] if len(backgrounds) > 1 else []
    names = (("all" if against_one else backgrounds[0]), *(backgrounds if against_one else ()))
    sums, squares = (np.stack([pair[part] for pair in [against_all, *against_one]]) for part in (0, 1))
    results["curves"] = RejectionCurves(sums, squares, signal, tuple(names), settings.style)
    results["scores"] = ScoreHistograms(*against_all, signal, ", ".join(backgrounds))
    return results


def _log_sum(logits: Floats) -> Floats:
    top = logits.max(axis=1, keepdims=True)
    return np.asarray(top[:, 0] + np.log(np.exp(logits - top).sum(axis=1)))


def sigmoid(logits: Floats) -> Floats:
    """The logistic function, without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(logits / 2)))


def softmax(logits: Any) -> Floats:
    """Probabilities of classes, without overflow."""
    values = np.asarray(logits, dtype=np.float64)
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
