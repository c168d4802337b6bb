"""A scaling study as a page: what was measured, what is only predicted, and where the time went at each size."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from clew.bench.scaling.forecast import Forecast
from clew.bench.scaling.measurement import PARTS
from clew.bench.scaling.study import ScalingResult
from clew.bench.workload.environment import load_warnings
from clew.figure import COLOURS, Figure, figure, line
from clew.runs.html_page import HtmlPage, table

CALLED = {
    "io": "I/O",
    "compute": "compute",
    "communicate": "communication",
    "wait": "waiting for others",
    "other": "other",
}
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
_MARK = '<span title="more ranks than cores or devices">&#9888; oversubscribed</span>'


def write(made: ScalingResult, path: Path) -> Path:
    """The page, in the look of a run's report."""
    told = made.conditions
    kind = "Weak" if made.weak else "Strong"
    page = HtmlPage(f"{kind} scaling")
    work = "the work grows with the workers" if made.weak else "the same work shared by more workers"
    facts = [
        f"recipe <b>{escape(Path(made.config['recipe']).stem)}</b>",
        work,
        f"on {escape(told['where'])}",
        f"{told['cores']} cores there" if told["where"] == "this machine" else "",
        f"{told['threads']} thread{'s' if told['threads'] != 1 else ''} a worker" if told["threads"] else "",
        escape(told["when"]),
    ]
    page.header(facts=[fact for fact in facts if fact], notes=_notes(made))
    drawn = [speedup(made), efficiency(made), speed(made)] if any(map(made.sizes, made.strategies)) else []
    page.section("Measured", sizes(made), drawn)
    page.section(
        "Where the time went",
        _SHARES + parts(made),
        [*(shares(made, name) for name in made.strategies), loading(made), filling(made)],
    )
    page.section("Loss", _losses_told(made), [losses(made, 0), losses(made, 1), last_losses(made)])
    page.section("Prediction, not measured", "".join(predicted(made, name) for name in made.strategies))
    page.section("Conditions", table((), [(escape(k), escape(str(v))) for k, v in {**told, **_asked(made)}.items()]))
    return page.write(path)


_SHARES = (
    "<p>Of the time of all ranks while they train, from the merged timeline; validation and checkpoints do not count. "
    "Waiting is what passes in a sum until the last rank has come to it. With a master the two are one.</p>"
)


def _asked(made: ScalingResult) -> dict[str, Any]:
    return {key: value for key, value in made.config.items() if value not in (None, [], ())}


def _notes(made: ScalingResult) -> list[str]:
    """What a reader must know before anything else."""
    over = sorted({(t.workers, t.processes) for t in made.trainings if t.oversubscribed})
    found = [f"{t.strategy} on {t.workers}: {escape(t.message)}" for t in made.trainings if t.message]
    if over:
        named = ", ".join(str(workers) for workers, _ in over)
        what = f"the {made.conditions['cores']} cores" if _on_cpu(made) else "the devices"
        found.insert(
            0,
            f"Oversubscribed at {named} workers: they share {what} of this machine. These points show the machine, not "
            "how the training scales; they are marked, and no prediction uses them.",
        )
    told = made.conditions
    return [*(load_warnings(told.get("load_before"), told["cores"]) if told["where"] == "this machine" else ()), *found]


def _on_cpu(made: ScalingResult) -> bool:
    return all(each.device in ("", "cpu") for each in made.trainings)


def sizes(made: ScalingResult) -> str:
    """A row a size: how fast."""
    rows = [
        (
            row["strategy"],
            f"{row['workers']}{f' {_MARK}' if row['oversubscribed'] else ''}",
            f"{row['events_per_second']:,.1f}{_spread(row['each'])}",
            f"{row['speedup']:.2f}",
            f"{row['efficiency']:.0%}",
            str(made.of(row["strategy"], row["workers"])[0].batch_size),
            str(row["trainings"]),
        )
        for row in made.rows()
    ]
    return table(("strategy", "workers", "events/s", "speed-up", "efficiency", "batch", "trainings"), rows)


def _spread(each: list[float]) -> str:
    return f" <small>{min(each):,.1f} to {max(each):,.1f}</small>" if len(each) > 1 else ""


def parts(made: ScalingResult) -> str:
    """A row a size: what the time went into."""
    head = (
        "strategy",
        "workers",
        *(CALLED[part] for part in PARTS),
        "data, ms per 1,000 events",
    )
    rows = [
        (
            row["strategy"],
            f"{row['workers']}{f' {_MARK}' if row['oversubscribed'] else ''}",
            *("–" if share is None else f"{share:.1%}" for share in row["shares"].values()),
            "–" if (took := row["loading_seconds_per_1000_events"]) is None else f"{1e3 * took:.3g}",
        )
        for row in made.rows()
    ]
    return table(head, rows)


