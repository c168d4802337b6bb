"""Event displays in eta and phi: what the detector saw, what was there, what was found."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew import Table, figure
from clew.recipes.particleflow.columns import CLASSES, ELEMENTS, TOWER
from clew.recipes.particleflow.metrics import true_particles

Floats = NDArray[np.float64]
MOST = 150
"""Of the hardest of each kind that are drawn."""


def events(samples: Table, objects: Table) -> dict[str, figure.Figure]:
    """One figure an event: towers and tracks on the left, true and predicted particles on the right."""
    elements, truth = samples.ragged(ELEMENTS), true_particles(samples)
    found = {name: objects.ragged(name).values.astype(np.float64) for name in objects}
    numbers = samples.fixed("event") if "event" in samples else np.arange(len(samples))
    drawn = {}
    for place, number in enumerate(numbers.tolist()):
        own = slice(int(elements.offsets[place]), int(elements.offsets[place + 1]))
        parts = [{name: values[own] for name, values in each.items()} for each in (truth, found)]
        drawn[f"event_{number}"] = _draw(number, elements.values[own].astype(np.float64), parts[0], parts[1])
    return drawn


def _draw(number: int, elements: Floats, truth: dict[str, Floats], found: dict[str, Floats]) -> figure.Figure:
    phi, tower = np.arctan2(elements[:, 3], elements[:, 4]), elements[:, 0] == TOWER
    on, other = {"xaxis": "x", "yaxis": "y"}, {"xaxis": "x2", "yaxis": "y2"}
    traces = [
        _marks(elements[:, 2], phi, elements[:, 1], tower, "towers", 6, "square-open", **on),
        _marks(elements[:, 2], phi, elements[:, 1], ~tower, "tracks", 7, "line-ns-open", **on),
    ]
    for kind, name in enumerate(CLASSES[1:], 1):
        for own, symbol, whose in ((truth, "circle-open", "true"), (found, "x-thin-open", "predicted")):
            chosen = own["pid"] == kind
            label = f"{name}, {whose}"
            traces.append(_marks(own["eta"], own["phi"], own["pt"], chosen, label, kind - 1, symbol, **other))
    return _layout(number, traces)


def _marks(
    eta: Floats, phi: Floats, pt: Floats, chosen: NDArray[np.bool_], name: str, colour: int, symbol: str, **on: Any
) -> dict[str, Any]:
    """The hardest of those chosen, larger where they are harder."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(-pt[rows], kind="stable")[:MOST]]
    size = np.clip(4 + 4 * np.log1p(pt[rows]), 4, 26)
    shade = {"color": "#444" if symbol.startswith("line") else figure.COLOURS[colour], "symbol": symbol}
    marker = {**shade, "size": figure.plain(size.round(1)), "line": {"width": 1.5}}
    text = [f"{value:.1f} GeV" for value in pt[rows]]
    return figure.points(eta[rows].round(3), phi[rows].round(3), name, marker=marker, text=text, **on)


def _layout(number: int, traces: list[dict[str, Any]]) -> figure.Figure:
    title = f"event {number}: the {MOST} hardest of each kind; size grows with pT"
    drawn = figure.figure(traces, title=title, x="eta", y="phi [rad]")
    layout = drawn["layout"]
    base = {**layout["xaxis"], "range": [-5.2, 5.2]}
    layout["xaxis"] = {**base, "domain": [0, 0.47]}
    layout["yaxis"]["range"] = [-3.3, 3.3]
    layout["xaxis2"] = {**base, "domain": [0.53, 1], "anchor": "y2"}
    layout["yaxis2"] = {**layout["yaxis"], "title": {"text": ""}, "anchor": "x2"}
    layout["legend"] = {**layout["legend"], "itemsizing": "constant"}
    return drawn
