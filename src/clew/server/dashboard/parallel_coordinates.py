"""A plot of parallel coordinates: each complete trial is a line through its settings to its objective.

It consists of plain lines. Plotly's own plot of this kind compiles code in the browser, which the content security
policy of the pages forbids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clew.tuning.remote_trials import Elsewhere

_MAX_TRIALS = 200
_COLOURS = ((0xD5, 0x5E, 0x00), (0xB4, 0xAA, 0x98), (0x00, 0x72, 0xB2))
"""Red, green and blue of orange (worst), grey and blue (best)."""


def parallel_coordinates(study: Elsewhere) -> list[dict[str, Any]]:
    """Return the plot of the best 200 complete trials, as a list of at most one figure."""
    from clew.tuning.report import dimension

    goal = study.config.objectives[0]
    complete = [outcome for outcome in study.outcomes if outcome.state == "complete"]
    best_last = sorted(complete, key=lambda outcome: outcome.values[0], reverse=goal.direction == "minimize")
    outcomes = best_last[-_MAX_TRIALS:]
    if len(outcomes) < 2:
        return []
    values = [outcome.values[0] for outcome in outcomes]
    axes = [dimension(study, key, outcomes) for key in study.config.space]
    axes.append({"label": goal.metric, "values": values, "range": [min(values), max(values)]})
    names = [f"trial {outcome.number}: {outcome.values[0]:.5g}" for outcome in outcomes]
    traces = [_trace(axes, index, name, len(outcomes)) for index, name in enumerate(names)]
    layout = {
        "title": {"text": "Parallel coordinates (blue is better)"},
        "xaxis": {"tickvals": list(range(len(axes))), "ticktext": [axis["label"] for axis in axes], "side": "top"},
        "yaxis": {"visible": False, "range": [-0.06, 1.06]},
        "annotations": [tick for index, axis in enumerate(axes) for tick in _ticks(index, axis)],
        "xaxis2": {"visible": False},
        "showlegend": False,
        "hovermode": "closest",
    }
    return [{"data": traces, "layout": layout}]


def _trace(axes: list[dict[str, Any]], index: int, name: str, count: int) -> dict[str, Any]:
    """Return the line of one trial; the last one is the best."""
    rank = index / max(count - 1, 1)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": list(range(len(axes))),
        "y": [_height(axis, axis["values"][index]) for axis in axes],
        "line": {"color": _colour(rank), "width": 2.5 if index == count - 1 else 1.2},
        "name": name,
        "hovertemplate": f"{name}<extra></extra>",
        "showlegend": False,
        "opacity": 0.75,
    }


def _height(axis: Mapping[str, Any], value: float) -> float:
    low, high = axis["range"]
    return round((value - low) / (high - low), 4) if high > low else 0.5


def _ticks(index: int, axis: Mapping[str, Any]) -> list[dict[str, Any]]:
    positions = axis.get("tickvals") or axis["range"]
    texts = axis.get("ticktext") or [f"{value:.4g}" for value in positions]
    base = {"x": index, "xanchor": "left", "xshift": 5, "showarrow": False, "font": {"size": 10.5}}
    return [{**base, "y": _height(axis, value), "text": text} for value, text in zip(positions, texts, strict=True)]


def _colour(rank: float) -> str:
    """Return a colour from orange (0) over grey to blue (1)."""
    worst, middle, best = _COLOURS
    low, high, part = (worst, middle, 2 * rank) if rank < 0.5 else (middle, best, 2 * rank - 1)
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(low, high, strict=True))
