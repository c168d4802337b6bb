"""Event displays: hits, found tracks, missed tracks and ghosts."""

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
    samples: Table, found_tracks: Ints, match: matching.Match, detector: Detector, selected: Bools | None = None
) -> dict[str, figure.Figure]:
    """One figure per event with two views: across the beam and r-z for cylinders, x-z and y-z for planes.

    Args:
        samples: Samples with the columns of hits.
        found_tracks: The found track of each hit, numbered through the table; -1 for none.
        match: The comparison of found and true tracks.
        detector: The detector.
        selected: Which true tracks count as missed if they are not found; all by default.

    Returns:
        Figures by name, `event_NUMBER`.
    """
    missed = ~match.true_found if selected is None else selected & ~match.true_found
    offsets = samples.ragged("x").offsets
    figures = {}
    for event in range(len(samples)):
        window = slice(int(offsets[event]), int(offsets[event + 1]))
        lines = _lines(found_tracks[window], match.true_of_hit[window], match, missed)
        hits = np.stack([samples.ragged(name).values[window].astype(np.float64) for name in "xyz"], axis=1)
        number = int(samples.fixed("event")[event])
        figures[f"event_{number}"] = _draw(number, hits, lines, detector)
    return figures


def _lines(found_tracks: Ints, true_tracks: Ints, match: matching.Match, missed: Bools) -> dict[str, list[Ints]]:
    """The hits of found, missed and ghost tracks."""
    lines: dict[str, list[Ints]] = {name: [] for name, _, _ in _KINDS}
    for number in np.unique(true_tracks[true_tracks >= 0]):
        if match.true_found[number] or missed[number]:
            lines["missed" if missed[number] else "found"].append(np.flatnonzero(true_tracks == number))
    for number in np.unique(found_tracks[found_tracks >= 0]):
        if not match.found_true[number]:
            lines["ghost"].append(np.flatnonzero(found_tracks == number))
    return lines


@dataclass(frozen=True)
class _View:
    """One projection: positions of hits, axes, and shapes of the detector."""

    x: Floats
    y: Floats
    titles: tuple[str, str]
    ranges: tuple[list[float], list[float]]
    origin: bool
    """Whether tracks start at the origin."""
    folded: bool
    """Whether y is a radius with a sign. All hits of a track then get the same sign."""
    shapes: list[dict[str, Any]]


def _views(hits: Floats, detector: Detector) -> tuple[_View, _View]:
    return _planar(hits, detector) if detector.planar else _cylindrical(hits, detector)


def _cylindrical(hits: Floats, detector: Detector) -> tuple[_View, _View]:
    """Two views: across the beam, and r against z."""
    radius, outer = np.hypot(hits[:, 0], hits[:, 1]), max(detector.radii) * 1.12
    side, r_range = np.where(hits[:, 1] < 0, -radius, radius), [-outer, outer]
    circle = {"type": "circle", "layer": "below", "line": _DOTTED, "xref": "x", "yref": "y"}
    circles = [{**circle, "x0": -r, "x1": r, "y0": -r, "y1": r} for r in detector.radii]
    z_range = [-detector.z_max * 1.03, detector.z_max * 1.03]
    across = _View(hits[:, 0], hits[:, 1], ("x [mm]", "y [mm]"), (r_range, r_range), True, False, circles)
    titles = ("z [mm]", "r, below the beam negative [mm]")
    return across, _View(hits[:, 2], side, titles, (z_range, r_range), False, True, [])


def _planar(hits: Floats, detector: Detector) -> tuple[_View, _View]:
    """Two views: x against z, in which tracks bend, and y against z."""
    z_range, margin = [0.0, detector.planes[-1] * 1.05], 1.08
    views = []
    for column, name, half, axes in ((0, "x", detector.x_max, ""), (1, "y", detector.y_max, "2")):
        line = {"type": "line", "layer": "below", "line": _DOTTED, "xref": f"x{axes}", "yref": f"y{axes}"}
        lines = [{**line, "x0": z, "x1": z, "y0": -half, "y1": half} for z in detector.planes]
        titles, ranges = ("z [mm]", f"{name} [mm]"), (z_range, [-half * margin, half * margin])
        views.append(_View(hits[:, 2], hits[:, column], titles, ranges, True, False, lines))
    return views[0], views[1]


def _draw(number: int, hits: Floats, lines: dict[str, list[Ints]], detector: Detector) -> figure.Figure:
    depth = hits[:, 2] if detector.planar else np.hypot(hits[:, 0], hits[:, 1])
    views = _views(hits, detector)
    traces: list[dict[str, Any]] = []
    for view, axes in zip(views, ("", "2"), strict=True):
        axis_options = {"xaxis": f"x{axes}", "yaxis": f"y{axes}", "showlegend": not axes}
        marker = {"size": 4, "color": "#9aa0a6"}
        traces.append(figure.points(view.x, view.y, "hits", colour=6, marker=marker, **axis_options))
        for name, colour, dash in _KINDS:
            x, y = _polyline(lines[name], view, depth)
            stroke = {"color": figure.COLOURS[colour], "width": 2, "dash": dash}
            if x or not axes:
                traces.append(figure.line(x, y, name, colour=colour, mode="lines+markers", **axis_options, line=stroke))
    return _layout(number, traces, views, square=not detector.planar)


def _polyline(groups: list[Ints], view: _View, depth: Floats) -> tuple[list[Any], list[Any]]:
    """All tracks of a kind as one line with gaps. The hits of a track are ordered by depth."""
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
    second_axis = {"domain": [0.56, 1], "anchor": "y2", "range": right.ranges[0]}
    layout["xaxis2"] = {**base, "title": {"text": right.titles[0]}, **second_axis}
    layout["yaxis2"] = {**base, "title": {"text": right.titles[1]}, "anchor": "x2", "range": right.ranges[1]}
    return drawn
