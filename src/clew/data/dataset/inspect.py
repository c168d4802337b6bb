"""The content of a dataset for people: counts, columns, statistics, histograms and plots of events."""

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
HISTOGRAM_EVENTS = 20_000
"""Largest number of events of a histogram."""
PLOT_EVENTS = 100
"""Number of events from which a recipe can choose for its plots of single events."""


@dataclass(frozen=True)
class Histogram:
    """The distribution of a column, without the lowest and highest 0.1% of the values. Integers get bins of whole
    numbers."""

    name: str
    unit: str
    edges: NDArray[np.float64]
    counts: NDArray[np.int64]


def histograms(dataset: Dataset) -> list[Histogram]:
    """Return one histogram per column of numbers, then one for the lengths of each set of items, from the first
    events."""
    split = max(dataset.splits, key=lambda name: dataset.splits[name])
    table = next(dataset.shards(split)).slice(0, HISTOGRAM_EVENTS)
    result = []
    for name, column in table.items():
        values = (column.values if isinstance(column, Ragged) else column).ravel()
        if values.dtype.kind in "biuf" and values.size:
            result.append(column_histogram(name, table.units.get(name, ""), values))
    for name in dict.fromkeys(dataset.manifest.item_sets.values()):
        result.append(column_histogram(f"items per event of {name}", "", dataset.lengths(split, name)))
    return result


def column_histogram(name: str, unit: str, values: NDArray[np.generic]) -> Histogram:
    """Return the histogram of the values of a column."""
    numbers = values.astype(np.float64)
    low, high = np.quantile(numbers, [0.001, 0.999])
    if values.dtype.kind in "biu":
        width = max(int(np.ceil((high - low + 1) / BINS)), 1)
        edges = np.arange(low, high + 1 + width, width) - 0.5
    else:
        edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    return Histogram(name, unit, edges, np.histogram(numbers, edges)[0])


def histogram_figure(histogram: Histogram) -> Figure:
    """Return a histogram as a plot."""
    axis = f"{histogram.name} [{histogram.unit}]" if histogram.unit else histogram.name
    trace = steps(histogram.edges, histogram.counts, histogram.name, fill="tozeroy", showlegend=False)
    return figure([trace], title=histogram.name.replace("_", " "), x=axis, y="entries")


def sparkline(histogram: Histogram) -> str:
    """Return a histogram as one line of text for a terminal."""
    counts = histogram.counts
    groups = np.array_split(counts, min(len(counts), 10))
    tops = np.array([group.max(initial=0) for group in groups], dtype=float)
    levels = np.ceil(8 * tops / max(tops.max(initial=0), 1)).astype(int)
    return "".join("·▁▂▃▄▅▆▇█"[level] for level in levels)


def facts_html(dataset: Dataset) -> str:
    """Return the content of the manifest as HTML tables."""
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
    columns = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in column_rows(dataset))
    return (
        f"<table><tr><th>split</th><th>events</th><th>shards</th></tr>{splits}</table>"
        f"<h2>Columns</h2><table><tr>{''.join(f'<th>{name}</th>' for name in COLUMN_HEADER)}</tr>{columns}</table>"
        f"<h2>Inputs</h2><table><tr><th>file</th><th>split</th><th>events</th><th>MB</th><th>sha256</th></tr>{inputs}</table>"
    )


COLUMN_HEADER = ("column", "type", "unit", "min", "mean", "max", "std")


def column_rows(dataset: Dataset) -> list[tuple[str, ...]]:
    """Return one line per column, for tables."""
    lines = []
    for name, field in dataset.schema.items():
        shape = "".join(f"[{size}]" for size in field.shape)
        kind = f"{'ragged ' if field.ragged else ''}{np.dtype(field.dtype)}{shape}"
        numbers = dataset.manifest.statistics.get(name, {})
        values = [f"{numbers[key]:.4g}" if key in numbers else "" for key in ("min", "mean", "max", "std")]
        lines.append((name, kind, field.unit, *values))
    return lines


def event_figures(dataset: Dataset) -> list[Figure]:
    """Return plots of single events, as the recipe draws them. The list is empty if the recipe has no such plots.

    Recipes that are files are not loaded: inspecting a dataset must not run code that its manifest names.
    """
    if dataset.manifest.recipe not in available():
        return []
    try:
        recipe_class = find(dataset.manifest.recipe)
        recipe = recipe_class(
            recipe_class.Config.model_validate(_recipe_settings(recipe_class.Config, dataset.manifest.settings))
        )
    except (ClewError, ValidationError):
        return []
    split = max(dataset.splits, key=lambda name: dataset.splits[name])
    return list(recipe.sample_plots(next(dataset.shards(split)).slice(0, PLOT_EVENTS)).values())


def _recipe_settings(config: type[Section], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a dataset that belong to the recipe."""
    return {name: value for name, value in settings.items() if name in config.model_fields}


def write_page(dataset: Dataset, path: Path) -> Path:
    """Write the content of a dataset as one HTML file."""
    from clew.runs.html_page import write_page as write

    title = dataset.path.absolute().name
    facts = f"key {dataset.manifest.key[:16]} · recipe {Path(dataset.manifest.recipe).stem}"
    drawn = [histogram_figure(histogram) for histogram in histograms(dataset)]
    single = [("Events", "", shown)] if (shown := event_figures(dataset)) else []
    parts = [("Contents", facts_html(dataset), []), *single, ("Distributions", "", drawn)]
    return write(path, title, facts, parts)
