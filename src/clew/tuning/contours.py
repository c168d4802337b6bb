"""Contour plots of a study: the objective over pairs of parameters, between the trials."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from typing import Any

import numpy as np

from clew.figure import Figure, figure
from clew.tuning.config import Parameter
from clew.tuning.parameter_axis import parameter_axis
from clew.tuning.snapshot import StudySnapshot, TrialSummary

_MOST_PARAMETERS = 3
"""Parameters that are paired: the most important ones."""
_GRID = 24
_FEWEST = 6
"""Complete trials below which nothing is drawn."""
_COLOURS = [[0, "#0072b2"], [0.5, "#b4aa98"], [1, "#d55e00"]]


def contour_figures(study: StudySnapshot) -> Iterator[Figure]:
    """Yield one figure per pair of the most important numeric parameters."""
    space, objective = study.config.space, study.config.objectives[0]
    numeric = [key for key in (study.importances() or space) if space[key].bounds is not None]
    for x, y in combinations(islice(numeric, _MOST_PARAMETERS), 2):
        trials = [trial for trial in study.complete if x in trial.settings and y in trial.settings]
        if len(trials) < _FEWEST:
            continue
        traces = [_surface(space[x], space[y], x, y, trials), _markers(x, y, trials)]
        better = "low" if objective.goal == "minimize" else "high"
        title = f"{objective.metric} ({better} is better) over {x.rpartition('.')[2]} and {y.rpartition('.')[2]}"
        axes: dict[str, Any] = {"xaxis": parameter_axis(space[x]), "yaxis": parameter_axis(space[y])}
        yield figure(traces, title=title, x=x, y=y, showlegend=False, **axes)


def _surface(a: Parameter, b: Parameter, x: str, y: str, trials: Sequence[TrialSummary]) -> dict[str, Any]:
    """Interpolate between the trials on a grid: the mean, weighted by the inverse square of the distance."""
    grids = [_unit_grid(parameter) for parameter in (a, b)]
    places = np.array([[_unit(p, trial.settings[k]) for p, k in ((a, x), (b, y))] for trial in trials])
    values = np.array([trial.values[0] for trial in trials])
    shares = np.linspace(0, 1, _GRID)
    mesh = np.stack(np.meshgrid(shares, shares), axis=-1)
    weights = 1 / (((mesh[:, :, None, :] - places[None, None]) ** 2).sum(-1) + 1e-4)
    z = (weights * values).sum(-1) / weights.sum(-1)
    return {
        "type": "contour",
        "x": grids[0],
        "y": grids[1],
        "z": [[float(f"{value:.4g}") for value in row] for row in z],
        "colorscale": _COLOURS,
        "contours": {"coloring": "heatmap"},
        "line": {"width": 0.5},
        "colorbar": {"thickness": 10, "outlinewidth": 0},
        "hoverinfo": "skip",
        "opacity": 0.75,
    }


def _markers(x: str, y: str, trials: Sequence[TrialSummary]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [trial.settings[x] for trial in trials],
        "y": [trial.settings[y] for trial in trials],
        "text": [f"{trial.name}: {trial.values[0]:.5g}" for trial in trials],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": "#444", "size": 5},
    }


def _ends(parameter: Parameter) -> tuple[float, float]:
    assert parameter.bounds is not None
    low, high = (math.log10(bound) if parameter.log is not None else float(bound) for bound in parameter.bounds)
    return low, high


def _unit(parameter: Parameter, value: float) -> float:
    """Return the position of a value in the range of its parameter, from 0 to 1."""
    low, high = _ends(parameter)
    position = math.log10(value) if parameter.log is not None else float(value)
    return (position - low) / (high - low) if high > low else 0.5


def _unit_grid(parameter: Parameter) -> list[float]:
    values = np.linspace(*_ends(parameter), _GRID)
    return [float(f"{10**value if parameter.log is not None else value:.6g}") for value in values.tolist()]
