"""How well particles are told apart, as tallies: exact for any split of the events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew import Table, metrics
from clew.recipes.lartpc.columns import CLASSES, ENERGY, LABEL

Floats = NDArray[np.float64]


def scores(logits: Any) -> Floats:
    """Probabilities of classes (events, classes)."""
    values = np.asarray(logits, dtype=np.float64)
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def tallies(samples: Table, logits: Any, edges: Sequence[float]) -> dict[str, metrics.Metric]:
    """Accuracy, the efficiency and purity of each class, the confusion table, accuracy against energy."""
    label, weights = samples.fixed(LABEL), samples.weights
    said = np.asarray(logits).argmax(axis=1)
    found: dict[str, metrics.Metric] = {"accuracy": metrics.Ratio.of(said == label, weights)}
    for number, name in enumerate(CLASSES):
        true, taken = label == number, said == number
        found[f"{name}/efficiency"] = metrics.Ratio.of(taken[true], weights[true])
        found[f"{name}/purity"] = metrics.Ratio.of(true[taken], weights[taken])
    found["confusion"] = metrics.Confusion.of(said, label, CLASSES, weights)
    if ENERGY in samples:
        found["accuracy_energy"] = metrics.Binned.of(
            samples.fixed(ENERGY), said == label, edges, axis="energy [GeV]", label="accuracy", weights=weights
        )
    return found
