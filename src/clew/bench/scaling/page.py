"""The HTML page of a scaling study: measurements, predictions, and where the time went at each size."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from clew.bench.pages import BenchPage, PageSection, colour, facts_table, load_warnings, symbol, value_range
from clew.bench.scaling.forecast import Forecast
from clew.bench.scaling.measurement import PARTS
from clew.bench.scaling.results import ScalingResult
from clew.figure import COLOURS, Figure, figure, line
from clew.runs.html_page import table

PART_TITLES = {
    "io": "I/O",
    "compute": "compute",
    "communicate": "communication",
    "wait": "waiting for other ranks",
    "other": "other",
}
_MARK = '<span title="more ranks than cores or devices">&#9888; oversubscribed</span>'


def write(result: ScalingResult, path: Path) -> Path:
    """Write the page and return its path."""
    conditions, names = result.conditions, result.strategies
    local = conditions["where"] == "this machine"
    threads = conditions["threads"]
    facts = [
        f"recipe <b>{escape(Path(result.config['recipe']).stem)}</b>",
        "the work grows with the workers" if result.weak else "the same work shared by more workers",
        f"on {escape(conditions['where'])}",
        f"{conditions['cores']} cores" if local else "",
        f"{threads} thread{'s' if threads != 1 else ''} per worker" if threads else "",
        escape(conditions["when"]),
    ]
    measured = [speedup(result), efficiency(result), speed(result)] if any(map(result.sizes, names)) else []
    times = [*(shares(result, name) for name in names), loading(result), filling(result)]
    losses = [loss_curves(result, 0), loss_curves(result, 1), last_losses(result)]
    settings = {key: value for key, value in result.config.items() if value not in (None, [], ())}
    sections = [
        PageSection("Measured", size_table(result), measured),
        PageSection("Where the time went", _SHARES_NOTE + share_table(result), times),
        PageSection("Loss", _loss_note(result), losses),
        PageSection("Expected from bytes and bandwidths", _LINKS_NOTE + "".join(map(_expectation(result), names))),
        PageSection("Prediction, not measured", "".join(forecast_table(result, name) for name in names)),
        PageSection("Conditions", facts_table({**conditions, **settings})),
    ]
    title = f"{'Weak' if result.weak else 'Strong'} scaling"
    return BenchPage(title, facts, _notes(result), sections).write(path)


_SHARES_NOTE = (
    "<p>Shares of the training time of all ranks, from the merged timeline, without validation and checkpoints. "
    "Waiting is the time in an all-reduce until the last rank has started it. With a master, waiting counts as "
    "communication.</p>"
)


_LINKS_NOTE = (
    "<p>The bytes that the busiest process sends per step are counted from the parameters. Bandwidth and latency of a "
    "connection are assumed. Computing is that of the smallest size, shared perfectly. The lower efficiency is that "
    "without overlap of communication and computing, the higher one that with complete overlap.</p>"
)


def _notes(result: ScalingResult) -> list[str]:
    """Return what a reader must know first: a busy machine, oversubscription, failures."""
    sizes = sorted({run.workers for run in result.trainings if run.oversubscribed})
    notes = [escape(f"{run.strategy} on {run.workers}: {run.message}") for run in result.trainings if run.message]
    conditions = result.conditions
    if sizes:
        named = ", ".join(map(str, sizes))
        resource = f"the {conditions['cores']} cores" if _on_cpu(result) else "the devices"
        notes.insert(
            0,
            f"Oversubscribed at {named} workers: they share {resource} of this machine. These points show the machine, "
            "not how the training scales; they are marked, and no prediction uses them.",
        )
    local = conditions["where"] == "this machine"
    return [*(load_warnings(conditions.get("load_before"), conditions["cores"]) if local else ()), *notes]


def _on_cpu(result: ScalingResult) -> bool:
    return all(each.device in ("", "cpu") for each in result.trainings)


def size_table(result: ScalingResult) -> str:
    """Return a table of the speed, one row per size."""
    rows = [
        (
            escape(row["strategy"]),
            f"{row['workers']}{f' {_MARK}' if row['oversubscribed'] else ''}",
            f"{row['events_per_second']:,.1f}{value_range(row['each'])}",
            f"{row['speedup']:.2f}",
            f"{row['efficiency']:.0%}",
            str(result.runs_at(row["strategy"], row["workers"])[0].batch_size),
            str(row["trainings"]),
        )
        for row in result.rows()
    ]
    return table(("strategy", "workers", "events/s", "speed-up", "efficiency", "batch", "trainings"), rows)


def share_table(result: ScalingResult) -> str:
    """Return a table of the shares of the time, one row per size."""
    head = (
        "strategy",
        "workers",
        *(PART_TITLES[part] for part in PARTS),
        "data, ms per 1,000 events",
    )
    rows = [
        (
            escape(row["strategy"]),
            f"{row['workers']}{f' {_MARK}' if row['oversubscribed'] else ''}",
            *("–" if share is None else f"{share:.1%}" for share in row["shares"].values()),
            "–" if (took := row["loading_seconds_per_1000_events"]) is None else f"{1e3 * took:.3g}",
        )
        for row in result.rows()
    ]
    return table(head, rows)


def speedup(result: ScalingResult) -> Figure:
    """Return a figure of the speed-up, with the ideal and the prediction."""
    largest = max(p for name in result.strategies for p in result.sizes(name))
    grey = {"color": "#7f7f7f", "width": 1, "dash": "dot"}
    ends = [1, max([largest, *(p for each in result.forecasts.values() for p in each.workers)])]
    traces = [line(ends, ends, "ideal", line=grey)]
    for place, name in enumerate(result.strategies):
        traces += _band(result.forecasts.get(name), place, "speedup", name)
        traces += _measured(result, name, place, result.speedup)
    return figure(
        traces,
        title=f"Speed-up, {_devices(result)}",
        x="workers",
        y="times",
        showlegend=True,
        xaxis=_doubling(),
        yaxis=_doubling() | {"range": _reach(result, ends[1])},
    )


def _devices(result: ScalingResult) -> str:
    kinds = {each.device.split(":")[0] for each in result.trainings if each.device}
    return " and ".join(sorted("processors" if kind == "cpu" else kind for kind in kinds)) or "unknown device"


def _reach(result: ScalingResult, largest: int) -> list[float]:
    """Return the range of the axis of speed-ups. A band may reach zero; the axis does not follow it."""
    smallest = min(result.speedup(name, p) for name in result.strategies for p in result.sizes(name))
    return [math.log10(min(0.5, smallest / 2)), math.log10(1.2 * largest)]


def efficiency(result: ScalingResult) -> Figure:
    """Return a figure of the speed-up per worker."""
    traces = []
    for place, name in enumerate(result.strategies):
        traces += _measured(result, name, place, lambda s, p: 100 * result.speedup(s, p) / p)
    highest = [value for trace in traces for value in trace["y"] if value is not None]
    top = max([105.0, *(1.05 * value for value in highest)])
    return figure(
        traces, title="Efficiency", x="workers", y="%", showlegend=True, xaxis=_doubling(), yaxis={"range": [0, top]}
    )


def speed(result: ScalingResult) -> Figure:
    """Return a figure of the events per second."""
    traces = []
    for place, name in enumerate(result.strategies):
        traces += _band(result.forecasts.get(name), place, "events_per_second", name)
        traces += _measured(result, name, place, result.speed)
    return figure(
        traces, title="Speed", x="workers", y="events/s", showlegend=True, xaxis=_doubling(), yaxis={"type": "log"}
    )


def _doubling() -> dict[str, Any]:
    """Return a logarithmic axis with ticks at powers of two."""
    ticks = [2**n for n in range(-3, 15)]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{t:g}" for t in ticks], "dtick": None}


def _measured(result: ScalingResult, name: str, place: int, value: Any) -> list[dict[str, Any]]:
    """Return a line through all sizes; markers of oversubscribed sizes are hollow."""
    known = result.sizes(name)
    oversubscribed = [result.oversubscribed(name, p) for p in known]
    tone, mark = colour(place), symbol(place)
    marks = [f"{mark}-open" if flag else mark for flag in oversubscribed]
    shown: dict[str, Any] = {
        "line": {"color": tone, "width": 2},
        "marker": {"symbol": marks, "size": 10, "color": tone, "line": {"width": 2, "color": tone}},
        "text": ["oversubscribed" if flag else "measured" for flag in oversubscribed],
        "hovertemplate": "%{x} workers: %{y:.3g} (%{text})",
        "legendgroup": name,
    }
    drawn = [line(known, [value(name, p) for p in known], f"{name}, measured", mode="lines+markers", **shown)]
    if any(oversubscribed):
        shape = {"symbol": f"{mark}-open", "size": 10, "color": tone, "line": {"width": 2, "color": tone}}
        empty: dict[str, Any] = {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "marker": shape}
        drawn.append({**empty, "name": f"{name}, oversubscribed", "legendgroup": name})
    return drawn


def _band(forecast: Forecast | None, place: int, field: str, name: str) -> list[dict[str, Any]]:
    """Return a prediction as a dashed line with its band."""
    if forecast is None or not forecast.workers:
        return []
    tone = colour(place)
    prefix = "speedup_" if field == "speedup" else ""
    low, high = getattr(forecast, f"{prefix}low"), getattr(forecast, f"{prefix}high")
    area: dict[str, Any] = {"fill": "toself", "fillcolor": f"{tone}22", "line": {"width": 0}, "hoverinfo": "skip"}
    return [
        line([*forecast.workers, *forecast.workers[::-1]], [*high, *low[::-1]], "", showlegend=False, **area),
        line(
            forecast.workers,
            getattr(forecast, field),
            f"{name}, prediction ({forecast.level:.0%} band)",
            line={"color": tone, "width": 1.5, "dash": "dash"},
            hovertemplate="prediction for %{x} workers: %{y:.3g}",
        ),
    ]


def shares(result: ScalingResult, name: str) -> Figure:
    """Return stacked bars of the shares of the time, one bar per size."""
    known = result.sizes(name)
    labels = [f"{p}{' (oversubscribed)' if result.oversubscribed(name, p) else ''}" for p in known]
    bars = [
        {
            "type": "bar",
            "name": PART_TITLES[part],
            "x": labels,
            "y": [round(100 * (result.mean(name, p, "shares", part) or 0.0), 2) for p in known],
            "marker": {"color": COLOURS[i]},
            "hovertemplate": f"{PART_TITLES[part]} %{{y:.1f}}%",
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


def loading(result: ScalingResult) -> Figure:
    """Return a figure of the time that ranks wait for data."""
    traces = []
    for place, name in enumerate(result.strategies):
        traces += _measured(result, name, place, lambda s, p: 1e3 * (result.mean(s, p, "loading", "mean") or 0.0))
    return figure(
        traces,
        title="Waiting for data, mean over ranks",
        x="ranks",
        y="ms per 1,000 events",
        showlegend=True,
        xaxis=_doubling(),
        yaxis={"rangemode": "tozero"},
    )


def filling(result: ScalingResult) -> Figure:
    """How long it takes until every rank has its samples in memory."""
    return _against_workers(result, result.filling, "Taking samples into memory, the slowest rank", "seconds")


def last_losses(result: ScalingResult) -> Figure:
    """The loss that each size ends with."""
    return _against_workers(result, result.loss, "Loss at the end, validation", "loss")


def _against_workers(result: ScalingResult, value: Callable[[str, int], float | None], title: str, y: str) -> Figure:
    traces = []
    for place, name in enumerate(result.strategies):
        traces += _measured(result, name, place, value)
    down: dict[str, Any] = {"rangemode": "tozero"} if y == "seconds" else {}
    return figure(traces, title=title, x="workers", y=y, showlegend=True, xaxis=_doubling(), yaxis=down)


def loss_curves(result: ScalingResult, axis: int) -> Figure:
    """Return the training loss (thin) and validation loss (markers) against time (0) or samples (1)."""
    kinds = list(dict.fromkeys((t.strategy, t.workers) for t in result.trainings if t.curve))
    traces = []
    for place, (name, workers) in enumerate(kinds):
        tone = colour(place)
        title = f"{workers} worker{'s' if workers > 1 else ''}" if len(result.strategies) == 1 else f"{name}, {workers}"
        for number, each in enumerate(result.runs_at(name, workers)):
            group: dict[str, Any] = {"legendgroup": title, "showlegend": False}
            thin: dict[str, Any] = {"line": {"color": tone, "width": 1}, "opacity": 0.45, "hoverinfo": "skip"}
            traces.append(line([p[axis] for p in each.curve], [p[2] for p in each.curve], "", **group, **thin))
            points: dict[str, Any] = {"line": {"color": tone, "width": 2}, "marker": {"color": tone, "size": 7}}
            trace: dict[str, Any] = {**group, "showlegend": number == 0}
            traces.append(
                line(
                    [p[axis] for p in each.validations],
                    [p[2] for p in each.validations],
                    title,
                    mode="lines+markers",
                    **trace,
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


def _loss_note(result: ScalingResult) -> str:
    batch = "grows with the workers" if result.weak else "is the same at every size"
    return f"<p>Thin: training. Markers: validation. The batch {batch}; with a master it is that of one worker.</p>"


def forecast_table(result: ScalingResult, name: str) -> str:
    """Return the model of a strategy and its predictions."""
    forecast = result.forecasts.get(name)
    if forecast is None or not forecast.workers:
        return f"<p>{escape(name)}: {escape(forecast.note if forecast else 'nothing measured yet')}.</p>"
    band = f"{forecast.level:.0%}"
    head = ("workers", f"events/s <small>{band} band</small>", f"speed-up <small>{band} band</small>", "efficiency")
    rows = [
        (
            f"{p}{' <small>measured too</small>' if p in result.sizes(name) else ''}",
            f"{forecast.events_per_second[i]:,.1f} <small>{forecast.low[i]:,.1f} to {forecast.high[i]:,.1f}</small>",
            f"{forecast.speedup[i]:.2f} <small>{forecast.speedup_low[i]:.2f} to {forecast.speedup_high[i]:.2f}</small>",
            f"{forecast.speedup[i] / p:.0%}",
        )
        for i, p in enumerate(forecast.workers)
    ]
    return f"<h3>{escape(name)}</h3><p>{model_description(forecast)}</p>{table(head, rows)}"


def _expectation(result: ScalingResult) -> Callable[[str], str]:
    """Return a function that makes the table of a strategy."""

    def section(name: str) -> str:
        expectation = result.expectations.get(name)
        if expectation is None or not expectation.sizes:
            return f"<p>{escape(name)}: {escape(expectation.note if expectation else 'nothing measured yet')}.</p>"
        links = list(expectation.sizes[0].efficiency)
        rows = [
            (
                str(size.workers),
                f"{size.bytes_per_step / 1e6:,.3g}",
                f"{1e3 * size.compute_seconds:,.3g}",
                *(f"{size.efficiency[link][0]:.0%} to {size.efficiency[link][1]:.0%}" for link in links),
                "–" if size.measured_efficiency is None else f"{size.measured_efficiency:.0%}",
            )
            for size in expectation.sizes
        ]
        head = ("workers", "MB per step", "computing, ms", *map(escape, links), "measured")
        return f"<h3>{escape(name)}, {expectation.parameters:,} parameters</h3>{table(head, rows)}"

    return section


def model_description(forecast: Forecast) -> str:
    """Return a description of the fitted model."""
    middle, low, high = forecast.serial
    parts = [
        "Amdahl's law and communication, fitted to the sizes "
        f"{', '.join(map(str, forecast.fitted_on))}, for one core or device per worker; the band holds "
        f"{forecast.level:.0%} of bootstrap refits over trainings and their records."
    ]
    if high > 0 or middle > 0:
        parts.append(f"Part of the computing that is not shared among workers: {middle:.1%} ({low:.1%} to {high:.1%}).")
    if forecast.form:
        parts.append(f"Communication fits best as {forecast.form}.")
    note = f"{forecast.note[:1].upper()}{forecast.note[1:]}." if forecast.note else ""
    return escape(" ".join([*parts, note]).strip())
