"""Looking into a dataset: counts, columns, statistics, histograms, events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from clew.core.config import Section
from clew.data.dataset.manifest import Dataset
from clew.data.table import Ragged
from clew.errors import ClewError
from clew.figure import Figure, figure, steps
from clew.recipe import available, find

BINS = 40
SAMPLE = 20_000
"""Events a histogram is made from, at most."""
LOOK = 100
"""Events that a recipe may choose from for its plots of single ones."""


@dataclass(frozen=True)
class Histogram:
    """A column's values between two quantiles that leave out a permille on each side; integers get whole bins."""

    name: str
    unit: str
    edges: NDArray[np.float64]
    counts: NDArray[np.int64]


def histograms(dataset: Dataset) -> list[Histogram]:
    """One for each column of numbers, then one for the lengths of each set of items, from the first events."""
    split = max(dataset.splits, key=lambda name: dataset.splits[name])
    table = next(dataset.shards(split)).slice(0, SAMPLE)
    found = []
    for name, column in table.items():
        values = (column.values if isinstance(column, Ragged) else column).ravel()
        if values.dtype.kind in "biuf" and values.size:
            found.append(_histogram(name, table.units.get(name, ""), values))
    for name in dict.fromkeys(dataset.manifest.item_sets.values()):
        found.append(_histogram(f"items an event of {name}", "", dataset.lengths(split, name)))
    return found


def _histogram(name: str, unit: str, values: NDArray[np.generic]) -> Histogram:
    numbers = values.astype(np.float64)
    low, high = np.quantile(numbers, [0.001, 0.999])
    if values.dtype.kind in "biu":
        width = max(int(np.ceil((high - low + 1) / BINS)), 1)
        edges = np.arange(low, high + 1 + width, width) - 0.5
    else:
        edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    return Histogram(name, unit, edges, np.histogram(numbers, edges)[0])


def draw(histogram: Histogram) -> Figure:
    """As a plot."""
    axis = f"{histogram.name} [{histogram.unit}]" if histogram.unit else histogram.name
    trace = steps(histogram.edges, histogram.counts, histogram.name, fill="tozeroy", showlegend=False)
    return figure([trace], title=histogram.name.replace("_", " "), x=axis, y="entries")


def spark(histogram: Histogram) -> str:
    """As one line of a terminal."""
    counts = histogram.counts
    groups = np.array_split(counts, min(len(counts), 32))
    tops = np.array([group.max(initial=0) for group in groups], dtype=float)
    levels = np.ceil(8 * tops / max(tops.max(initial=0), 1)).astype(int)
    return "".join(" ▁▂▃▄▅▆▇█"[level] for level in levels)


def facts_html(dataset: Dataset) -> str:
    """Everything the manifest says, as tables."""
    manifest = dataset.manifest
    splits = "".join(
        f"<tr><td>{escape(name)}</td><td>{count:,}</td><td>{len(manifest.splits[name])}</td></tr>"
        for name, count in dataset.splits.items()
    )
    inputs = "".join(
        f"<tr><td>{escape(i.name)}</td><td>{escape(i.split)}</td><td>{i.events:,}</td><td>{i.bytes / 1e6:,.1f}</td>"
        f"<td><code>{i.sha256[:16]}</code></td></tr>"
        for i in manifest.inputs
    )
    columns = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows(dataset))
    return (
        f"<table><tr><th>split</th><th>events</th><th>shards</th></tr>{splits}</table>"
        f"<h2>Columns</h2><table><tr>{''.join(f'<th>{name}</th>' for name in HEAD)}</tr>{columns}</table>"
        f"<h2>Inputs</h2><table><tr><th>file</th><th>split</th><th>events</th><th>MB</th><th>sha256</th></tr>{inputs}</table>"
    )


HEAD = ("column", "type", "unit", "min", "mean", "max", "std")


def rows(dataset: Dataset) -> list[tuple[str, ...]]:
    """A line for each column, for tables."""
    found = []
    for name, field in dataset.schema.items():
        shape = "".join(f"[{size}]" for size in field.shape)
        kind = f"{'ragged ' if field.ragged else ''}{np.dtype(field.dtype)}{shape}"
        numbers = dataset.manifest.statistics.get(name, {})
        told = [f"{numbers[key]:.4g}" if key in numbers else "" for key in ("min", "mean", "max", "std")]
        found.append((name, kind, field.unit, *told))
    return found


def events(dataset: Dataset) -> list[Figure]:
    """Single events, as the recipe draws them; none where it draws none.

    Recipes from files draw none: looking at a dataset must not run code that its manifest names.
    """
    if dataset.manifest.recipe not in available():
        return []
    try:
        found = find(dataset.manifest.recipe)
        recipe = found(found.Config.model_validate(_own(found.Config, dataset.manifest.settings)))
    except (ClewError, ValidationError):
        return []
    split = max(dataset.splits, key=lambda name: dataset.splits[name])
    return list(recipe.sample_plots(next(dataset.shards(split)).slice(0, LOOK)).values())


def _own(config: type[Section], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a dataset's settings that are the recipe's own sections."""
    return {name: value for name, value in settings.items() if name in config.model_fields}


def write_page(dataset: Dataset, path: Path) -> Path:
    """All of it as one HTML file."""
    from clew.runs.html_page import write_page as write

    title = dataset.path.absolute().name
    facts = f"key {dataset.manifest.key[:16]} · recipe {Path(dataset.manifest.recipe).stem}"
    drawn = [draw(histogram) for histogram in histograms(dataset)]
    single = [("Events", "", shown)] if (shown := events(dataset)) else []
    parts = [("Contents", facts_html(dataset), []), *single, ("Distributions", "", drawn)]
    return write(path, title, facts, parts)
