"""Metrics that can be added over batches and ranks.

A `Metric` holds sums and counts, never an average. The metrics of two batches, or of two ranks, are added; only the
final result is divided. A metric is therefore exact for any split of the data, and padding or empty batches do not
change it.

Example:
    >>> from clew import metrics
    >>> first = metrics.Ratio.of([True, False])
    >>> second = metrics.Ratio.of([True, True])
    >>> (first + second).value
    0.75
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clew import figure
from clew.core.intervals import wilson_interval as wilson_interval
from clew.figure import Figure

T = TypeVar("T", bound="Metric")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """Base class of all metrics.

    Adding two metrics adds their numbers and arrays. Their labels (names, bin edges) must be equal.
    """

    scalar: ClassVar[bool] = True
    """True if the value is shown in tables and curves; False if the metric is only a plot."""

    @property
    def value(self) -> float:
        """The value of the metric; NaN if nothing was counted."""
        raise NotImplementedError(f"{type(self).__name__} must define value")

    @property
    def error(self) -> float:
        """One standard deviation of statistical error, or NaN where none is defined."""
        return math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the 68% interval: the value minus and plus the error, unless a subclass knows better."""
        return self.value - self.error, self.value + self.error

    def figure(self, title: str) -> figure.Figure | None:
        """A plot of the metric, or None if it has none."""
        return None

    def figures(self, title: str) -> dict[str, Figure]:
        """All plots of the metric, by the ending of their names. The default is `figure`, without an ending."""
        plot = self.figure(title)
        return {} if plot is None else {"": plot}

    def __add__(self: T, other: T) -> T:
        if type(self) is not type(other):
            raise TypeError(f"cannot add {type(other).__name__} to {type(self).__name__}")
        added: dict[str, Any] = {}
        for part in fields(self):
            left, right = getattr(self, part.name), getattr(other, part.name)
            if part.metadata.get("label") or isinstance(left, str):
                assert np.array_equal(left, right), f"{part.name} differs: {left} and {right}"
                added[part.name] = left
            else:
                added[part.name] = left + right
        return type(self)(**added)


@dataclass(frozen=True)
class Mean(Metric):
    """A weighted mean, such as a loss.

    Args:
        total: Sum of weight times value.
        weight: Sum of weights.
    """

    total: float
    weight: float

    @property
    def value(self) -> float:
        return self.total / self.weight if self.weight else math.nan


@dataclass(frozen=True)
class Ratio(Metric):
    """A fraction: how many passed out of all.

    Args:
        passed: Sum of the weights of those that passed.
        total: Sum of all weights.
        squares: Sum of all squared weights. The default is right if every weight is 1.
    """

    passed: float
    total: float
    squares: float = -1.0

    def __post_init__(self) -> None:
        if self.squares < 0:
            object.__setattr__(self, "squares", float(self.total))

    @classmethod
    def of(cls, passed: ArrayLike, weights: ArrayLike | None = None) -> Ratio:
        """Count the true elements of a boolean array.

        Args:
            passed: Boolean array.
            weights: One weight per element; 1 by default.
        """
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
        """Half the width of the interval."""
        low, high = self.interval
        return (high - low) / 2

    @property
    def interval(self) -> tuple[float, float]:
        low, high = wilson_interval(self.passed, self.total, self.squares)
        return float(low), float(high)


@dataclass(frozen=True)
class F1(Metric):
    """The F1 score: the harmonic mean of precision and recall.

    Args:
        hits: Weighted number of true positives.
        false: Weighted number of false positives.
        missed: Weighted number of false negatives.
    """

    hits: float
    false: float
    missed: float

    @classmethod
    def of(cls, predicted: ArrayLike, truth: ArrayLike, weights: ArrayLike | None = None) -> F1:
        """Count two boolean arrays of equal length, with one weight per element if `weights` is set."""
        positive, true = np.asarray(predicted, dtype=bool), np.asarray(truth, dtype=bool)
        weight = np.ones(positive.shape) if weights is None else np.asarray(weights, dtype=np.float64)
        return cls(
            float(weight[positive & true].sum()),
            float(weight[positive & ~true].sum()),
            float(weight[~positive & true].sum()),
        )

    @property
    def value(self) -> float:
        denominator = 2 * self.hits + self.false + self.missed
        return 2 * self.hits / denominator if denominator else math.nan

    @property
    def error(self) -> float:
        """First-order propagation of Poisson counts."""
        right, wrong = self.hits, self.false + self.missed
        denominator = 2 * right + wrong
        return math.sqrt(max(4 * right * wrong * (right + wrong), 0.0)) / denominator**2 if denominator else math.nan


