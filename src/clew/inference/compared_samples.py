"""Samples of two sources that a recipe compares as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clew.data.table import Table, concat
from clew.figure import Figure
from clew.metrics import Metric
from clew.recipe import Recipe


class ComparisonResult(NamedTuple):
    """What a recipe returned for a comparison."""

    metrics: dict[str, Metric]
    figures: dict[str, Figure]


@dataclass
class ComparedSamples:
    """Up to `limit` samples of each source, in memory.

    Args:
        limit: Largest number of samples of each source.
    """

    limit: int
    true: list[Table] = field(default_factory=list)
    generated: list[Table] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.true and self.generated)

    def add_outputs(self, recipe: Recipe, samples: Table, outputs: Mapping[str, Any]) -> None:
        """Add samples, and the objects that the recipe makes of the outputs for them."""
        if _count(self.true) < self.limit:
            self.true.append(samples)
            self.generated.append(recipe.reconstruct(samples, outputs))

    def add(self, other: ComparedSamples) -> None:
        """Add the samples of another portion, up to the limit."""
        for tables, others in ((self.true, other.true), (self.generated, other.generated)):
            for table in others:
                free = self.limit - _count(tables)
                tables += [table.slice(0, min(free, len(table)))] if free > 0 else []

    def first(self, count: int) -> Table:
        """Return the first true samples."""
        return self.true[0].slice(0, min(count, len(self.true[0])))

    def compare(self, recipe: Recipe) -> ComparisonResult:
        """Return the metrics and plots of the recipe."""
        metrics, figures = recipe.compare(concat(self.true), concat(self.generated))
        return ComparisonResult(dict(metrics), dict(figures))


def _count(tables: list[Table]) -> int:
    return sum(map(len, tables))
