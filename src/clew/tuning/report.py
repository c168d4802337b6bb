"""`report.html` of a study: the page of all its trials, made from its files alone."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, Protocol

from clew.core.config import to_yaml
from clew.figure import COLOURS, Figure, figure, line, points
from clew.runs.html_page import HtmlPage, table
from clew.tuning.config import Parameter, TuneConfig
from clew.tuning.study import Study, TrialSummary
from clew.tuning.study_cost import StudyCost, study_cost

SHADES = ((0.0, "#0072b2"), (0.5, "#b4aa98"), (1.0, "#d55e00"))
_LOOKS = {"complete": "#0072b2", "pruned": "#e69f00", "failed": "#7f7f7f", "running": "#009e73", "waiting": "#7f7f7f"}
_DECADES = 2
"""Below which a logarithmic axis has ticks at 1, 2 and 5."""
_CURVES = 200
"""Trials whose curves are drawn, at most: a browser draws no more in good time."""


class Seen(Protocol):
    """What figures need of a study, wherever its trials are kept."""

    @property
    def config(self) -> TuneConfig:
        """What is searched, and for what."""

    def best(self) -> list[TrialSummary]:
        """The best trial, or the Pareto front."""

    def importances(self) -> dict[str, float]:
        """How much each parameter explains."""


def write_report(study: Study) -> Path:
    """Write the page and return where it is."""
    found, spent = study.outcomes(), study_cost(study)
    drawn = figures(study, found)
    page = HtmlPage(study.folder.path.resolve().name)
    state = "running" if any(each.state == "running" for each in found) else "finished"
    page.header(state, _facts(study, found, spent), _notes(found))
    page.add(_cards(study, spent))
    page.section("Best", _best(study))
    parallel = list(_parallel(study, [each for each in found if each.state == "complete"]))
    page.section("Search", figures=drawn["search"])
    page.section("Parameters", figures=[*parallel, *drawn["parameters"]])
    page.section("Training", figures=drawn["training"])
    page.section("Cost", figures=drawn["cost"])
    page.section("Trials", _table(study, found))
    page.section("To do it again", _settings(study))
    return page.write(study.folder.report_file)


def figures(study: Seen, found: Sequence[TrialSummary]) -> dict[str, list[Figure]]:
    """`search`, `parameters` (each alone), `training` and `cost`."""
    done = [each for each in found if each.state == "complete"]
    cut = [each for each in found if each.state == "pruned" and each.reports]
    return {
        "search": [*_history(study, found), *_front(study, done), *_importances(study)],
        "parameters": list(_slices(study, done, cut)),
        "training": _curves(study, found),
        "cost": _costs(found),
    }


def _facts(study: Study, found: Sequence[TrialSummary], spent: StudyCost) -> list[str]:
    counts = [f"{number} {state}" for state, number in study.count().items() if number]
    return [
        *(f"<b>{escape(goal.metric)}</b> {goal.direction}d" for goal in study.config.objectives),
        *counts,
        f"sampler {study.config.sampler.name}",
        f"pruner {study.config.pruner.name}",
        *([f"{study.config.folds.count} folds"] if study.config.folds else []),
    ]


def _notes(found: Sequence[TrialSummary]) -> Iterator[str]:
    if any(each.state == "running" for each in found):
        now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
        yield f"Still going on: this is how it stood at {now}. <code>clew tune show --html</code> makes the page anew."


def _cards(study: Study, spent: StudyCost) -> str:
    best = study.best()
    cards = []
    if len(best) == 1:
        for goal, value in zip(study.config.objectives, best[0].values, strict=True):
            spread = f" <small>± {best[0].spread[0]:.2g}</small>" if best[0].spread else ""
            cards.append((escape(goal.metric), f"<b>{value:.5g}</b>{spread}"))
    elif best:
        cards.append(("Pareto front", f"<b>{len(best)}</b> <small>trials</small>"))
    cards.append(("time of trials", f"<b>{_length(spent.seconds)}</b>"))
    cards.append(("processor time", f"<b>{_length(spent.cpu)}</b>"))
    if spent.saved:
        share = spent.saved / (spent.saved + spent.seconds)
        cards.append(("saved by pruning", f"<b>{_length(spent.saved)}</b> <small>{share:.0%}</small>"))
    return f'<div class="cards">{"".join(f"""<div class="card"><span>{a}</span>{b}</div>""" for a, b in cards)}</div>'


def _length(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return str(datetime.timedelta(seconds=round(seconds)))


def _best(study: Study) -> str:
    best = study.best()
    if not best:
        return '<p class="facts">No trial is complete yet.</p>'
    head = ("trial", *(escape(goal.metric) for goal in study.config.objectives), *map(_short, study.config.space))
    return table(head, [_row(study, each) for each in best])


def _row(study: Study, each: TrialSummary) -> tuple[str, ...]:
    goals = len(study.config.objectives)
    values = [f"{value:.6g}" for value in each.values] or [""] * goals
    return (str(each.number), *values, *(_text(each.settings.get(key)) for key in study.config.space))


def _text(value: Any) -> str:
    shown = "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"<code>{escape(shown)}</code>"


def _short(key: str) -> str:
    """A key with a break before its last part, for the head of a column."""
    section, _, last = key.rpartition(".")
    return f"<small>{escape(section)}</small><br>{escape(last)}" if section else escape(last)


def _history(study: Seen, found: Sequence[TrialSummary]) -> Iterator[Figure]:
    goal = study.config.objectives[0]
    done = [each for each in found if each.values]
    if not done:
        return
    values = [each.values[0] for each in done]
    error: dict[str, Any] = {}
    if any(each.spread for each in done):
        error = {"error_y": {"array": [each.spread[0] if each.spread else 0 for each in done], "thickness": 1}}
    traces = [points([each.number for each in done], values, "complete", **error)]
    cut = [each for each in found if each.state == "pruned" and each.reports]
    if cut:
        traces.append(
            points([each.number for each in cut], [_last(each) for each in cut], "pruned, at its end", colour=4)
        )
    if len(study.config.objectives) == 1:
        choose = min if goal.direction == "minimize" else max
        running = [choose(values[: place + 1]) for place in range(len(values))]
        shape = {"color": COLOURS[1], "width": 2, "shape": "hv"}
        traces.append(line([each.number for each in done], running, "best so far", line=shape))
    yield figure(traces, title="History", x="trial", y=goal.metric, yaxis=_scale(values))


def _last(each: TrialSummary) -> float:
    return each.reports[max(each.reports)]


def _scale(values: Sequence[float]) -> dict[str, Any]:
    """A logarithmic axis where values span more than a factor of 30."""
    finite = [value for value in values if math.isfinite(value)]
    wide = bool(finite) and min(finite) > 0 and max(finite) / min(finite) > 30
    return {"type": "log"} if wide else {}


def _front(study: Seen, done: Sequence[TrialSummary]) -> Iterator[Figure]:
    goals = study.config.objectives
    if len(goals) < 2 or not done:
        return
    best = study.best()
    numbers = {each.number for each in best}
    rest = [each for each in done if each.number not in numbers]
    for place in range(1, len(goals)):
        traces = [
            points(
                [e.values[0] for e in some],
                [e.values[place] for e in some],
                name,
                colour=c,
                text=[e.name for e in some],
            )
            for some, name, c in ((rest, "others", 6), (best, "Pareto front", 1))
        ]
        scales = {"xaxis": _scale([e.values[0] for e in done]), "yaxis": _scale([e.values[place] for e in done])}
        yield figure(traces, title="Pareto front", x=goals[0].metric, y=goals[place].metric, **scales)


def _importances(study: Seen) -> Iterator[Figure]:
    found = study.importances()
    if not found:
        return
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": list(found),
        "x": [round(value, 4) for value in found.values()],
        "marker": {"color": COLOURS[0]},
    }
    layout: dict[str, Any] = {"yaxis": {"autorange": "reversed"}, "xaxis": {"range": [0, 1]}}
    yield figure([bars], title="Importance of parameters", x="share of the difference explained", **layout)


def _parallel(study: Seen, done: Sequence[TrialSummary]) -> Iterator[Figure]:
    """Every complete trial as a line through its settings to its objective."""
    if len(done) < 2:
        return
    goal = study.config.objectives[0]
    dimensions = [dimension(study, key, done) for key in study.config.space]
    values = [each.values[0] for each in done]
    dimensions.append({"label": goal.metric, "values": values})
    shades = SHADES if goal.direction == "minimize" else [(1 - at, colour) for at, colour in reversed(SHADES)]
    trace = {
        "type": "parcoords",
        "dimensions": dimensions,
        "line": {"color": values, "colorscale": shades, "showscale": False},
        "labelfont": {"size": 12},
        "domain": {"y": [0.05, 0.85]},
    }
    drawn = figure([trace], title="Parallel coordinates (blue is better)", margin={"l": 70, "r": 70, "t": 60, "b": 20})
    drawn["layout"]["xaxis2"] = {"visible": False}  # a wide one
    yield drawn


def dimension(study: Seen, key: str, done: Sequence[TrialSummary]) -> dict[str, Any]:
    """A parameter as an axis of parallel coordinates: its values in these trials, its range and its ticks."""
    parameter, label = study.config.space[key], key.rpartition(".")[2]
    given = [each.settings.get(key) for each in done]
    if parameter.choice is not None:
        names = [str(each) for each in parameter.choice]
        places = [names.index(str(each)) if str(each) in names else -1 for each in given]
        ticks = [*range(len(names)), *([-1] if -1 in places else [])]
        texts = [*names, *(["–"] if -1 in places else [])]
        return {
            "label": label,
            "values": places,
            "tickvals": ticks,
            "ticktext": texts,
            "range": [min(ticks), max(ticks)],
        }
    assert parameter.bounds is not None
    log = parameter.log is not None
    low, high = (math.log10(each) if log else each for each in parameter.bounds)
    missing = low - (high - low) / 8  # below all that can be
    values = [missing if each is None else math.log10(each) if log else each for each in given]
    at = [low + (high - low) * place / 4 for place in range(5)]
    told = [f"{10**each if log else each:.3g}" for each in at]
    if missing in values:
        low, at, told = missing, [missing, *at], ["–", *told]
    return {"label": label, "values": values, "range": [low, high], "tickvals": at, "ticktext": told}


def _slices(study: Seen, done: Sequence[TrialSummary], cut: Sequence[TrialSummary]) -> Iterator[Figure]:
    """The objective against each parameter; of those that were pruned as it was at their end."""
    goal = study.config.objectives[0]
    for key, parameter in study.config.space.items():
        some = [each for each in done if key in each.settings]
        if not some:
            continue
        marker = {
            "color": [each.number for each in some],
            "colorscale": [[0, "#c9dff0"], [1, "#003f66"]],
            "size": 8,
            "line": {"width": 0.5, "color": "#444"},
        }
        traces = [_slice(key, parameter, some, [each.values[0] for each in some], marker, "complete")]
        rest = [each for each in cut if key in each.settings]
        if rest:
            faint = {"color": _LOOKS["pruned"], "size": 6, "opacity": 0.5}
            traces.append(_slice(key, parameter, rest, [_last(each) for each in rest], faint, "pruned"))
        scale = _scale([value for trace in traces for value in trace["y"]])
        layout = {"xaxis": _axis(parameter), "yaxis": scale, "showlegend": bool(rest)}
        yield figure(traces, title=f"{key} (darker: later)", x=key, y=goal.metric, **layout)


def _slice(
    key: str, parameter: Parameter, some: Sequence[TrialSummary], y: list[float], marker: dict[str, Any], name: str
) -> dict[str, Any]:
    x = [each.settings[key] for each in some]
    shown = [str(each) for each in x] if parameter.choice is not None else x
    told = {"x": shown, "y": y, "marker": marker, "name": name, "text": [each.name for each in some]}
    return {"type": "scatter", "mode": "markers", **told}


def _axis(parameter: Parameter) -> dict[str, Any]:
    """As wide as the space is."""
    bounds = parameter.bounds
    if bounds is None:
        return {"type": "category", "categoryarray": [str(each) for each in parameter.choice or ()]}
    ends = [math.log10(each) if parameter.log is not None else each for each in bounds]
    margin = 0.04 * (ends[1] - ends[0])
    kind: dict[str, Any] = {"type": "linear"}
    if parameter.log is not None:
        kind = {"type": "log", "exponentformat": "power"}
        if ends[1] - ends[0] < _DECADES:  # plotly would write 2 for 20
            kind = {"type": "log", "tickvals": _one_two_five(*bounds)}
    return {**kind, "range": [ends[0] - margin, ends[1] + margin]}


def _one_two_five(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
    return [each for each in found if low <= each <= high]


def _curves(study: Seen, found: Sequence[TrialSummary]) -> list[Figure]:
    """The objective over steps, of every trial that reported."""
    told = [each for each in found if each.reports]
    goal, best = study.config.objectives[0], {each.number for each in study.best()}
    traces = []
    for each in sorted(told, key=lambda each: each.number in best)[-_CURVES:]:
        front = each.number in best
        colour = COLOURS[1] if front else _LOOKS[each.state]
        stroke = {"color": colour, "width": 3 if front else 1}
        look: dict[str, Any] = {"line": stroke, "opacity": 1 if front else 0.55, "showlegend": front}
        name = f"best (trial {each.number})" if front else f"trial {each.number}, {each.state}"
        steps = sorted(each.reports)
        mode = "lines" if len(steps) > 1 else "markers"
        look |= {"marker": {"color": colour, "size": 5}} if mode == "markers" else {}
        traces.append(line(steps, [each.reports[step] for step in steps], name, mode=mode, **look))
    for state in sorted({each.state for each in told}):
        traces.append(line([math.nan], [math.nan], state, line={"color": _LOOKS[state], "width": 2}))
    if not told:
        return []
    values = [value for each in told for value in each.reports.values()]
    x = "folds done" if study.config.folds else "epochs done"
    whole = {"dtick": 1} if max(step for each in told for step in each.reports) <= 12 else {}
    scale = _scale(values)
    return [figure(traces, title="All trials", x=x, y=goal.metric, xaxis=whole, yaxis=scale, showlegend=True)]


def _costs(found: Sequence[TrialSummary]) -> list[Figure]:
    told = [each for each in found if each.seconds]
    if not told:
        return []
    x = [each.number for each in told]
    bars = [
        {"type": "bar", "name": "clock", "x": x, "y": [e.seconds for e in told], "marker": {"color": COLOURS[0]}},
        {"type": "bar", "name": "processors", "x": x, "y": [e.cpu for e in told], "marker": {"color": COLOURS[4]}},
    ]
    ended = sorted(told, key=lambda each: each.begun)
    start = ended[0].begun
    rows = [
        {
            "type": "bar",
            "orientation": "h",
            "name": state,
            "y": [each.number for each in ended if each.state == state],
            "x": [each.seconds for each in ended if each.state == state],
            "base": [round(each.begun - start, 3) for each in ended if each.state == state],
            "marker": {"color": _LOOKS[state]},
        }
        for state in sorted({each.state for each in ended})
    ]
    return [
        figure(bars, title="Cost of each trial", x="trial", y="seconds", showlegend=True),
        figure(rows, title="When each trial ran", x="seconds", y="trial", showlegend=True, barmode="overlay"),
    ]


def _table(study: Study, found: Sequence[TrialSummary]) -> str:
    goals = (escape(goal.metric) for goal in study.config.objectives)
    head = ("trial", "", *goals, *map(_short, study.config.space), "seconds", "tries", "")
    rows = []
    for each in found:
        number, *rest = _row(study, each)
        state = f'<span class="state {_badge(each.state)}">{each.state}</span>'
        why = f"<small>{escape(each.reason.removeprefix('pruned: ')[:120])}</small>"
        rows.append((number, state, *rest, f"{each.seconds:.1f}", str(each.attempts), why))
    opened = " open" if len(rows) <= 50 else ""
    return f"<details{opened}><summary>{len(rows)} trials</summary>{table(head, rows)}</details>" if rows else ""


def _badge(state: str) -> str:
    """The look of a run's state that fits a trial's."""
    return {"complete": "finished", "pruned": "stopped", "waiting": "created"}.get(state, state)


def _settings(study: Study) -> str:
    text = escape(to_yaml(study.folder.document().data))
    return f"<details><summary>Settings</summary><pre>{text}</pre></details>"
