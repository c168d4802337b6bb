"""Event displays: what was there, what was found, what was missed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew import Table, figure
from clew.recipes.tracking import matching
from clew.recipes.tracking.geometry import Detector

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_KINDS = (("found", 2, "solid"), ("missed", 1, "dash"), ("ghost", 3, "dot"))


def events(samples: Table, found: Ints, detector: Detector) -> dict[str, figure.Figure]:
    """One figure an event: the transverse view and the r-z view, side by side."""
    match = matching.match(samples, found)
    offsets = samples.ragged("x").offsets
    drawn = {}
    for event in range(len(samples)):
        window = slice(int(offsets[event]), int(offsets[event + 1]))
        lines = _lines(found[window], match.true_of_hit[window], match)
        hits = np.stack([samples.ragged(name).values[window].astype(np.float64) for name in "xyz"], axis=1)
        number = int(samples.fixed("event")[event])
        drawn[f"event_{number}"] = _draw(number, hits, lines, detector)
    return drawn


def _lines(found: Ints, true: Ints, match: matching.Match) -> dict[str, list[Ints]]:
    """The hits of each track, by what became of it."""
    lines: dict[str, list[Ints]] = {name: [] for name, _, _ in _KINDS}
    for number in np.unique(true[true >= 0]):
        lines["found" if match.true_found[number] else "missed"].append(np.flatnonzero(true == number))
    for number in np.unique(found[found >= 0]):
        if not match.found_true[number]:
            lines["ghost"].append(np.flatnonzero(found == number))
    return lines


def _draw(number: int, hits: Floats, lines: dict[str, list[Ints]], detector: Detector) -> figure.Figure:
    radius = np.hypot(hits[:, 0], hits[:, 1])
    side = np.where(hits[:, 1] < 0, -radius, radius)
    traces: list[dict[str, Any]] = []
    for horizontal, vertical, axes in ((hits[:, 0], hits[:, 1], ""), (hits[:, 2], side, "2")):
        on = {"xaxis": f"x{axes}", "yaxis": f"y{axes}", "showlegend": not axes}
        grey = {"size": 4, "color": "#9aa0a6"}
        traces.append(figure.points(horizontal, vertical, "hits", colour=6, marker=grey, **on))
        for name, colour, dash in _KINDS:
            x, y = _polyline(lines[name], horizontal, vertical, radius, transverse=not axes)
            stroke = {"color": figure.COLOURS[colour], "width": 2, "dash": dash}
            if x or not axes:
                traces.append(figure.line(x, y, name, colour=colour, mode="lines+markers", **on, line=stroke))
    return _layout(number, traces, detector)


def _polyline(
    groups: list[Ints], x: Floats, y: Floats, radius: Floats, *, transverse: bool
) -> tuple[list[Any], list[Any]]:
    """All tracks of a kind as one line with gaps, each from the inside out; in r-z each on one side of the beam."""
    xs: list[Any] = []
    ys: list[Any] = []
    for group in groups:
        order = group[np.argsort(radius[group])]
        start: list[Any] = [0.0] if transverse else []
        height = y[order] if transverse else np.copysign(radius[order], y[order].sum() or 1.0)
        xs += [*start, *x[order].round(2).tolist(), None]
        ys += [*start, *height.round(2).tolist(), None]
    return xs, ys


def _layout(number: int, traces: list[dict[str, Any]], detector: Detector) -> figure.Figure:
    drawn = figure.figure(traces, title=f"event {number}", x="x [mm]", y="y [mm]")
    layout, outer = drawn["layout"], max(detector.radii) * 1.12
    base, reach = {**layout["xaxis"], "title": {}}, [-detector.z_max, detector.z_max]
    circle = {"type": "circle", "layer": "below", "line": {"color": "#9aa0a6", "width": 1, "dash": "dot"}}
    layout["shapes"] = [
        {**circle, "xref": "x", "yref": "y", "x0": -r, "x1": r, "y0": -r, "y1": r} for r in detector.radii
    ]
    layout["xaxis"].update(domain=[0, 0.44], range=[-outer, outer])
    layout["yaxis"].update(range=[-outer, outer], scaleanchor="x")
    layout["xaxis2"] = {**base, "title": {"text": "z [mm]"}, "domain": [0.56, 1], "anchor": "y2", "range": reach}
    layout["yaxis2"] = {
        **base,
        "title": {"text": "r, below the beam negative [mm]"},
        "anchor": "x2",
        "range": [-outer, outer],
    }
    return drawn
