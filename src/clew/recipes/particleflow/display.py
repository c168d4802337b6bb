"""Event displays in eta and phi: detector elements, true particles, predicted particles."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew import Table, figure
from clew.recipes.particleflow.columns import CLASSES, ELEMENTS, TOWER
from clew.recipes.particleflow.metrics import true_particles

Floats = NDArray[np.float64]
MAX_DRAWN = 150
"""Maximum number of items of each kind that are drawn: those of the largest pT."""


def event_displays(samples: Table, objects: Table) -> dict[str, figure.Figure]:
    """Return one figure per event: towers and tracks on the left, true and predicted particles on the right."""
    elements, truth = samples.ragged(ELEMENTS), true_particles(samples)
    predicted = {name: objects.ragged(name).values.astype(np.float64) for name in objects}
    numbers = samples.fixed("event") if "event" in samples else np.arange(len(samples))
    figures = {}
    for place, number in enumerate(numbers.tolist()):
        event = slice(int(elements.offsets[place]), int(elements.offsets[place + 1]))
        parts = [{name: values[event] for name, values in each.items()} for each in (truth, predicted)]
        figures[f"event_{number}"] = _event_figure(
            number, elements.values[event].astype(np.float64), parts[0], parts[1]
        )
    return figures


def _event_figure(
    number: int, elements: Floats, truth: dict[str, Floats], predicted: dict[str, Floats]
) -> figure.Figure:
    phi, tower = np.arctan2(elements[:, 3], elements[:, 4]), elements[:, 0] == TOWER
    left, right = {"xaxis": "x", "yaxis": "y"}, {"xaxis": "x2", "yaxis": "y2"}
    traces = [
        _markers(elements[:, 2], phi, elements[:, 1], tower, "towers", 6, "square-open", **left),
        _markers(elements[:, 2], phi, elements[:, 1], ~tower, "tracks", 7, "line-ns-open", **left),
    ]
    for kind, name in enumerate(CLASSES[1:], 1):
        for particles, symbol, source in ((truth, "circle-open", "true"), (predicted, "x-thin-open", "predicted")):
            chosen = particles["pid"] == kind
            label = f"{name}, {source}"
            traces.append(
                _markers(particles["eta"], particles["phi"], particles["pt"], chosen, label, kind - 1, symbol, **right)
            )
    return _layout(number, traces)


def _markers(
    eta: Floats, phi: Floats, pt: Floats, chosen: NDArray[np.bool_], name: str, colour: int, symbol: str, **on: Any
) -> dict[str, Any]:
    """Return markers of the items of largest pT among those chosen. Their size grows with pT."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(-pt[rows], kind="stable")[:MAX_DRAWN]]
    size = np.clip(4 + 4 * np.log1p(pt[rows]), 4, 26)
    shade = {"color": "#444" if symbol.startswith("line") else figure.COLOURS[colour], "symbol": symbol}
    marker = {**shade, "size": figure.plain(size.round(1)), "line": {"width": 1.5}}
    text = [f"{value:.1f} GeV" for value in pt[rows]]
    return figure.points(eta[rows].round(3), phi[rows].round(3), name, marker=marker, text=text, **on)


def _layout(number: int, traces: list[dict[str, Any]]) -> figure.Figure:
    title = f"event {number}: the {MAX_DRAWN} hardest of each kind; size grows with pT"
    drawn = figure.figure(traces, title=title, x="eta", y="phi [rad]")
    layout = drawn["layout"]
    base = {**layout["xaxis"], "range": [-5.2, 5.2]}
    layout["xaxis"] = {**base, "domain": [0, 0.47]}
    layout["yaxis"]["range"] = [-3.3, 3.3]
    layout["xaxis2"] = {**base, "domain": [0.53, 1], "anchor": "y2"}
    layout["yaxis2"] = {**layout["yaxis"], "title": {"text": ""}, "anchor": "x2"}
    layout["legend"] = {**layout["legend"], "itemsizing": "constant"}
    return drawn
