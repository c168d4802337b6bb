"""Metric classes of particle flow: ratios of several classes in one plot, responses and resolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clew import figure, metrics

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ClassRatioCurve(metrics.Metric):
    """A ratio in bins of a variable, for several classes: `passed`, `total` and `squares` are (classes, bins)."""

    scalar: ClassVar[bool] = False

    edges: Floats = field(metadata={"label": True})
    passed: Floats
    total: Floats
    squares: Floats
    names: tuple[str, ...] = field(metadata={"label": True})
    axis: str
    label: str

    @classmethod
    def of(
        cls,
        x: ArrayLike,
        passed: ArrayLike,
        classes: ArrayLike,
        edges: ArrayLike,
        names: Sequence[str],
        *,
        axis: str,
        label: str,
        weights: ArrayLike,
    ) -> ClassRatioCurve:
        """Fill the bins.

        Args:
            x: Values of the variable (n,).
            passed: Which entries count in the numerator (n,).
            classes: Class number of each entry (n,). Class k belongs to names[k - 1]; other numbers are ignored.
            edges: Edges of the bins of x.
            names: Names of the classes.
            axis: Title of the x axis, with its unit in brackets.
            label: Name of the ratio.
            weights: Weight of each entry (n,).
        """
        values, mask, class_number = np.asarray(x, float), np.asarray(passed, bool), np.asarray(classes)
        bins, weight = np.asarray(edges, float), np.asarray(weights, float)
        count = len(bins) - 1
        place = np.searchsorted(bins, values, side="right") - 1
        place[values == bins[-1]] = count - 1
        counted = (place >= 0) & (place < count) & (class_number >= 1) & (class_number <= len(names))
        cell = (class_number[counted].astype(np.int64) - 1) * count + place[counted]

        def fill(each: Floats) -> Floats:
            sums = np.bincount(cell, each[counted], minlength=count * len(names))
            return sums.astype(np.float64).reshape(len(names), count)

        return cls(bins, fill(weight * mask), fill(weight), fill(weight**2), tuple(names), axis, label)

    @property
    def value(self) -> float:
        return float(self.passed.sum() / self.total.sum()) if self.total.sum() else math.nan

    def figure(self, title: str) -> figure.Figure:
        logarithmic = self.edges[0] > 0 and self.edges[-1] > 50 * self.edges[0]
        centre = np.sqrt(self.edges[1:] * self.edges[:-1]) if logarithmic else (self.edges[1:] + self.edges[:-1]) / 2
        traces = []
        for row, name in enumerate(self.names):
            with np.errstate(invalid="ignore", divide="ignore"):
                ratio = np.where(self.total[row] > 0, self.passed[row] / self.total[row], np.nan)
            ends = metrics.wilson_interval(self.passed[row], self.total[row], self.squares[row])
            bars = {**figure.interval_bars(ratio, *ends), "thickness": 1.2, "width": 0}
            more = {"error_y": bars, "text": figure.plain(self.total[row]), "mode": "lines+markers"}
            stroke = {"color": figure.COLOURS[row], "width": 1}
            traces.append(figure.points(centre, ratio, name, colour=row, line=stroke, **more))
        return figure.figure(
            traces,
            title=f"{self.label.capitalize()} against {self.axis.partition(' [')[0]}",
            x=self.axis,
            y=self.label,
            yaxis={"range": [0, 1.05]},
            **({"xaxis": {"type": "log"}} if logarithmic else {}),
        )


@dataclass(frozen=True)
class ResponseHistogram(metrics.Metric):
    """A histogram of predicted over true. Its value is the median.

    Values above the last edge are counted in an extra bin, which is not drawn. `what` names the quantity in titles.
    """

    edges: Floats = field(metadata={"label": True})
    counts: Floats
    """(bins + 1,), the last one for values above the last edge."""
    axis: str
    what: str

    @classmethod
    def of(cls, ratio: ArrayLike, edges: ArrayLike, *, axis: str, what: str, weights: ArrayLike) -> ResponseHistogram:
        bins, weight = np.asarray(edges, float), np.asarray(weights, float)
        place = np.clip(np.searchsorted(bins, np.asarray(ratio, float), side="right") - 1, 0, len(bins) - 1)
        return cls(bins, np.bincount(place, weight, len(bins)).astype(np.float64), axis, what)

    def quantile(self, share: float) -> float:
        """Return a quantile, interpolated linearly within a bin, at most the last edge. NaN if nothing was counted."""
        total = self.counts.sum()
        if not total:
            return math.nan
        below = np.append(0.0, np.cumsum(self.counts[:-1])) / total
        return float(np.interp(share, below, self.edges))

    @property
    def value(self) -> float:
        return self.quantile(0.5)

    @property
    def width(self) -> float:
        """Half the width of the central 68%."""
        return (self.quantile(0.84) - self.quantile(0.16)) / 2

    @property
    def error(self) -> float:
        """Error of the median, for a normal distribution."""
        return 1.2533 * self.width / math.sqrt(self.counts.sum()) if self.counts.sum() else math.nan

    def figure(self, title: str) -> figure.Figure | None:
        share = self.counts / max(self.counts.sum(), 1e-300)
        density = share[:-1] / np.diff(self.edges)
        name = f"median {self.value:.3f}, half of the central 68% {self.width:.3f}"
        name += f"; {share[-1]:.1%} lie above {self.edges[-1]:g}" if share[-1] else ""
        return figure.figure(
            [figure.steps(self.edges, density, name, fill="tozeroy", showlegend=True)],
            title=f"Response, {self.what}",
            x=self.axis,
            y="density",
            shapes=[{"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "yref": "paper", "line": {"dash": "dot"}}],
        )


@dataclass(frozen=True)
class ResolutionHistogram(ResponseHistogram):
    """A histogram of predicted over true. Its value is the resolution: half the central 68% over the median."""

    @property
    def value(self) -> float:
        median = self.quantile(0.5)
        return self.width / median if median > 0 else math.nan

    @property
    def error(self) -> float:
        return _width_error(self.value, self.counts)

    def figure(self, title: str) -> None:
        """No plot: that of the response shows the same."""


@dataclass(frozen=True)
class DifferenceHistogram(ResponseHistogram):
    """A histogram of predicted minus true. Its value is half the width of the central 68%, in the unit of `axis`."""

    @property
    def value(self) -> float:
        return self.width

    @property
    def error(self) -> float:
        return _width_error(self.value, self.counts)

    def figure(self, title: str) -> figure.Figure | None:
        share = self.counts[:-1] / max(self.counts.sum(), 1e-300)
        name = f"half of the central 68% {self.width:.3g}"
        steps = figure.steps(self.edges, share / np.diff(self.edges), name, fill="tozeroy", showlegend=True)
        return figure.figure([steps], title=f"Difference, {self.what}", x=self.axis, y="density")


def _width_error(width: float, counts: Floats) -> float:
    """Return the error of half the central 68%, for a normal distribution."""
    return 0.96 * width / math.sqrt(counts.sum()) if counts.sum() else math.nan
