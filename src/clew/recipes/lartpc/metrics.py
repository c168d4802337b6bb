"""Metrics of the classification. They are sums and counts, so they are exact for any split of the events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew import Table, metrics
from clew.recipes.lartpc.columns import CLASSES, ENERGY, LABEL

Floats = NDArray[np.float64]


def softmax(logits: Any) -> Floats:
    """Return the probabilities of the classes (events, classes)."""
    values = np.asarray(logits, dtype=np.float64)
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def make_metrics(samples: Table, logits: Any, edges: Sequence[float]) -> dict[str, metrics.Metric]:
    """Return accuracy, efficiency and purity of each class, the confusion table, and accuracy against energy.

    `summed_scores` is a table like the confusion table, with the sums of the predicted probabilities as its entries.
    """
    label, weights = samples.fixed(LABEL), samples.weights
    predicted = np.asarray(logits).argmax(axis=1)
    results: dict[str, metrics.Metric] = {"accuracy": metrics.Ratio.of(predicted == label, weights)}
    for number, name in enumerate(CLASSES):
        true, selected = label == number, predicted == number
        results[f"{name}/efficiency"] = metrics.Ratio.of(selected[true], weights[true])
        results[f"{name}/purity"] = metrics.Ratio.of(true[selected], weights[selected])
    results["confusion"] = metrics.Confusion.of(predicted, label, CLASSES, weights)
    scores = softmax(logits) * np.asarray(weights, dtype=np.float64)[:, None]
    sums = np.stack([scores[label == number].sum(axis=0) for number in range(len(CLASSES))])
    results["summed_scores"] = metrics.Confusion(sums, CLASSES)
    if ENERGY in samples:
        results["accuracy_energy"] = metrics.Binned.of(
            samples.fixed(ENERGY), predicted == label, edges, axis="energy [GeV]", label="accuracy", weights=weights
        )
    return results
