"""Event weights that make the classes equal in properties that a classifier must not use: their number and their
spectra."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from clew.data.table import WEIGHT, Table
from clew.data.transforms.base import FittedTransform
from clew.errors import DataError

Edges = tuple[float, ...]
Cells = dict[int, dict[int, float]]
"""Sums of weights by class and bin."""


class Reweight(FittedTransform):
    """Multiplies the event weights such that every class has the same sum of weights, and the same spectrum in
    `columns`.

    It is fitted on all events that are prepared, because the split into training and validation happens later. The mean
    weight does not change, except for the limit `largest`.
    """

    kind: Literal["reweight"] = "reweight"
    """The name of this transform."""
    by: str = "label"
    """A column of integers: the class. Events with a negative value belong to no class and keep their weight."""
    columns: dict[str, Edges] = {}
    """Columns with one value per event, and the edges of their bins. Values outside count in the outermost bins.
    Without
    columns only the sums of the classes are made equal."""
    reference: Annotated[int, Field(ge=0)] | Literal["flat"] = "flat"
    """The spectrum of all classes: `flat` is the same sum of weights in every bin; a number is the spectrum of that
    class."""
    shares: tuple[Annotated[float, Field(gt=0)], ...] = ()
    """The relative weight of each class, by number. By default all are the same."""
    largest: Annotated[float, Field(gt=0)] = 20.0
    """The largest factor, in units of the mean: otherwise the few events of a nearly empty bin would dominate the loss.
    """
    factors: dict[int, dict[int, float]] | None = None
    """Factors by class and bin. The fit sets them."""

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
        """The columns that the transform reads."""
        return (self.by, *self.columns)

    @property
    def needs_fit(self) -> bool:
        return self.factors is None

    def measure(self, events: Table) -> Cells:
        label, bins, weights = events.fixed(self.by), self._bins(events), events.weights
        sums: Cells = {}
        for kind in np.unique(label[label >= 0]).tolist():
            of_class = label == kind
            cells = np.unique(bins[of_class]).tolist()
            sums[int(kind)] = {int(c): math.fsum(weights[of_class & (bins == c)].tolist()) for c in cells}
        return sums

    def fitted(self, parts: Sequence[Cells]) -> Self:
        kinds = sorted({kind for part in parts for kind in part})
        if not kinds:
            raise DataError(f"reweight cannot be fitted: no event has a class in '{self.by}'")
        sums = {kind: _added([part.get(kind, {}) for part in parts]) for kind in kinds}
        targets = {kind: self._target(kind, sums) for kind in kinds}
        total = math.fsum(v for cells in sums.values() for v in cells.values())
        scale = total / math.fsum(v for cells in targets.values() for v in cells.values())
        factors = {
            kind: {c: min(scale * targets[kind][c] / v if v > 0 else 1.0, self.largest) for c, v in sums[kind].items()}
            for kind in kinds
        }
        return self.model_copy(update={"factors": factors})

    def _target(self, kind: int, sums: Cells) -> dict[int, float]:
        """Return the sums that a class should have in its bins, up to a factor that all classes share."""
        share = self.shares[kind] if kind < len(self.shares) else 1.0
        if self.reference == "flat":
            shape = dict.fromkeys(sums[kind], 1.0)
        elif self.reference in sums:
            shape = {c: max(sums[self.reference].get(c, 0.0), 0.0) for c in sums[kind]}
        else:
            raise DataError(f"reweight: no event of the reference class {self.reference}")
        total = math.fsum(shape.values())
        return {c: share * v / total if total else 0.0 for c, v in shape.items()}

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
        """Return the number of the bin of each event, counted over all columns."""
        numbers = np.zeros(len(events), dtype=np.int64)
        for name, edges in self.columns.items():
            inner = np.searchsorted(np.asarray(edges[1:-1]), events.fixed(name), side="right")
            numbers = numbers * (len(edges) - 1) + inner
        return numbers


def _added(parts: Sequence[dict[int, float]]) -> dict[int, float]:
    """Return correctly rounded sums, so that the order of files does not change them."""
    return {c: math.fsum(part.get(c, 0.0) for part in parts) for c in sorted({c for part in parts for c in part})}
