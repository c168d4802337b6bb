"""Plots as plain data: plotly's JSON format, built without importing plotly. Its JavaScript draws them in reports.

All plots of clew are built here, so that they share one style.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

Figure: TypeAlias = dict[str, Any]

# Okabe and Ito's palette (the yellow is darker): people with any kind of colour vision can distinguish the colours.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#b8a900")
_DASHES = ("solid", "dash", "dot", "dashdot")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up")

_LEGEND_BELOW = {"xref": "container", "xanchor": "left", "y": 0, "yref": "container", "yanchor": "bottom"}
"""Position of a legend: at the bottom, where it does not cover the titles of the axes."""


def figure(data: Sequence[Mapping[str, Any]], *, title: str, x: str = "", y: str = "", **layout: Any) -> Figure:
    """A figure from plotly traces, with a title and the axes of clew's style.

    Args:
        data: Plotly traces, as `line`, `points` and `steps` return them.
        title: Title of the figure.
        x: Title of the x axis, with the unit.
        y: Title of the y axis, with the unit.
        **layout: More of plotly's layout. It overrides the default layout.

    Example:
        >>> curve = line([0, 1], [0.5, 0.25], "loss")
        >>> figure([curve], title="Loss", x="epoch")["layout"]["title"]["text"]
        'Loss'
    """
    axis = {"showline": True, "mirror": True, "ticks": "inside", "zeroline": False, "automargin": True}
    base: dict[str, Any] = {
        "title": {"text": title, "x": 0.02, "xanchor": "left"},
        "xaxis": {**axis, "title": {"text": x}},
        "yaxis": {**axis, "title": {"text": y}},
        "colorway": list(COLOURS),
        "margin": {"l": 64, "r": 20, "t": 44, "b": 64},
        "legend": {"orientation": "h", "x": 0, "font": {"size": 12}, **_LEGEND_BELOW},
    }
    for key in ("xaxis", "yaxis"):
        if layout.get(key, {}).get("type") == "log":
            base[key] |= _ticks(_decades(data, key[0]))
    for key, value in layout.items():
        base[key] = {**base[key], **value} if isinstance(base.get(key), dict) else value
    return {"data": [dict(trace) for trace in data], "layout": base}


def _decades(data: Sequence[Mapping[str, Any]], axis: str) -> float:
    """Number of powers of ten between the smallest and the largest positive value along an axis."""
    values = np.array([value for trace in data for value in trace.get(axis, ()) if value is not None and value > 0])
    return float(np.log10(values.max() / values.min())) if values.size else 0.0


def _ticks(decades: float) -> dict[str, Any]:
    """Tick settings of a logarithmic axis, with whole numbers. A short axis also labels 2 and 5: it may contain no
    power of ten."""
    if decades > 3:
        return {"exponentformat": "power", "dtick": 1}
    return {"dtick": 1 if decades > 2.5 else "D2", "tickformat": "~g"} if decades > 0.7 else {}


def line(x: ArrayLike, y: ArrayLike, name: str, *, colour: int = 0, mode: str = "lines", **more: Any) -> dict[str, Any]:
    """One curve. A `colour` from 8 on is one of the first eight with another dash."""
    trace = {"type": "scatter", "mode": mode, "x": plain(x), "y": plain(y), "name": name}
    again, place = divmod(colour, len(COLOURS))
    dash = {"dash": _DASHES[again % len(_DASHES)]} if again else {}
    return {**trace, "line": {"color": COLOURS[place], "width": 2, **dash}, **more}


def points(x: ArrayLike, y: ArrayLike, name: str, *, colour: int = 0, **more: Any) -> dict[str, Any]:
    """Markers. `error_x` and `error_y` may be passed as plotly's error bars."""
    trace = {"type": "scatter", "mode": "markers", "x": plain(x), "y": plain(y), "name": name}
    again, place = divmod(colour, len(COLOURS))
    symbol = {"symbol": _SYMBOLS[again % len(_SYMBOLS)]} if again else {}
    return {**trace, "marker": {"color": COLOURS[place], "size": 7, **symbol}, **more}


def interval_bars(values: ArrayLike, low: ArrayLike, high: ArrayLike) -> dict[str, Any]:
    """Error bars for `points` that reach from `low` to `high`, which may differ in their distance from the values."""
    middle = np.asarray(values, dtype=float)
    up, down = np.asarray(high, dtype=float) - middle, middle - np.asarray(low, dtype=float)
    ends = {"array": plain(np.maximum(up, 0.0)), "arrayminus": plain(np.maximum(down, 0.0))}
    return {"type": "data", "symmetric": False, **ends, "thickness": 1.5}


def steps(edges: ArrayLike, counts: ArrayLike, name: str, *, colour: int = 0, **more: Any) -> dict[str, Any]:
    """A histogram drawn as an outline: `counts` between `edges`."""
    heights = np.asarray(counts, dtype=float)
    y = np.append(heights, heights[-1] if len(heights) else 0.0)
    stroke = {"shape": "hv", "color": COLOURS[colour % len(COLOURS)]}
    return line(edges, y, name, colour=colour, **{"line": stroke, **more})


def table(columns: Mapping[str, Sequence[Any]], *, title: str) -> Figure:
    """A table as a figure. Numbers have four digits.

    Args:
        columns: The cells of each column, by its heading. All columns have the same length.
        title: Title of the figure.
    """
    texts = {name: [f"{c:.4g}" if isinstance(c, float) else str(c) for c in cells] for name, cells in columns.items()}
    hidden = {"visible": False, "fixedrange": True}
    style: dict[str, Any] = {
        "align": "left",
        "fill": {"color": "rgba(0,0,0,0)"},
        "line": {"color": COLOURS[6]},
        "height": 28,
    }
    trace = {
        "type": "table",
        "header": {"values": list(texts), **style},
        "cells": {"values": list(texts.values()), **style},
    }
    rows = 1 + max(map(len, texts.values()), default=0)
    margin = {"l": 16, "r": 16, "t": 44, "b": 16}
    height = margin["t"] + margin["b"] + 8 + style["height"] * rows
    return figure([trace], title=title, xaxis=hidden, yaxis=hidden, margin=margin, height=height)


def picture(svg: str, *, title: str) -> Figure:
    """A figure that shows an SVG image, for example one drawn by matplotlib."""
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    hidden = {"visible": False, "fixedrange": True, "range": [0, 1]}
    image = {"source": source, "xref": "paper", "yref": "paper", "x": 0.5, "y": 1, "sizex": 1, "sizey": 1}
    placed = {**image, "xanchor": "center", "yanchor": "top", "sizing": "contain", "layer": "above"}
    margin = {"l": 8, "r": 8, "t": 40, "b": 8}
    return figure([], title=title, images=[placed], xaxis=hidden, yaxis=hidden, margin=margin)


def plain(values: ArrayLike) -> list[Any]:
    """Numbers as JSON can hold them. NaN and infinity become null, which is a gap in the curve."""
    array = np.asarray(values)
    if array.dtype.kind != "f":
        return list(array.tolist())
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in array.tolist()]
