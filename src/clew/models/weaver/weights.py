"""Event weights from histograms of two variables, as weaver computes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from clew.data.table import WEIGHT, Table
from clew.data.transforms import FittedTransform
from clew.errors import DataError

Histogram = tuple[tuple[float, ...], ...]


class Contents(NamedTuple):
    """What a chunk of events contributes."""

    histograms: NDArray[np.float64]
    """Sums of base weights, by class and bin."""
    events: int


class WeaverWeights(FittedTransform):
    """Sets the event weights. weaver draws events with a probability proportional to them; clew multiplies the loss.

    The weights are weaver's, divided by their mean: so the mean loss has the value that weaver's has on average.
    """

    kind: Literal["weaver_weights"] = "weaver_weights"
    factors: tuple[str, ...] = ()
    """Columns whose product is the weight. If there are none, histograms are used."""
    bins: dict[str, tuple[float, ...]] = {}
    classes: tuple[str, ...] = ()
    method: Literal["flat", "ref"] = "flat"
    class_weights: tuple[float, ...] = ()
    threshold: float = 10
    discard_outside: bool = True
    base: str | None = None
    histograms: dict[str, Histogram] | None = None
    """Factors by class and bin. The fit sets them."""
    mean: float | None = None
    """The mean of the weights before they are divided by it. The fit sets it."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns from which weights are computed."""
        return (*self.factors, *self.bins, *self.classes, *((self.base,) if self.base else ()))

    @property
    def makes(self) -> tuple[str, ...]:
        """The weights."""
        return (WEIGHT,)

    @property
    def needs_fit(self) -> bool:
        return self.mean is None

    def measure(self, events: Table) -> Contents:
        if self.factors:
            return Contents(np.array(self._product(events).sum(dtype=np.float64)), len(events))
        x, y = self._variables(events)
        base = events.fixed(self.base).astype(np.float64) if self.base else np.ones(len(events))
        edges = [np.asarray(each) for each in self.bins.values()]
        sums = []
        for name in self.classes:
            chosen = events.fixed(name) == 1
            sums.append(np.histogram2d(x[chosen], y[chosen], bins=edges, weights=base[chosen])[0])
        return Contents(np.stack(sums), len(events))

    def fitted(self, parts: Sequence[Contents]) -> Self:
        # sorted, so that the order of the chunks does not change a bit
        sums = np.sort(np.stack([part.histograms for part in parts]), axis=0).sum(axis=0)
        count = sum(part.events for part in parts)
        if self.factors:
            return self._with_mean(float(sums) / count)
        factors = self._factors(sums.astype(np.float32))
        mean = float((sums * np.stack(list(factors.values()))).sum()) / count
        nested = {name: tuple(map(tuple, values.tolist())) for name, values in factors.items()}
        return self.model_copy(update={"histograms": nested})._with_mean(mean)

    def _with_mean(self, mean: float) -> Self:
        if not mean > 0:
            raise DataError("the weights cannot be computed: their mean is not above 0")
        return self.model_copy(update={"mean": mean})

    def _factors(self, sums: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """The factors by class. weaver calls them reweight_hists."""
        if self.histograms is not None:
            return {name: np.asarray(self.histograms[name], dtype=np.float32) for name in self.classes}
        for name, hist in zip(self.classes, sums, strict=True):
            if not (hist > 0).any():
                raise DataError(f"the weights cannot be computed: no event of the class '{name}' is in a bin")
        with np.errstate(divide="ignore", invalid="ignore"):
            shapes = [self._flat(hist) if self.method == "flat" else self._like(sums[0], hist) for hist in sums]
        pairs = zip(sums, shapes, self.class_weights, strict=True)
        contents = [float((hist * shape).sum()) / weight for hist, shape, weight in pairs]
        smallest = min(contents)
        return {n: s * np.float32(smallest / c) for n, s, c in zip(self.classes, shapes, contents, strict=True)}

    def _flat(self, hist: NDArray[np.float32]) -> NDArray[np.float32]:
        """Factors that make a spectrum flat; bins with few events keep the factor 1."""
        large = hist[hist > np.median(hist[hist > 0]) * 0.01]
        reference = np.percentile(large, self.threshold)
        return np.asarray(np.clip(np.nan_to_num(reference / hist, posinf=0), 0, 1), dtype=np.float32)

    def _like(self, reference: NDArray[np.float32], hist: NDArray[np.float32]) -> NDArray[np.float32]:
        """Factors that give a class the spectrum of the first class."""
        ratio = np.nan_to_num(reference / hist, posinf=0)
        largest = np.percentile(ratio[ratio > 0], 100 - self.threshold)
        return np.asarray(np.clip(ratio / largest, 0, 1), dtype=np.float32)

    def __call__(self, events: Table) -> Table:
        if self.mean is None:
            raise DataError("the weights have no histograms yet; fit them first (clew.transforms.fit)")
        weights = self._product(events) if self.factors else self._looked_up(events)
        return events.join({WEIGHT: weights / self.mean})

    def _product(self, events: Table) -> NDArray[np.float64]:
        return np.asarray(np.prod([events.fixed(name).astype(np.float64) for name in self.factors], axis=0))

    def _looked_up(self, events: Table) -> NDArray[np.float64]:
        """The factor of the class and bin of each event; 0 for events without one."""
        assert self.histograms is not None
        x, y = self._variables(events)
        x_edges, y_edges = (np.asarray(each) for each in self.bins.values())
        inside = (x >= x_edges.min()) & (x <= x_edges.max()) & (y >= y_edges.min()) & (y <= y_edges.max())
        weights = np.zeros(len(events))
        for name in self.classes:
            chosen = (events.fixed(name) == 1) & inside
            weights[chosen] = np.asarray(self.histograms[name])[_bin(x[chosen], x_edges), _bin(y[chosen], y_edges)]
        return weights * events.fixed(self.base) if self.base else weights

    def _variables(self, events: Table) -> list[NDArray[Any]]:
        columns = [(events.fixed(name), np.asarray(edges)) for name, edges in self.bins.items()]
        return [v if self.discard_outside else np.clip(v, edges.min(), edges.max()) for v, edges in columns]


def _bin(values: NDArray[Any], edges: NDArray[Any]) -> NDArray[np.int64]:
    return np.asarray(np.clip(np.digitize(values, edges) - 1, 0, len(edges) - 2))
