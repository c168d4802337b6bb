"""Metrics that add up.

A metric of a batch is a *tally*: sums and counts, never an average. Tallies of two batches, or of two ranks,
are added, and only the end result is divided; so a metric is exact under any split of the data, and padding or
empty batches cannot touch it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clew import figure

T = TypeVar("T", bound="Metric")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """Base: numbers and arrays add, labels (strings and edges) must agree."""

    scalar: ClassVar[bool] = True
    """Whether the value belongs in tables and curves, or the tally is there for its plot."""

    @property
    def value(self) -> float:
        """The metric; NaN where nothing was counted."""
        raise AssertionError("a tally defines its value")

    @property
    def error(self) -> float:
        """One standard deviation of statistical error, or NaN where none is defined."""
        return math.nan

    def figure(self, title: str) -> figure.Figure | None:
        """A plot, for tallies that are one."""
        return None

    def __add__(self: T, other: T) -> T:
        if type(self) is not type(other):
            raise TypeError(f"cannot add {type(other).__name__} to {type(self).__name__}")
        added: dict[str, Any] = {}
        for part in fields(self):
            mine, theirs = getattr(self, part.name), getattr(other, part.name)
            if part.metadata.get("label") or isinstance(mine, str):
                assert np.array_equal(mine, theirs), f"{part.name} differs: {mine} and {theirs}"
                added[part.name] = mine
            else:
                added[part.name] = mine + theirs
        return type(self)(**added)


@dataclass(frozen=True)
class Mean(Metric):
    """A weighted mean: losses, for example."""

    total: float
    weight: float

    @property
    def value(self) -> float:
        return self.total / self.weight if self.weight else math.nan


@dataclass(frozen=True)
class Ratio(Metric):
    """Passed out of all. `squares` is the sum of squared weights of all; leave it out where every weight is 1."""

    passed: float
    total: float
    squares: float = -1.0

    def __post_init__(self) -> None:
        if self.squares < 0:
            object.__setattr__(self, "squares", float(self.total))

    @classmethod
    def of(cls, passed: ArrayLike, weights: ArrayLike | None = None) -> Ratio:
        """Count a boolean array, weighted if weights are given."""
        mask = np.asarray(passed, dtype=bool)
        if weights is None:
            return cls(float(mask.sum()), float(mask.size))
        weight = np.asarray(weights, dtype=np.float64)
        return cls(float(weight[mask].sum()), float(weight.sum()), float((weight**2).sum()))

    @property
    def value(self) -> float:
        return self.passed / self.total if self.total else math.nan

    @property
    def error(self) -> float:
        return float(wilson(self.passed, self.total, self.squares))


@dataclass(frozen=True)
class F1(Metric):
    """Harmonic mean of precision and recall, from true and false positives and false negatives."""

    hits: float
    false: float
    missed: float

    @classmethod
    def of(cls, predicted: ArrayLike, truth: ArrayLike, weights: ArrayLike | None = None) -> F1:
        """Count two boolean arrays."""
        said, true = np.asarray(predicted, dtype=bool), np.asarray(truth, dtype=bool)
        weight = np.ones(said.shape) if weights is None else np.asarray(weights, dtype=np.float64)
        return cls(
            float(weight[said & true].sum()),
            float(weight[said & ~true].sum()),
            float(weight[~said & true].sum()),
        )

    @property
    def value(self) -> float:
        below = 2 * self.hits + self.false + self.missed
        return 2 * self.hits / below if below else math.nan

    @property
    def error(self) -> float:
        """First order, with Poisson counts."""
        a, b = self.hits, self.false + self.missed
        below = 2 * a + b
        return math.sqrt(max(4 * a * b * (a + b), 0.0)) / below**2 if below else math.nan


@dataclass(frozen=True)
class Binned(Metric):
    """A ratio in bins of something: efficiency against pT. `axis` names it, unit included; `squares` as in Ratio."""

    scalar: ClassVar[bool] = False

    edges: Floats = field(metadata={"label": True})
    passed: Floats
    total: Floats
    squares: Floats
    axis: str
    label: str

    @classmethod
    def of(
        cls,
        x: ArrayLike,
        passed: ArrayLike,
        edges: ArrayLike,
        *,
        axis: str,
        label: str,
        weights: ArrayLike | None = None,
    ) -> Binned:
        """Fill from values and booleans; values outside the edges are not counted."""
        values, mask, bins = np.asarray(x, float), np.asarray(passed, bool), np.asarray(edges, float)
        weight = np.ones(values.shape) if weights is None else np.asarray(weights, float)

        def fill(each: Floats) -> Floats:
            return np.histogram(values, bins, weights=each)[0].astype(np.float64)

        return cls(bins, fill(weight * mask), fill(weight), fill(weight**2), axis, label)

    @property
    def value(self) -> float:
        return float(self.passed.sum() / self.total.sum()) if self.total.sum() else math.nan

    def figure(self, title: str) -> figure.Figure:
        centre, half = (self.edges[1:] + self.edges[:-1]) / 2, np.diff(self.edges) / 2
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.where(self.total > 0, self.passed / self.total, np.nan)
        bars = {
            "type": "data",
            "array": figure.plain(wilson(self.passed, self.total, self.squares)),
            "thickness": 1.5,
        }
        across = {"type": "data", "array": figure.plain(half), "thickness": 1, "width": 0}
        share = self.total / max(self.total.max(), 1) if len(self.total) else self.total
        return figure.figure(
            [
                figure.steps(self.edges, share, "sample (shape)", colour=6, fill="tozeroy", opacity=0.35),
                figure.points(centre, ratio, self.label, error_y=bars, error_x=across, text=figure.plain(self.total)),
            ],
            title=f"{self.label.capitalize()} against {self.axis.partition(' [')[0]}",
            x=self.axis,
            y=self.label,
            yaxis={"range": [0, 1.05]},
        )


@dataclass(frozen=True)
class Roc(Metric):
    """Scores in [0, 1] of two classes, kept as histograms; the value is the area under the ROC curve.

    Bins are even in the logit of the score, so that a sharp classifier's .9999 and .9992 stay apart.
    """

    signal: Floats
    background: Floats

    BINS: ClassVar[int] = 4000
    REACH: ClassVar[float] = 20.0

    @classmethod
    def of(cls, scores: ArrayLike, truth: ArrayLike, weights: ArrayLike | None = None) -> Roc:
        """Fill from scores and booleans."""
        score, true = np.clip(np.asarray(scores, float), 0.0, 1.0), np.asarray(truth, bool)
        weight = np.ones(score.shape) if weights is None else np.asarray(weights, float)
        with np.errstate(divide="ignore"):
            logit = np.clip(np.log(score) - np.log1p(-score), -cls.REACH, cls.REACH)
        bins = np.minimum((logit + cls.REACH) * (cls.BINS / (2 * cls.REACH)), cls.BINS - 1).astype(np.int64)

        def count(mask: NDArray[np.bool_]) -> Floats:
            return np.bincount(bins[mask], weights=weight[mask], minlength=cls.BINS).astype(np.float64)

        return cls(count(true), count(~true))

    def rates(self) -> tuple[Floats, Floats]:
        """Background and signal efficiency for every threshold, from the highest down."""

        def share(counts: Floats) -> Floats:
            return np.asarray(np.append(0.0, np.cumsum(counts[::-1])) / max(counts.sum(), 1e-300))

        return share(self.background), share(self.signal)

    @property
    def value(self) -> float:
        if not (self.signal.sum() and self.background.sum()):
            return math.nan
        fake, real = self.rates()
        return float(np.sum(np.diff(fake) * (real[1:] + real[:-1]) / 2))

    def figure(self, title: str) -> figure.Figure:
        fake, real = self.rates()
        return figure.figure(
            [figure.line(np.maximum(fake, 1e-6), real, f"area {self.value:.4f}", showlegend=True)],
            title=f"ROC, {title}",
            x="background efficiency",
            y="signal efficiency",
            xaxis={"type": "log", "range": [-5, 0]},
            yaxis={"range": [0, 1.05]},
        )


@dataclass(frozen=True)
class Confusion(Metric):
    """How often each true class was taken for each; the value is the share that was right. `names`: of the classes."""

    scalar: ClassVar[bool] = False

    counts: Floats
    """(true, predicted)"""
    names: tuple[str, ...] = field(metadata={"label": True})

    @classmethod
    def of(
        cls, predicted: ArrayLike, truth: ArrayLike, names: Iterable[str], weights: ArrayLike | None = None
    ) -> Confusion:
        """Fill from two arrays of class numbers; true classes without a name are not counted."""
        classes, said, true = tuple(names), np.asarray(predicted, np.int64), np.asarray(truth, np.int64)
        weight = np.ones(true.shape) if weights is None else np.asarray(weights, float)
        size, known = len(classes), (true >= 0) & (true < len(classes))
        flat = np.bincount((true * size + said)[known], weights=weight[known], minlength=size**2)
        return cls(flat.reshape(size, size).astype(np.float64), classes)

    @property
    def value(self) -> float:
        return float(np.trace(self.counts) / self.counts.sum()) if self.counts.sum() else math.nan

    def figure(self, title: str) -> figure.Figure:
        share = self.counts / np.maximum(self.counts.sum(1, keepdims=True), 1e-300)
        cells = {"type": "heatmap", "x": self.names, "y": self.names, "z": [figure.plain(row) for row in share]}
        text = {"texttemplate": "%{z:.2f}"} if len(self.names) <= 12 else {}
        shade = {"zmin": 0, "zmax": 1, "colorscale": [[0, "rgba(0,114,178,0)"], [1, figure.COLOURS[0]]]}
        return figure.figure(
            [{**cells, **text, **shade, "showscale": not text}],
            title=f"{title.capitalize()}, shares of each true class",
            x="predicted",
            y="true",
            xaxis={"type": "category"},
            yaxis={"type": "category", "autorange": "reversed"},
        )


def wilson(passed: Any, total: Any, squares: Any) -> Any:
    """Half-width of the 68% Wilson interval of passed/total; NaN where total is not positive."""
    passed, total, squares = (np.asarray(item, dtype=np.float64) for item in (passed, total, squares))
    with np.errstate(invalid="ignore", divide="ignore"):
        count = total**2 / squares
        share = np.clip(passed / total, 0.0, 1.0)
        half = np.sqrt(share * (1 - share) / count + 1 / (4 * count**2)) / (1 + 1 / count)
    return np.where((total > 0) & (squares > 0), half, np.nan)


def add_metrics(tallies: Iterable[Mapping[str, Metric]]) -> dict[str, Metric]:
    """Add tallies name by name; a name missing from some counts as zero there."""
    total: dict[str, Metric] = {}
    for batch in tallies:
        for name, tally in batch.items():
            total[name] = total[name] + tally if name in total else tally
    return total


def metric_values(tallies: Mapping[str, Metric]) -> dict[str, float]:
    """The numbers for tables and curves."""
    return {name: tally.value for name, tally in tallies.items() if tally.scalar}


def metric_to_data(tally: Metric) -> dict[str, Any]:
    """What of a tally adds up, as plain numbers and lists."""
    found = {part.name: getattr(tally, part.name) for part in fields(tally) if not part.metadata.get("label")}
    return {n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in found.items() if not isinstance(v, str)}


def metric_from_data(data: Mapping[str, Any], like: T) -> T:
    """A tally of the same kind, with the same labels, from what `metric_to_data` gave."""
    given = {name: np.asarray(value, float) if isinstance(value, list) else value for name, value in data.items()}
    return replace(like, **given)
