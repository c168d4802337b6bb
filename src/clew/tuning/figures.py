"""The figures of a study, from a snapshot of it. The report and the dashboard of the server draw the same ones.

They are plain plotly JSON in the look of clew (`clew.figure`). `optuna.visualization` draws most of them too, but it
needs an Optuna study, imports plotly and has another look; only its computations are used (`clew.tuning.best_trials`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from clew.figure import COLOURS, Figure, figure, line, points
from clew.tuning.config import Parameter
from clew.tuning.contours import contour_figures
from clew.tuning.parameter_axis import parameter_axis
from clew.tuning.snapshot import StudySnapshot, TrialSummary

STATE_COLOURS = {
    "complete": "#0072b2",
    "pruned": "#e69f00",
    "failed": "#7f7f7f",
    "running": "#009e73",
    "waiting": "#7f7f7f",
}
_MOST_LINES = 200
"""Largest number of trials in a figure with one line per trial: a browser draws more too slowly."""
_LOG_RATIO = 30
"""An axis is logarithmic if its values span more than this factor."""


def study_figures(study: StudySnapshot) -> dict[str, list[Figure]]:
    """Return the figures of a study by section: `search`, `parameters`, `training` and `cost`."""
    return {
        "search": [*_history(study), *_pareto_front(study), *_importances(study)],
        "parameters": [*_parallel_coordinates(study), *_slices(study), *contour_figures(study)],
        "training": _training_curves(study),
        "cost": _trial_costs(study),
    }


def _history(study: StudySnapshot) -> Iterator[Figure]:
    objective = study.config.objectives[0]
    trials = [trial for trial in study.trials if trial.values]
    if not trials:
        return
    values = [trial.values[0] for trial in trials]
    error: dict[str, Any] = {}
    if any(trial.spread for trial in trials):
        error = {"error_y": {"array": [trial.spread[0] if trial.spread else 0 for trial in trials], "thickness": 1}}
    traces = [points([trial.number for trial in trials], values, "complete", **error)]
    pruned = study.pruned
    if pruned:
        last = [trial.last_report for trial in pruned]
        traces.append(points([trial.number for trial in pruned], last, "pruned, last value", colour=4))
    if len(study.config.objectives) == 1:
        best = list(accumulate(values, min if objective.goal == "minimize" else max))
        stroke = {"color": COLOURS[1], "width": 2, "shape": "hv"}
        traces.append(line([trial.number for trial in trials], best, "best so far", line=stroke))
    yield figure(traces, title="History", x="trial", y=objective.metric, yaxis=_axis_type(values))


def _axis_type(values: Sequence[float]) -> dict[str, Any]:
    """Return a logarithmic axis if the values span a large factor."""
    finite = [value for value in values if math.isfinite(value)]
    wide = bool(finite) and min(finite) > 0 and max(finite) / min(finite) > _LOG_RATIO
    return {"type": "log"} if wide else {}


def _pareto_front(study: StudySnapshot) -> Iterator[Figure]:
    objectives, complete = study.config.objectives, study.complete
    if len(objectives) < 2 or not complete:
        return
    best = study.best()
    numbers = {trial.number for trial in best}
    dominated = [trial for trial in complete if trial.number not in numbers]
    for index in range(1, len(objectives)):
        traces = [
            points(
                [trial.values[0] for trial in trials],
                [trial.values[index] for trial in trials],
                name,
                colour=colour,
                text=[trial.name for trial in trials],
            )
            for trials, name, colour in ((dominated, "others", 6), (best, "Pareto front", 1))
        ]
        axes = {
            "xaxis": _axis_type([trial.values[0] for trial in complete]),
            "yaxis": _axis_type([trial.values[index] for trial in complete]),
        }
        yield figure(traces, title="Pareto front", x=objectives[0].metric, y=objectives[index].metric, **axes)


def _importances(study: StudySnapshot) -> Iterator[Figure]:
    importances = study.importances()
    if not importances:
        return
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": list(importances),
        "x": [round(value, 4) for value in importances.values()],
        "marker": {"color": COLOURS[0]},
    }
    layout: dict[str, Any] = {"yaxis": {"autorange": "reversed"}, "xaxis": {"range": [0, 1]}}
    yield figure([bars], title="Importance of parameters", x="share of the difference explained", **layout)


def _parallel_coordinates(study: StudySnapshot) -> Iterator[Figure]:
    """Every complete trial as a line through its settings to its objective.

    It consists of scatter traces: plotly's own kind compiles code in the browser, which the content policy of the
    dashboard forbids.
    """
    objective = study.config.objectives[0]
    worst_first = objective.goal == "minimize"
    trials = sorted(study.complete, key=lambda trial: trial.values[0], reverse=worst_first)[-_MOST_LINES:]
    if len(trials) < 2:
        return
    values = [trial.values[0] for trial in trials]
    axes = [_parallel_axis(study.config.space[key], key, trials) for key in study.config.space]
    axes.append({"label": objective.metric, "values": values, "range": [min(values), max(values)]})
    traces = [_parallel_line(axes, index, trial, len(trials)) for index, trial in enumerate(trials)]
    layout = {
        "title": {"text": "Parallel coordinates (blue is better)"},
        "xaxis": {"tickvals": list(range(len(axes))), "ticktext": [axis["label"] for axis in axes], "side": "top"},
        "yaxis": {"visible": False, "range": [-0.06, 1.06]},
        "annotations": [note for index, axis in enumerate(axes) for note in _parallel_ticks(index, axis)],
        "xaxis2": {"visible": False},  # marks a wide figure
        "showlegend": False,
        "hovermode": "closest",
    }
    yield {"data": traces, "layout": layout}


def _parallel_line(axes: Sequence[Mapping[str, Any]], index: int, trial: TrialSummary, count: int) -> dict[str, Any]:
    """Return the line of one trial; `index` is its rank, the best last."""
    share = index / max(count - 1, 1)
    name = f"trial {trial.number}: {trial.values[0]:.5g}"
    return {
        "type": "scatter",
        "mode": "lines",
        "x": list(range(len(axes))),
        "y": [_height(axis, axis["values"][index]) for axis in axes],
        "line": {"color": _colour(share), "width": 2.5 if index == count - 1 else 1.2},
        "name": name,
        "hovertemplate": f"{name}<extra></extra>",
        "showlegend": False,
        "opacity": 0.75,
    }


def _parallel_axis(parameter: Parameter, key: str, trials: Sequence[TrialSummary]) -> dict[str, Any]:
    """Return the values, range and ticks of one parameter."""
    label = key.rpartition(".")[2]
    settings = [trial.settings.get(key) for trial in trials]
    if parameter.choice is not None:
        names = [str(choice) for choice in parameter.choice]
        positions = [names.index(str(value)) if str(value) in names else -1 for value in settings]
        ticks = [*range(len(names)), *([-1] if -1 in positions else [])]
        texts = [*names, *(["–"] if -1 in positions else [])]
        return {
            "label": label,
            "values": positions,
            "tickvals": ticks,
            "ticktext": texts,
            "range": [min(ticks), max(ticks)],
        }
    assert parameter.bounds is not None
    log = parameter.log is not None
    low, high = (math.log10(bound) if log else bound for bound in parameter.bounds)
    missing = low - (high - low) / 8  # below the range: the trial does not have this parameter
    values = [missing if value is None else math.log10(value) if log else value for value in settings]
    ticks = [low + (high - low) * index / 4 for index in range(5)]
    texts = [f"{10**tick if log else tick:.3g}" for tick in ticks]
    if missing in values:
        low, ticks, texts = missing, [missing, *ticks], ["–", *texts]
    return {"label": label, "values": values, "range": [low, high], "tickvals": ticks, "ticktext": texts}


def _height(axis: Mapping[str, Any], value: float) -> float:
    low, high = axis["range"]
    return round((value - low) / (high - low), 4) if high > low else 0.5


def _parallel_ticks(index: int, axis: Mapping[str, Any]) -> list[dict[str, Any]]:
    ticks = axis.get("tickvals") or axis["range"]
    texts = axis.get("ticktext") or [f"{value:.4g}" for value in ticks]
    base = {"x": index, "xanchor": "left", "xshift": 5, "showarrow": False, "font": {"size": 10.5}}
    return [{**base, "y": _height(axis, value), "text": text} for value, text in zip(ticks, texts, strict=True)]


def _colour(share: float) -> str:
    """Return a colour from orange (0) over grey to blue (1)."""
    stops = ((0xD5, 0x5E, 0x00), (0xB4, 0xAA, 0x98), (0x00, 0x72, 0xB2))
    low, high, part = (stops[0], stops[1], 2 * share) if share < 0.5 else (stops[1], stops[2], 2 * share - 1)
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(low, high, strict=True))


def _slices(study: StudySnapshot) -> Iterator[Figure]:
    """The objective against each parameter; for pruned trials the last reported value."""
    objective = study.config.objectives[0]
    for key, parameter in study.config.space.items():
        complete = [trial for trial in study.complete if key in trial.settings]
        if not complete:
            continue
        marker = {
            "color": [trial.number for trial in complete],
            "colorscale": [[0, "#c9dff0"], [1, "#003f66"]],
            "size": 8,
            "line": {"width": 0.5, "color": "#444"},
        }
        traces = [_slice(key, parameter, complete) | {"marker": marker, "name": "complete"}]
        pruned = [trial for trial in study.pruned if key in trial.settings]
        if pruned:
            faint = {"color": STATE_COLOURS["pruned"], "size": 6, "opacity": 0.5}
            traces.append(_slice(key, parameter, pruned) | {"marker": faint, "name": "pruned"})
        axis_type = _axis_type([value for trace in traces for value in trace["y"]])
        layout = {"xaxis": parameter_axis(parameter), "yaxis": axis_type, "showlegend": bool(pruned)}
        yield figure(traces, title=f"{key} (darker: later)", x=key, y=objective.metric, **layout)


def _slice(key: str, parameter: Parameter, trials: Sequence[TrialSummary]) -> dict[str, Any]:
    x = [trial.settings[key] for trial in trials]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [str(value) for value in x] if parameter.choice is not None else x,
        "y": [trial.values[0] if trial.values else trial.last_report for trial in trials],
        "text": [trial.name for trial in trials],
    }


def _training_curves(study: StudySnapshot) -> list[Figure]:
    """The objective against steps, for every trial that reported."""
    trials = [trial for trial in study.trials if trial.reports]
    if not trials:
        return []
    best = {trial.number for trial in study.best()}
    shown = sorted(trials, key=lambda trial: trial.number in best)[-_MOST_LINES:]
    traces = [_training_curve(trial, is_best=trial.number in best) for trial in shown]
    for state in sorted({trial.state for trial in trials}):  # the legend
        traces.append(line([math.nan], [math.nan], state, line={"color": STATE_COLOURS[state], "width": 2}))
    values = [value for trial in trials for value in trial.reports.values()]
    ticks = {"dtick": 1} if max(step for trial in trials for step in trial.reports) <= 12 else {}
    layout: dict[str, Any] = {"xaxis": ticks, "yaxis": _axis_type(values), "showlegend": True}
    x = "folds done" if study.config.folds else "epochs done"
    return [figure(traces, title="All trials", x=x, y=study.config.objectives[0].metric, **layout)]


def _training_curve(trial: TrialSummary, *, is_best: bool) -> dict[str, Any]:
    colour = COLOURS[1] if is_best else STATE_COLOURS[trial.state]
    style: dict[str, Any] = {
        "line": {"color": colour, "width": 3 if is_best else 1},
        "opacity": 1 if is_best else 0.55,
        "showlegend": is_best,
    }
    name = f"best (trial {trial.number})" if is_best else f"trial {trial.number}, {trial.state}"
    steps = sorted(trial.reports)
    mode = "lines" if len(steps) > 1 else "markers"
    style |= {"marker": {"color": colour, "size": 5}} if mode == "markers" else {}
    return line(steps, [trial.reports[step] for step in steps], name, mode=mode, **style)


def _trial_costs(study: StudySnapshot) -> list[Figure]:
    trials = [trial for trial in study.trials if trial.seconds]
    if not trials:
        return []
    x = [trial.number for trial in trials]
    elapsed, cpu = [trial.seconds for trial in trials], [trial.cpu for trial in trials]
    bars = [
        {"type": "bar", "name": "elapsed", "x": x, "y": elapsed, "marker": {"color": COLOURS[0]}},
        {"type": "bar", "name": "processors", "x": x, "y": cpu, "marker": {"color": COLOURS[4]}},
    ]
    ordered = sorted(trials, key=lambda trial: trial.started)
    start = ordered[0].started
    rows = [
        {
            "type": "bar",
            "orientation": "h",
            "name": state,
            "y": [trial.number for trial in ordered if trial.state == state],
            "x": [trial.seconds for trial in ordered if trial.state == state],
            "base": [round(trial.started - start, 3) for trial in ordered if trial.state == state],
            "width": 0.8,  # plotly's own width depends on the distance between the trials of a state
            "marker": {"color": STATE_COLOURS[state]},
        }
        for state in sorted({trial.state for trial in ordered})
    ]
    return [
        figure(bars, title="Cost of each trial", x="trial", y="seconds", showlegend=True),
        figure(rows, title="When each trial ran", x="seconds", y="trial", showlegend=True, barmode="overlay"),
    ]