@dataclass(frozen=True)
class Binned(Metric):
    """A fraction in bins of a variable, such as an efficiency against pT.

    Args:
        edges: Bin edges, shape (bins + 1,).
        passed, total, squares: As in `Ratio`, one number per bin.
        axis: Name of the variable with its unit, as in `pT [GeV]`.
        label: Name of the fraction.
    """

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
        """Fill from values `x` and booleans `passed` of equal length. Values outside `edges` are ignored."""
        values, mask, bins = np.asarray(x, float), np.asarray(passed, bool), np.asarray(edges, float)
        weight = np.ones(values.shape) if weights is None else np.asarray(weights, float)

        def fill(amounts: Floats) -> Floats:
            return np.histogram(values, bins, weights=amounts)[0].astype(np.float64)

        return cls(bins, fill(weight * mask), fill(weight), fill(weight**2), axis, label)

    @property
    def value(self) -> float:
        return float(self.passed.sum() / self.total.sum()) if self.total.sum() else math.nan

    def figure(self, title: str) -> figure.Figure:
        centre, half = (self.edges[1:] + self.edges[:-1]) / 2, np.diff(self.edges) / 2
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.where(self.total > 0, self.passed / self.total, np.nan)
        bars = figure.interval_bars(ratio, *wilson_interval(self.passed, self.total, self.squares))
        widths = {"type": "data", "array": figure.plain(half), "thickness": 1, "width": 0}
        shape = self.total / max(self.total.max(), 1) if len(self.total) else self.total
        return figure.figure(
            [
                figure.steps(self.edges, shape, "sample (shape)", colour=6, fill="tozeroy", opacity=0.35),
                figure.points(centre, ratio, self.label, error_y=bars, error_x=widths, text=figure.plain(self.total)),
            ],
            title=f"{self.label.capitalize()} against {self.axis.partition(' [')[0]}",
            x=self.axis,
            y=self.label,
            yaxis={"range": [0, 1.05]},
        )


@dataclass(frozen=True)
class Roc(Metric):
    """The ROC curve of a two-class score in [0, 1]. The value is the area under the curve.

    Scores are stored as histograms with bins of equal width in the logit of the score, so that scores near 0 and 1
    (0.9992 and 0.9999) stay apart.
    """

    signal: Floats
    background: Floats

    BINS: ClassVar[int] = 4000
    REACH: ClassVar[float] = 20.0
    PLOT_BINS: ClassVar[int] = 40
    """Number of bins in the plot of the scores."""

    @classmethod
    def of(cls, scores: ArrayLike, truth: ArrayLike, weights: ArrayLike | None = None) -> Roc:
        """Fill from scores in [0, 1] and booleans (True for signal) of equal length."""
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

    def score_figure(self, title: str) -> Figure:
        """The distributions of the score for signal and background, each normalised to 1."""
        logit = (np.arange(self.BINS) + 0.5) * (2 * self.REACH / self.BINS) - self.REACH
        edges = np.linspace(0.0, 1.0, self.PLOT_BINS + 1)

        def share(counts: Floats) -> Floats:
            heights = np.histogram(1 / (1 + np.exp(-logit)), edges, weights=counts)[0]
            return np.asarray(heights / max(counts.sum(), 1e-300), dtype=np.float64)

        return figure.figure(
            [
                figure.steps(edges, share(self.background), "background", colour=1, fill="tozeroy", opacity=0.6),
                figure.steps(edges, share(self.signal), "signal", fill="tozeroy", opacity=0.6),
            ],
            title=f"Scores, {title}",
            x="score",
            y="fraction of events",
            xaxis={"range": [0, 1]},
            yaxis={"rangemode": "tozero"},
        )

    def figures(self, title: str) -> dict[str, Figure]:
        return {"": self.figure(title), "scores": self.score_figure(title)}


@dataclass(frozen=True)
class Confusion(Metric):
    """A confusion matrix. The value is the fraction of correct predictions.

    Args:
        counts: Weighted counts, shape (true class, predicted class).
        names: Names of the classes.
    """

    scalar: ClassVar[bool] = False

    counts: Floats
    """(true, predicted)"""
    names: tuple[str, ...] = field(metadata={"label": True})

    @classmethod
    def of(
        cls, predicted: ArrayLike, truth: ArrayLike, names: Iterable[str], weights: ArrayLike | None = None
    ) -> Confusion:
        """Fill from two arrays of class numbers. Elements whose true class has no name are ignored."""
        classes, chosen, true = tuple(names), np.asarray(predicted, np.int64), np.asarray(truth, np.int64)
        weight = np.ones(true.shape) if weights is None else np.asarray(weights, float)
        size, named = len(classes), (true >= 0) & (true < len(classes))
        flat = np.bincount((true * size + chosen)[named], weights=weight[named], minlength=size**2)
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


def add_metrics(batches: Iterable[Mapping[str, Metric]]) -> dict[str, Metric]:
    """Add the metrics of several batches name by name. A name missing from a batch counts as zero there."""
    total: dict[str, Metric] = {}
    for batch in batches:
        for name, metric in batch.items():
            total[name] = total[name] + metric if name in total else metric
    return total


def metric_values(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """The values of the scalar metrics, for tables and curves."""
    return {name: metric.value for name, metric in metrics.items() if metric.scalar}


def metric_to_data(metric: Metric) -> dict[str, Any]:
    """The sums and counts of a metric (not its labels) as plain numbers and lists."""
    parts = {part.name: getattr(metric, part.name) for part in fields(metric) if not part.metadata.get("label")}
    return {n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in parts.items() if not isinstance(v, str)}


def metric_from_data(data: Mapping[str, Any], like: T) -> T:
    """The metric that `metric_to_data` wrote. `like` gives its class and its labels."""
    parts = {name: np.asarray(value, float) if isinstance(value, list) else value for name, value in data.items()}
    return replace(like, **parts)