def speedup(made: ScalingResult) -> Figure:
    """Against the smallest size, with the ideal and the prediction."""
    most = max(p for name in made.strategies for p in made.sizes(name))
    grey = {"color": "#7f7f7f", "width": 1, "dash": "dot"}
    ends = [1, max([most, *(p for each in made.forecasts.values() for p in each.workers)])]
    traces = [line(ends, ends, "ideal", line=grey)]
    for place, name in enumerate(made.strategies):
        traces += _band(made.forecasts.get(name), place, "speedup", name)
        traces += _measured(made, name, place, made.speedup)
    return figure(
        traces,
        title=f"Speed-up, {_devices(made)}",
        x="workers",
        y="times",
        showlegend=True,
        xaxis=_doubling(),
        yaxis=_doubling() | {"range": _reach(made, ends[1])},
    )


def _devices(made: ScalingResult) -> str:
    kinds = {each.device.split(":")[0] for each in made.trainings if each.device}
    return " and ".join(sorted("processors" if kind == "cpu" else kind for kind in kinds)) or "unknown device"


def _reach(made: ScalingResult, most: int) -> list[float]:
    """Of the axis of speed-ups: a band may go to nothing, the axis need not."""
    least = min(made.speedup(name, p) for name in made.strategies for p in made.sizes(name))
    return [math.log10(min(0.5, least / 2)), math.log10(1.2 * most)]


def efficiency(made: ScalingResult) -> Figure:
    """Speed-up for each worker."""
    traces = []
    for place, name in enumerate(made.strategies):
        traces += _measured(made, name, place, lambda s, p: 100 * made.speedup(s, p) / p)
    highest = [value for trace in traces for value in trace["y"] if value is not None]
    top = max([105.0, *(1.05 * value for value in highest)])
    return figure(
        traces, title="Efficiency", x="workers", y="%", showlegend=True, xaxis=_doubling(), yaxis={"range": [0, top]}
    )


def speed(made: ScalingResult) -> Figure:
    """Events a second."""
    traces = []
    for place, name in enumerate(made.strategies):
        traces += _band(made.forecasts.get(name), place, "events_per_second", name)
        traces += _measured(made, name, place, made.speed)
    return figure(
        traces, title="Speed", x="workers", y="events/s", showlegend=True, xaxis=_doubling(), yaxis={"type": "log"}
    )


def _doubling() -> dict[str, Any]:
    """A logarithmic axis whose ticks double."""
    ticks = [2**n for n in range(-3, 15)]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{t:g}" for t in ticks], "dtick": None}


def _measured(made: ScalingResult, name: str, place: int, value: Any) -> list[dict[str, Any]]:
    """A line through all sizes; those that are oversubscribed are hollow."""
    known = made.sizes(name)
    over = [made.oversubscribed(name, p) for p in known]
    colour, symbol = COLOURS[place % len(COLOURS)], _SYMBOLS[place % len(_SYMBOLS)]
    marks = [f"{symbol}-open" if each else symbol for each in over]
    shown: dict[str, Any] = {
        "line": {"color": colour, "width": 2},
        "marker": {"symbol": marks, "size": 10, "color": colour, "line": {"width": 2, "color": colour}},
        "text": ["oversubscribed" if each else "measured" for each in over],
        "hovertemplate": "%{x} workers: %{y:.3g} (%{text})",
        "legendgroup": name,
    }
    drawn = [line(known, [value(name, p) for p in known], f"{name}, measured", mode="lines+markers", **shown)]
    if any(over):
        shape = {"symbol": f"{symbol}-open", "size": 10, "color": colour, "line": {"width": 2, "color": colour}}
        empty: dict[str, Any] = {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "marker": shape}
        drawn.append({**empty, "name": f"{name}, oversubscribed", "legendgroup": name})
    return drawn


def _band(found: Forecast | None, place: int, what: str, name: str) -> list[dict[str, Any]]:
    """A prediction: dashed, with its band."""
    if found is None or not found.workers:
        return []
    colour = COLOURS[place % len(COLOURS)]
    prefix = "speedup_" if what == "speedup" else ""
    low, high = getattr(found, f"{prefix}low"), getattr(found, f"{prefix}high")
    area: dict[str, Any] = {"fill": "toself", "fillcolor": f"{colour}22", "line": {"width": 0}, "hoverinfo": "skip"}
    return [
        line([*found.workers, *found.workers[::-1]], [*high, *low[::-1]], "", showlegend=False, **area),
        line(
            found.workers,
            getattr(found, what),
            f"{name}, prediction ({found.level:.0%} band)",
            line={"color": colour, "width": 1.5, "dash": "dash"},
            hovertemplate="prediction for %{x} workers: %{y:.3g}",
        ),
    ]


def shares(made: ScalingResult, name: str) -> Figure:
    """Stacked bars, one a size."""
    known = made.sizes(name)
    labels = [f"{p}{' (oversubscribed)' if made.oversubscribed(name, p) else ''}" for p in known]
    bars = [
        {
            "type": "bar",
            "name": CALLED[part],
            "x": labels,
            "y": [round(100 * (made.mean(name, p, "shares", part) or 0.0), 2) for p in known],
            "marker": {"color": COLOURS[i]},
            "hovertemplate": f"{CALLED[part]} %{{y:.1f}}%",
        }
        for i, part in enumerate(PARTS)
    ]
    return figure(
        bars,
        title=f"Where the time went: {name}",
        x="workers",
        y="% of the ranks' time",
        barmode="stack",
        xaxis={"type": "category"},
        yaxis={"range": [0, 100]},
    )


