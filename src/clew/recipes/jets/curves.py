"""ROC curves that add up: areas, rejections at fixed efficiency, and their errors by bootstrap.

What is kept of scores are histograms of weights and of squared weights, in the fine bins of `clew.tally.Roc`. To draw
events anew with replacement is to draw the content of every bin from a Poisson distribution, so errors are those of a
bootstrap over events, found at the end and the same for any split of the data. With weights a bin is a Poisson number
of events of one weight, that has the bin's sum and sum of squares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clew import figure, metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

Floats = NDArray[np.float64]
REPLICAS = 400
COARSE = 50
"""Bins of plotted scores."""


def histograms(scores: ArrayLike, signal: ArrayLike, weights: ArrayLike) -> tuple[Floats, Floats]:
    """Sums and sums of squares of weights (2, bins): signal, background."""
    weight = np.asarray(weights, dtype=np.float64)
    found = [metrics.Roc.of(scores, signal, each) for each in (weight, weight**2)]
    sums, squares = (np.stack([each.signal, each.background]) for each in found)
    return sums, squares


def area(sums: Floats) -> float:
    """Under the ROC curve; NaN without events of one kind."""
    return metrics.Roc(sums[0], sums[1]).value


def rejection(sums: Floats, efficiency: float) -> float:
    """One over the efficiency of background at that of signal; NaN where no background is left to count."""
    fake, real = metrics.Roc(sums[0], sums[1]).rates()
    if not real[-1] or not fake[-1]:
        return math.nan
    passed = float(np.interp(efficiency, real, fake))
    return 1 / passed if passed > 0 else math.nan


def replicas(sums: Floats, squares: Floats, seed: int = 0) -> Floats:
    """Bootstrap replicas (REPLICAS, 2, filled bins), with the bins that hold nothing left out."""
    filled = (squares > 0).any(axis=0)
    total, square = sums[:, filled], np.maximum(squares[:, filled], 1e-300)
    rng, count = np.random.default_rng(seed), total**2 / square
    cancelled = (count < 0.99) & (
        squares[:, filled] > 0
    )  # below one: weights of both signs, which no number stands for
    drawn = rng.poisson(count, (REPLICAS, *count.shape)) * np.where(
        cancelled, 0.0, square / np.where(total, total, 1.0)
    )
    if cancelled.any():
        drawn += np.where(cancelled, total + rng.normal(size=drawn.shape) * np.sqrt(square), 0.0)
    return np.asarray(drawn)


def spread(values: ArrayLike) -> float:
    """Standard deviation of replicas; NaN where half of them have no value."""
    found = np.asarray(values, dtype=np.float64)
    finite = found[np.isfinite(found)]
    return float(finite.std(ddof=1)) if len(finite) > len(found) / 2 else math.nan


@dataclass(frozen=True)
class Area(metrics.Metric):
    """The area under a ROC curve, with its error."""

    sums: Floats
    squares: Floats

    @property
    def value(self) -> float:
        return area(self.sums)

    @property
    def error(self) -> float:
        return spread([area(each) for each in replicas(self.sums, self.squares)])


@dataclass(frozen=True)
class Rejection(metrics.Metric):
    """One over the efficiency of background where signal has a given one, with its error."""

    sums: Floats
    squares: Floats
    efficiency: float = field(metadata={"label": True})

    @property
    def value(self) -> float:
        return rejection(self.sums, self.efficiency)

    @property
    def error(self) -> float:
        return spread([rejection(each, self.efficiency) for each in replicas(self.sums, self.squares)])


@dataclass(frozen=True)
class Scores(metrics.Metric):
    """How the discriminant is distributed, signal and background each to one."""

    scalar: ClassVar[bool] = False

    sums: Floats
    squares: Floats
    signal: str
    background: str

    @property
    def value(self) -> float:
        return area(self.sums)

    def figure(self, title: str) -> figure.Figure:
        edges = np.linspace(0, 1, COARSE + 1)
        reach, bins = metrics.Roc.REACH, metrics.Roc.BINS
        logit = (np.arange(bins) + 0.5) * (2 * reach / bins) - reach
        place = np.minimum((COARSE / (1 + np.exp(-logit))).astype(np.int64), COARSE - 1)
        lines = []
        for number, name in enumerate((self.signal, self.background)):
            counts = np.bincount(place, weights=self.sums[number], minlength=COARSE)
            share = counts / max(counts.sum(), 1e-300)
            lines.append(figure.steps(edges, np.where(share > 0, share, np.nan), name, colour=number))
        return figure.figure(
            lines,
            title=f"Discriminant, {self.signal} against {self.background}",
            x="p(signal) / (p(signal) + p(background))",
            y="share of jets",
            yaxis={"type": "log"},
        )


@dataclass(frozen=True)
class Pairs(metrics.Metric):
    """ROC curves of one signal against several backgrounds; drawn as rejection against efficiency."""

    scalar: ClassVar[bool] = False

    sums: Floats
    """(backgrounds, 2, bins)"""
    squares: Floats
    signal: str
    backgrounds: tuple[str, ...] = field(metadata={"label": True})
    style: str

    @property
    def value(self) -> float:
        return area(self.sums[0])

    def areas(self) -> dict[str, tuple[float, float]]:
        """Area and error against each background."""
        each = zip(self.backgrounds, self.sums, self.squares, strict=True)
        return {name: (Area(sums, squares).value, Area(sums, squares).error) for name, sums, squares in each}

    def figure(self, title: str) -> figure.Figure:
        from clew.recipes.jets import drawing

        return figure.picture(drawing.svg(self, self.style), title=f"Rejection against efficiency, {self.signal}")

    def draw(self, style: str | None = None) -> Drawing:
        """A matplotlib figure in a style of mplhep, ready for `savefig("roc.pdf")`."""
        from clew.recipes.jets import drawing

        return drawing.rejections(self, style or self.style)
