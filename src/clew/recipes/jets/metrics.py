"""How well classes are told apart, as tallies: exact for any split of the jets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from clew import Section, Table, metrics
from clew.recipes.jets.curves import Area, Pairs, Rejection, Scores, histograms
from clew.recipes.jets.inputs import LABEL

Floats = NDArray[np.float64]
Efficiency = Annotated[float, Field(gt=0, lt=1)]


class Judging(Section):
    """What is signal and what is background, and where they are compared."""

    signals: tuple[str, ...] = ()
    """Classes to be found. Default: the second of two, all of more."""
    backgrounds: tuple[str, ...] = ()
    """Classes they are told from. Default: all others."""
    efficiencies: tuple[Efficiency, ...] = (0.3, 0.5, 0.7)
    """Of the signal, at which the rejection of background (one over its efficiency) is given."""
    pt_edges: tuple[float, ...] = (200, 300, 400, 500, 550, 600, 650, 700, 800, 1000)
    """Bins in which accuracy is shown against `jet_pt`, where samples keep it."""
    style: str = "CMS"
    """Of the plots: one of mplhep's (CMS, ATLAS, LHCb2, ALICE)."""

    def check(self, classes: Sequence[str]) -> None:
        """That its classes exist.

        Raises:
            ValueError: one does not.
        """
        for name in (*self.signals, *self.backgrounds):
            if name not in classes:
                raise ValueError(f"judging: no class '{name}', only {', '.join(classes)}")

    def pairs(self, classes: Sequence[str]) -> dict[str, list[str]]:
        """Every signal and its backgrounds."""
        signals = self.signals or (classes[1:] if len(classes) == 2 else classes)
        rest = self.backgrounds or classes
        return {signal: [name for name in rest if name != signal] for signal in signals}


def tallies(samples: Table, logits: Floats, classes: Sequence[str], settings: Judging) -> dict[str, metrics.Metric]:
    """Accuracy and confusion; of every signal the area under its ROC curve, rejections, curves and scores.

    With several signals names are `SIGNAL/auc`, and so on: `auc` is that of the signal against all its backgrounds, the
    discriminant p(signal) / (p(signal) + sum of p(background)).
    """
    label, weights, said = samples.fixed(LABEL), samples.weights, logits.argmax(axis=1)
    found: dict[str, metrics.Metric] = {"accuracy": metrics.Ratio.of(said == label, weights)}
    pairs = settings.pairs(classes)
    for signal, backgrounds in pairs.items():
        task = f"{signal}/" if len(pairs) > 1 else ""
        own = _signal(logits, label, weights, classes, signal, backgrounds, settings)
        found |= {f"{task}{name}": value for name, value in own.items()}
    found["confusion"] = metrics.Confusion.of(said, label, classes, weights)
    if "jet_pt" in samples:
        x, edges = samples.fixed("jet_pt"), settings.pt_edges
        found["accuracy_pt"] = metrics.Binned.of(
            x, said == label, edges, axis="jet pT [GeV]", label="accuracy", weights=weights
        )
    return found


def _signal(
    logits: Floats,
    label: NDArray[np.int64],
    weights: Floats,
    classes: Sequence[str],
    signal: str,
    backgrounds: Sequence[str],
    settings: Judging,
) -> dict[str, metrics.Metric]:
    """One signal against all its backgrounds together, and against each."""
    number = {name: place for place, name in enumerate(classes)}

    def told(names: Sequence[str]) -> tuple[Floats, Floats]:
        against = [number[name] for name in names]
        of = np.isin(label, [number[signal], *against])
        odds = logits[of, number[signal]] - _log_sum(logits[of][:, against])
        return histograms(sigmoid(odds), label[of] == number[signal], weights[of])

    whole = told(backgrounds)
    found: dict[str, metrics.Metric] = {"auc": Area(*whole)}
    for share in settings.efficiencies:
        found[f"rejection_{share * 100:g}"] = Rejection(*whole, share)
    each = [told([name]) for name in backgrounds] if len(backgrounds) > 1 else []
    names = (("all" if each else backgrounds[0]), *(backgrounds if each else ()))
    sums, squares = (np.stack([pair[part] for pair in [whole, *each]]) for part in (0, 1))
    found["curves"] = Pairs(sums, squares, signal, tuple(names), settings.style)
    found["scores"] = Scores(*whole, signal, ", ".join(backgrounds))
    return found


def _log_sum(logits: Floats) -> Floats:
    top = logits.max(axis=1, keepdims=True)
    return np.asarray(top[:, 0] + np.log(np.exp(logits - top).sum(axis=1)))


def sigmoid(logits: Floats) -> Floats:
    """Without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(logits / 2)))


def softmax(logits: Any) -> Floats:
    """Probabilities of classes, without overflow."""
    values = np.asarray(logits, dtype=np.float64)
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
