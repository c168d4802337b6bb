"""Event displays: what was there, what was found, what was missed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from clew import Table, figure
from clew.recipes.tracking import matching
from clew.recipes.tracking.geometry import Bools, Detector, Floats, Ints

_DOTTED = {"color": "#9aa0a6", "width": 1, "dash": "dot"}
_KINDS = (("found", 2, "solid"), ("missed", 1, "dash"), ("ghost", 3, "dot"))


def events(
    samples: Table, found: Ints, match: matching.Match, detector: Detector, wanted: Bools | None = None
) -> dict[str, figure.Figure]:
    """One figure an event, two views side by side: across the beam and r-z, or for planes x-z and y-z.

    True tracks that are not `wanted` are drawn where they are found, and not as missed.
    """
    missed = ~match.true_found if wanted is None else wanted & ~match.true_found
    offsets = samples.ragged("x").offsets
    drawn = {}
    for event in range(len(samples)):
        window = slice(int(offsets[event]), int(offsets[event + 1]))
        lines = _lines(found[window], match.true_of_hit[window], match, missed)
        hits = np.stack([samples.ragged(name).values[window].astype(np.float64) for name in "xyz"], axis=1)
        number = int(samples.fixed("event")[event])
        drawn[f"event_{number}"] = _draw(number, hits, lines, detector)
    return drawn


def _lines(found: Ints, true: Ints, match: matching.Match, missed: Bools) -> dict[str, list[Ints]]:
    """The hits of each track, by what became of it."""
    lines: dict[str, list[Ints]] = {name: [] for name, _, _ in _KINDS}
    for number in np.unique(true[true >= 0]):
        if match.true_found[number] or missed[number]:
            lines["missed" if missed[number] else "found"].append(np.flatnonzero(true == number))
    for number in np.unique(found[found >= 0]):
        if not match.found_true[number]:
            lines["ghost"].append(np.flatnonzero(found == number))
    return lines


@dataclass(frozen=True)
class _View:
    """One projection: where hits lie in it, what its axes are, what of the detector is drawn."""

    x: Floats
    y: Floats
    titles: tuple[str, str]
    ranges: tuple[list[float], list[float]]
    origin: bool
    """Whether tracks are drawn from the origin."""
    folded: bool
    """Whether y is a radius with a sign: a track is then drawn on one side."""
    shapes: list[dict[str, Any]]


def _views(hits: Floats, detector: Detector) -> tuple[_View, _View]:
    return _planar(hits, detector) if detector.planar else _cylindrical(hits, detector)


def _cylindrical(hits: Floats, detector: Detector) -> tuple[_View, _View]:
    """Across the beam, and r against z."""
    radius, outer = np.hypot(hits[:, 0], hits[:, 1]), max(detector.radii) * 1.12
    side, wide = np.where(hits[:, 1] < 0, -radius, radius), [-outer, outer]
    circle = {"type": "circle", "layer": "below", "line": _DOTTED, "xref": "x", "yref": "y"}
    circles = [{**circle, "x0": -r, "x1": r, "y0": -r, "y1": r} for r in detector.radii]
    long = [-detector.z_max * 1.03, detector.z_max * 1.03]
    across = _View(hits[:, 0], hits[:, 1], ("x [mm]", "y [mm]"), (wide, wide), True, False, circles)
    titles = ("z [mm]", "r, below the beam negative [mm]")
    return across, _View(hits[:, 2], side, titles, (long, wide), False, True, [])


def _planar(hits: Floats, detector: Detector) -> tuple[_View, _View]:
    """x against z, in which tracks bend, and y against z."""
    long, margin = [0.0, detector.planes[-1] * 1.05], 1.08
    made = []
    for column, name, half, axes in ((0, "x", detector.x_max, ""), (1, "y", detector.y_max, "2")):
        line = {"type": "line", "layer": "below", "line": _DOTTED, "xref": f"x{axes}", "yref": f"y{axes}"}
        lines = [{**line, "x0": z, "x1": z, "y0": -half, "y1": half} for z in detector.planes]
        titles, ranges = ("z [mm]", f"{name} [mm]"), (long, [-half * margin, half * margin])
        made.append(_View(hits[:, 2], hits[:, column], titles, ranges, True, False, lines))
    return made[0], made[1]


def _draw(number: int, hits: Floats, lines: dict[str, list[Ints]], detector: Detector) -> figure.Figure:
    depth = hits[:, 2] if detector.planar else np.hypot(hits[:, 0], hits[:, 1])
    views = _views(hits, detector)
    traces: list[dict[str, Any]] = []
    for view, axes in zip(views, ("", "2"), strict=True):
        on = {"xaxis": f"x{axes}", "yaxis": f"y{axes}", "showlegend": not axes}
        grey = {"size": 4, "color": "#9aa0a6"}
        traces.append(figure.points(view.x, view.y, "hits", colour=6, marker=grey, **on))
        for name, colour, dash in _KINDS:
            x, y = _polyline(lines[name], view, depth)
            stroke = {"color": figure.COLOURS[colour], "width": 2, "dash": dash}
            if x or not axes:
                traces.append(figure.line(x, y, name, colour=colour, mode="lines+markers", **on, line=stroke))
    return _layout(number, traces, views, square=not detector.planar)


def _polyline(groups: list[Ints], view: _View, depth: Floats) -> tuple[list[Any], list[Any]]:
    """All tracks of a kind as one line with gaps, each from the inside out."""
    xs: list[Any] = []
    ys: list[Any] = []
    for group in groups:
        order = group[np.argsort(depth[group])]
        start: list[Any] = [0.0] if view.origin else []
        height = np.copysign(depth[order], view.y[order].sum() or 1.0) if view.folded else view.y[order]
        xs += [*start, *view.x[order].round(2).tolist(), None]
        ys += [*start, *height.round(2).tolist(), None]
    return xs, ys


def _layout(number: int, traces: list[dict[str, Any]], views: tuple[_View, _View], *, square: bool) -> figure.Figure:
    left, right = views
    drawn = figure.figure(traces, title=f"event {number}", x=left.titles[0], y=left.titles[1])
    layout = drawn["layout"]
    base = {**layout["xaxis"], "title": {}}
    layout["shapes"] = [*left.shapes, *right.shapes]
    layout["xaxis"].update(domain=[0, 0.44], range=left.ranges[0])
    layout["yaxis"].update(range=left.ranges[1], **({"scaleanchor": "x"} if square else {}))
    below = {"domain": [0.56, 1], "anchor": "y2", "range": right.ranges[0]}
    layout["xaxis2"] = {**base, "title": {"text": right.titles[0]}, **below}
    layout["yaxis2"] = {**base, "title": {"text": right.titles[1]}, "anchor": "x2", "range": right.ranges[1]}
    return drawn
