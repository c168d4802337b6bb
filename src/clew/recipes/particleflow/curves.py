"""Tallies that draw several classes in one plot, and ratios of predicted to true."""

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
class ByClass(metrics.Metric):
    """A ratio in bins of something, for each of some classes: `passed`, `total` and `squares` are (classes, bins)."""

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
    ) -> ByClass:
        """Fill from values, booleans and class numbers, of which the first name has 1; others are not counted."""
        values, mask, own = np.asarray(x, float), np.asarray(passed, bool), np.asarray(classes)
        bins, weight = np.asarray(edges, float), np.asarray(weights, float)

        def fill(each: Floats) -> Floats:
            rows = [(values[own == k], each[own == k]) for k in range(1, len(names) + 1)]
            return np.stack([np.histogram(v, bins, weights=w)[0] for v, w in rows]).astype(np.float64)

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
            error = metrics.wilson(self.passed[row], self.total[row], self.squares[row])
            bars = {"type": "data", "array": figure.plain(error), "thickness": 1.2, "width": 0}
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
class Response(metrics.Metric):
    """A histogram of predicted over true; its value is the median. What lies above counts in a last bin of its own,
    which is not drawn. `what` names the thing in titles."""

    edges: Floats = field(metadata={"label": True})
    counts: Floats
    """One more than there are bins."""
    axis: str
    what: str

    @classmethod
    def of(cls, ratio: ArrayLike, edges: ArrayLike, *, axis: str, what: str, weights: ArrayLike) -> Response:
        bins, weight = np.asarray(edges, float), np.asarray(weights, float)
        place = np.clip(np.searchsorted(bins, np.asarray(ratio, float), side="right") - 1, 0, len(bins) - 1)
        return cls(bins, np.bincount(place, weight, len(bins)).astype(np.float64), axis, what)

    def quantile(self, share: float) -> float:
        """Linear within a bin, at most the last edge; NaN where nothing was counted."""
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
        """Half of what the central 68% span."""
        return (self.quantile(0.84) - self.quantile(0.16)) / 2

    @property
    def error(self) -> float:
        """Of the median, as if normally distributed."""
        return 1.2533 * self.width / math.sqrt(self.counts.sum()) if self.counts.sum() else math.nan

    def figure(self, title: str) -> figure.Figure:
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