def loading(made: ScalingResult) -> Figure:
    """How long ranks wait for data."""
    traces = []
    for place, name in enumerate(made.strategies):
        traces += _measured(made, name, place, lambda s, p: 1e3 * (made.mean(s, p, "loading", "mean") or 0.0))
    return figure(
        traces,
        title="Waiting for data, mean over ranks",
        x="ranks",
        y="ms per 1,000 events",
        showlegend=True,
        xaxis=_doubling(),
        yaxis={"rangemode": "tozero"},
    )


def filling(made: ScalingResult) -> Figure:
    """How long it takes until every rank has its samples in memory."""
    return _against_workers(made, made.filling, "Taking samples into memory, the slowest rank", "seconds")


def last_losses(made: ScalingResult) -> Figure:
    """The loss that each size ends with."""
    return _against_workers(made, made.loss, "Loss at the end, validation", "loss")


def _against_workers(made: ScalingResult, value: Callable[[str, int], float | None], title: str, y: str) -> Figure:
    traces = []
    for place, name in enumerate(made.strategies):
        traces += _measured(made, name, place, value)
    down: dict[str, Any] = {"rangemode": "tozero"} if y == "seconds" else {}
    return figure(traces, title=title, x="workers", y=y, showlegend=True, xaxis=_doubling(), yaxis=down)


def losses(made: ScalingResult, axis: int) -> Figure:
    """Training (thin) and validation (with markers) against time or samples, a colour a size."""
    kinds = list(dict.fromkeys((t.strategy, t.workers) for t in made.trainings if t.curve))
    traces = []
    for place, (name, workers) in enumerate(kinds):
        colour = COLOURS[place % len(COLOURS)]
        title = f"{workers} worker{'s' if workers > 1 else ''}" if len(made.strategies) == 1 else f"{name}, {workers}"
        for number, each in enumerate(made.of(name, workers)):
            group: dict[str, Any] = {"legendgroup": title, "showlegend": False}
            thin: dict[str, Any] = {"line": {"color": colour, "width": 1}, "opacity": 0.45, "hoverinfo": "skip"}
            traces.append(line([p[axis] for p in each.curve], [p[2] for p in each.curve], "", **group, **thin))
            points: dict[str, Any] = {"line": {"color": colour, "width": 2}, "marker": {"color": colour, "size": 7}}
            own: dict[str, Any] = {**group, "showlegend": number == 0}
            traces.append(
                line(
                    [p[axis] for p in each.judged],
                    [p[2] for p in each.judged],
                    title,
                    mode="lines+markers",
                    **own,
                    **points,
                )
            )
    against = ("seconds", "samples")[axis]
    return figure(
        traces,
        title=f"Loss against {('time', 'samples')[axis]}",
        x=against,
        y="loss",
        showlegend=True,
        yaxis={"type": "log"},
    )


def _losses_told(made: ScalingResult) -> str:
    sizes = "grows with the workers" if made.weak else "is the same at every size"
    return f"<p>Thin: training. With markers: validation. The batch {sizes}; with a master a batch is one worker's.</p>"


def predicted(made: ScalingResult, name: str) -> str:
    """The model of a strategy and what it expects."""
    found = made.forecasts.get(name)
    if found is None or not found.workers:
        return f"<p>{escape(name)}: {escape(found.note if found else 'nothing measured yet')}.</p>"
    band = f"{found.level:.0%}"
    head = ("workers", f"events/s <small>{band} band</small>", f"speed-up <small>{band} band</small>", "efficiency")
    rows = [
        (
            f"{p}{' <small>measured too</small>' if p in made.sizes(name) else ''}",
            f"{found.events_per_second[i]:,.1f} <small>{found.low[i]:,.1f} to {found.high[i]:,.1f}</small>",
            f"{found.speedup[i]:.2f} <small>{found.speedup_low[i]:.2f} to {found.speedup_high[i]:.2f}</small>",
            f"{found.speedup[i] / p:.0%}",
        )
        for i, p in enumerate(found.workers)
    ]
    return f"<h3>{escape(name)}</h3><p>{model_told(found)}</p>{table(head, rows)}"


def model_told(found: Forecast) -> str:
    """The model in words."""
    middle, low, high = found.serial
    parts = [
        "Amdahl's law and communication, fitted to the sizes "
        f"{', '.join(map(str, found.fitted_on))}, for one core or device a worker; the band holds {found.level:.0%} of "
        "bootstrap refits over trainings and their records."
    ]
    if high > 0 or middle > 0:
        parts.append(f"Part of one worker's computing that is not shared: {middle:.1%} ({low:.1%} to {high:.1%}).")
    if found.form:
        parts.append(f"Communication fits best as {found.form}.")
    note = f"{found.note[:1].upper()}{found.note[1:]}." if found.note else ""
    return escape(" ".join([*parts, note]).strip())
