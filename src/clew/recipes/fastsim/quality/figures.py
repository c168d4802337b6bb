"""Pictures of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clew import figure
from clew.figure import Figure
from clew.recipes.fastsim.geometry import Floats
from clew.recipes.fastsim.metrics import HistogramPair
from clew.recipes.fastsim.quality.layer_histograms import QUANTITIES
from clew.recipes.fastsim.quality.profiles import ShowerProfile

Pair = tuple[ShowerProfile, ShowerProfile]
"""Of true and of generated showers."""


def profile_figure(pair: Pair, *, task: str, title: str, x: str, y: str, **layout: Any) -> Figure:
    """Draw a mean of true and generated showers with errors."""
    traces = [
        figure.points(
            profile.place,
            profile.value,
            name,
            colour=colour,
            error_y={"type": "data", "array": figure.plain(profile.error), "thickness": 1.5},
            marker={"color": figure.COLOURS[colour], "size": 7, "symbol": symbol},
        )
        for profile, name, colour, symbol in zip(pair, ("true", "generated"), (6, 1), ("square", "circle"), strict=True)
    ]
    return figure.figure(traces, title=title, x=x, y=y, meta={"task": task}, showlegend=True, **layout)


def separation_figure(histograms: Mapping[str, Sequence[HistogramPair]], task: str) -> Figure:
    """Draw the separation power of each quantity against the layer."""
    traces = []
    for colour, (name, pairs) in enumerate(histograms.items()):
        bars = {"type": "data", "array": figure.plain(np.array([pair.error for pair in pairs])), "thickness": 1}
        values = [pair.value for pair in pairs]
        traces.append(figure.points(np.arange(len(pairs)), values, QUANTITIES[name], colour=colour, error_y=bars))
    title = "Separation power of layers"
    return figure.figure(
        traces, title=title, x="layer", y="separation power", meta={"task": task}, height=420, showlegend=True
    )


def correlation_figures(matrices: tuple[Floats, Floats], showers: int, task: str) -> dict[str, Figure]:
    """Draw the correlations between layers of both sources, and their difference over its statistical error."""
    error = np.sqrt(sum((1 - np.clip(each, -1, 1) ** 2) ** 2 for each in matrices) / max(showers - 1, 1))
    difference = np.where(error > 0, (matrices[1] - matrices[0]) / np.where(error > 0, error, 1), 0.0)
    pictures = {
        "true": (matrices[0], "Correlations of layer energies, true", 1.0),
        "generated": (matrices[1], "Correlations of layer energies, generated", 1.0),
        "difference": (
            difference,
            "Difference of correlations over its error",
            max(3.0, float(np.abs(difference).max())),
        ),
    }
    return {f"correlations_{name}": _matrix(*each, task) for name, each in pictures.items()}


def _matrix(values: Floats, title: str, limit: float, task: str) -> Figure:
    cells = {
        "type": "heatmap",
        "z": [figure.plain(row) for row in values],
        "zmin": -limit,
        "zmax": limit,
        "colorscale": "RdBu",
        "reversescale": True,
    }
    square = {"scaleanchor": "x", "constrain": "domain"}
    return figure.figure([cells], title=title, x="layer", y="layer", meta={"task": task}, yaxis=square)
