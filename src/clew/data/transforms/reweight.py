"""Event weights that make classes alike in what a classifier should not learn from: their number, and their spectra."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from clew.data.table import WEIGHT, Table
from clew.data.transforms.base import Fitted
from clew.errors import DataError

Edges = tuple[float, ...]
Cells = dict[int, dict[int, float]]
"""Sums of weights, by class and bin."""


class Reweight(Fitted):
    """Multiplies event weights so that every class has the same sum of weights, and the same spectrum in `columns`.

    Fitted on all events that are prepared: which of them are for training is decided later. The mean weight is what it
    was before, up to `largest`.
    """

    kind: Literal["reweight"] = "reweight"
    by: str = "label"
    """A column of integers: the class. Negative ones are no class, and keep their weight."""
    columns: dict[str, Edges] = {}
    """Columns with one value an event, and the edges of bins; what lies outside counts in the outermost. Without any,
    only the classes are balanced."""
    reference: Annotated[int, Field(ge=0)] | Literal["flat"] = "flat"
    """The spectrum that all get: the same sum of weights in every bin, or that of a class (by number)."""
    shares: tuple[Annotated[float, Field(gt=0)], ...] = ()
    """How much each class counts, by number; default: all the same."""
    largest: Annotated[float, Field(gt=0)] = 20.0
    """No factor is above this many times the mean: a few events of a nearly empty bin would rule the loss."""
    factors: dict[int, dict[int, float]] | None = None
    """By class and bin; filled in by the fit."""

    @field_validator("columns")
    @classmethod
    def _rising(cls, columns: dict[str, Edges]) -> dict[str, Edges]:
        for name, edges in columns.items():
            if len(edges) < 2 or any(b <= a for a, b in pairwise(edges)):
                raise ValueError(f"the edges of '{name}' must rise, two at least")
        return columns

    @model_validator(mode="after")
    def _spectrum(self) -> Self:
        if self.reference != "flat" and not self.columns:
            raise ValueError("a reference class needs columns: the spectrum that is taken over")
        return self

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns it looks at."""
        return (self.by, *self.columns)

    @property
    def needs_fit(self) -> bool:
        return self.factors is None

    def measure(self, events: Table) -> Cells:
        label, bins, weights = events.fixed(self.by), self._bins(events), events.weights
        found: Cells = {}
        for kind in np.unique(label[label >= 0]).tolist():
            own = label == kind
            cells = np.unique(bins[own]).tolist()
            found[int(kind)] = {int(c): math.fsum(weights[own & (bins == c)].tolist()) for c in cells}
        return found

    def fitted(self, parts: Sequence[Cells]) -> Self:
        kinds = sorted({kind for part in parts for kind in part})
        if not kinds:
            raise DataError(f"reweight cannot be fitted: no event has a class in '{self.by}'")
        sums = {kind: _added([part.get(kind, {}) for part in parts]) for kind in kinds}
        wanted = {kind: self._wanted(kind, sums) for kind in kinds}
        total = math.fsum(v for cells in sums.values() for v in cells.values())
        scale = total / math.fsum(v for cells in wanted.values() for v in cells.values())
        factors = {
            kind: {c: min(scale * wanted[kind][c] / v if v > 0 else 1.0, self.largest) for c, v in sums[kind].items()}
            for kind in kinds
        }
        return self.model_copy(update={"factors": factors})

    def _wanted(self, kind: int, sums: Cells) -> dict[int, float]:
        """The sums a class should have in its bins, up to a factor that all classes share."""
        share = self.shares[kind] if kind < len(self.shares) else 1.0
        if self.reference == "flat":
            shape = dict.fromkeys(sums[kind], 1.0)
        elif self.reference in sums:
            shape = {c: max(sums[self.reference].get(c, 0.0), 0.0) for c in sums[kind]}
        else:
            raise DataError(f"reweight: no event of the reference class {self.reference}")
        whole = math.fsum(shape.values())
        return {c: share * v / whole if whole else 0.0 for c, v in shape.items()}

    def __call__(self, events: Table) -> Table:
        if self.factors is None:
            raise DataError("reweight has no factors yet; fit it first (clew.transforms.fit)")
        label, bins = events.fixed(self.by), self._bins(events)
        factor = np.ones(len(events))
        for kind, cells in self.factors.items():
            for place, value in cells.items():
                factor[(label == kind) & (bins == place)] = value
        return events.join({WEIGHT: events.weights * factor})

    def _bins(self, events: Table) -> NDArray[np.int64]:
        """The number of each event's bin, counted over all columns."""
        found = np.zeros(len(events), dtype=np.int64)
        for name, edges in self.columns.items():
            inner = np.searchsorted(np.asarray(edges[1:-1]), events.fixed(name), side="right")
            found = found * (len(edges) - 1) + inner
        return found


def _added(parts: Sequence[dict[int, float]]) -> dict[int, float]:
    """Correctly rounded sums: the order of files cannot change a bit."""
    return {c: math.fsum(part.get(c, 0.0) for part in parts) for c in sorted({c for part in parts for c in part})}
