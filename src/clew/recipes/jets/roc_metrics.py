"""Metrics from ROC curves: areas, rejections at fixed efficiency, and their errors by bootstrap.

Scores are stored as histograms of weights and of squared weights, in the fine bins of `clew.metrics.Roc`. Drawing
events with replacement is the same as drawing the content of every bin from a Poisson distribution. The errors are
therefore
those of a bootstrap over events, computed at the end, and the same for any split of the data. With weights, a bin is
treated as a Poisson number of events of equal weight, with the same sum of weights and sum of squares.
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
SCORE_BINS = 50
"""Number of bins in plots of scores."""


def histograms(scores: ArrayLike, signal: ArrayLike, weights: ArrayLike) -> tuple[Floats, Floats]:
    """Sums of weights and of squared weights, each (2, bins): signal, background."""
    weight = np.asarray(weights, dtype=np.float64)
    histograms = [metrics.Roc.of(scores, signal, item) for item in (weight, weight**2)]
    sums, squares = (np.stack([item.signal, item.background]) for item in histograms)
    return sums, squares


def roc_area(sums: Floats) -> float:
    """Area under the ROC curve; NaN without signal or without background."""
    return metrics.Roc(sums[0], sums[1]).value


def rejection(sums: Floats, efficiency: float) -> float:
    """One over the background efficiency at a signal efficiency; NaN if no background passes."""
    fake, real = metrics.Roc(sums[0], sums[1]).rates()
    if not real[-1] or not fake[-1]:
        return math.nan
    passed = float(np.interp(efficiency, real, fake))
    return 1 / passed if passed > 0 else math.nan


def replicas(sums: Floats, squares: Floats, seed: int = 0) -> Floats:
    """Bootstrap replicas (REPLICAS, 2, filled bins). Empty bins are removed."""
    filled = (squares > 0).any(axis=0)
    total, square = sums[:, filled], np.maximum(squares[:, filled], 1e-300)
    rng, count = np.random.default_rng(seed), total**2 / square
    cancelled = (count < 0.99) & (
        squares[:, filled] > 0
    )  # below one: weights of both signs, which no Poisson number describes
    drawn = rng.poisson(count, (REPLICAS, *count.shape)) * np.where(
        cancelled, 0.0, square / np.where(total, total, 1.0)
    )
    if cancelled.any():
        drawn += np.where(cancelled, total + rng.normal(size=drawn.shape) * np.sqrt(square), 0.0)
    return np.asarray(drawn)


def spread(values: ArrayLike) -> float:
    """Standard deviation of replicas; NaN if half of them or more have no value."""
    array = np.asarray(values, dtype=np.float64)
    finite = array[np.isfinite(array)]
    return float(finite.std(ddof=1)) if len(finite) > len(array) / 2 else math.nan


@dataclass(frozen=True)
class RocArea(metrics.Metric):
    """The area under a ROC curve, with its error."""

    sums: Floats
    squares: Floats

    @property
    def value(self) -> float:
        return roc_area(self.sums)

    @property
    def error(self) -> float:
        return spread([roc_area(replica) for replica in replicas(self.sums, self.squares)])


@dataclass(frozen=True)
class Rejection(metrics.Metric):
    """One over the background efficiency at a fixed signal efficiency, with its error."""

    sums: Floats
    squares: Floats
    efficiency: float = field(metadata={"label": True})

    @property
    def value(self) -> float:
        return rejection(self.sums, self.efficiency)

    @property
    def error(self) -> float:
        return spread([rejection(replica, self.efficiency) for replica in replicas(self.sums, self.squares)])


@dataclass(frozen=True)
class ScoreHistograms(metrics.Metric):
    """Distribution of the discriminant for signal and background, each normalised to one."""

    scalar: ClassVar[bool] = False

    sums: Floats
    squares: Floats
    signal: str
    background: str

    @property
    def value(self) -> float:
        return roc_area(self.sums)

    def figure(self, title: str) -> figure.Figure:
        edges = np.linspace(0, 1, SCORE_BINS + 1)
        reach, bins = metrics.Roc.REACH, metrics.Roc.BINS
        logit = (np.arange(bins) + 0.5) * (2 * reach / bins) - reach
        place = np.minimum((SCORE_BINS / (1 + np.exp(-logit))).astype(np.int64), SCORE_BINS - 1)
        lines = []
        for number, name in enumerate((self.signal, self.background)):
            counts = np.bincount(place, weights=self.sums[number], minlength=SCORE_BINS)
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
class RejectionCurves(metrics.Metric):
    """ROC curves of one signal against several backgrounds, drawn as rejection against efficiency."""

    scalar: ClassVar[bool] = False

    sums: Floats
    """(backgrounds, 2, bins)"""
    squares: Floats
    signal: str
    backgrounds: tuple[str, ...] = field(metadata={"label": True})
    style: str

    @property
    def value(self) -> float:
        return roc_area(self.sums[0])

    def areas(self) -> dict[str, tuple[float, float]]:
        """Area and error against each background."""
        rows = zip(self.backgrounds, self.sums, self.squares, strict=True)
        return {name: (RocArea(sums, squares).value, RocArea(sums, squares).error) for name, sums, squares in rows}

    def figure(self, title: str) -> figure.Figure:
        from clew.recipes.jets import rejection_plot

        return figure.picture(
            rejection_plot.draw_svg(self, self.style), title=f"Rejection against efficiency, {self.signal}"
        )

    def draw(self, style: str | None = None) -> Drawing:
        """A matplotlib figure in a style of mplhep. Save it with `savefig("roc.pdf")`."""
        from clew.recipes.jets import rejection_plot

        return rejection_plot.draw_rejections(self, style or self.style)
