"""Figures of a training: losses, metrics, speed, and how each rank spent its time."""

from __future__ import annotations

import contextlib
from typing import Any

from clew.errors import RunError
from clew.figure import Figure, figure, line, points
from clew.runs import timeline
from clew.runs.folder import Run
from clew.runs.html_page import label
from clew.runs.record_metrics import samples_per_second
from clew.runs.records import Record
from clew.runs.times import time_totals


def training_figures(run: Run) -> dict[str, Figure]:
    """The figures `loss`, `metrics`, `large`, `speed` and `time`; empty before the first step was recorded.

    There is no `time` for an asynchronous training: the records of its workers contain it.
    """
    history = run.history(run.main_stream)
    steps, validations = _of_kind(history, "step"), _of_kind(history, "validation")
    if not steps:
        return {}
    steps_per_epoch, axis = _epoch(history)
    speed = [
        (step["step"] / steps_per_epoch, value)
        for before, step in _pairs(steps)
        if (value := samples_per_second(step, before)) is not None
    ]
    return {
        "loss": figure(
            _losses(steps, validations, steps_per_epoch), title="Loss", x=axis, y="loss", yaxis={"type": "log"}
        ),
        **_metrics(validations, steps_per_epoch, axis),
        "speed": figure(
            [points([x for x, _ in speed], [y for _, y in speed], "samples/s", colour=2)],
            title="Speed, all workers together",
            x=axis,
            y="samples/s",
            yaxis={"rangemode": "tozero"},
        ),
        **({} if _of_kind(history, "workers") else {"time": _time(run)}),
        **_monitoring_figures(run),
    }


def _monitoring_figures(run: Run) -> dict[str, Figure]:
    """The timeline and the CPU usage, if they were recorded."""
    figures: dict[str, Figure] = {}
    if any(run.trace_folder.glob("rank-*.trace")):
        with contextlib.suppress(RunError):  # a run that ended before its first step
            figures["timeline"] = timeline.plot(run)
    usage = {stream: list(run.records(stream, "usage")) for stream in run.streams("usage")}
    start = min((records[0]["time"] for records in usage.values() if records), default=0.0)
    lines = [
        line([r["time"] - start for r in records], [r["cpu"] for r in records], f"rank {stream[6:]}", colour=i)
        for i, (stream, records) in enumerate(usage.items())
        if len(records) > 1
    ]
    if lines:
        figures["usage"] = figure(lines, title="Cores in use", x="seconds", y="cores", yaxis={"rangemode": "tozero"})
    return figures


def training_plot(run: Run) -> Any:
    """Losses and validation metrics side by side, as a plotly figure."""
    from plotly.subplots import make_subplots

    figures = training_figures(run)
    page = make_subplots(1, 2, subplot_titles=("Loss", "Validation"))
    for column, name in enumerate(("loss", "metrics"), start=1):
        for trace in figures[name]["data"] if name in figures else ():
            page.add_trace(trace, row=1, col=column)
    page.update_xaxes(title_text="epoch")
    page.update_yaxes(type="log", row=1, col=1)
    page.update_layout(title=f"{run.name} ({run.state})", legend={"orientation": "h", "y": -0.2})
    return page


def _epoch(history: list[Record]) -> tuple[float, str]:
    """Steps per epoch, and the title of the x axis. A user's own training loop has no plan; its axis shows steps."""
    plan = next((record for record in reversed(history) if record["kind"] == "plan"), None)
    return (max(plan["steps"] / max(plan["epochs"], 1), 1), "epoch") if plan else (1.0, "step")


def _losses(steps: list[Record], validations: list[Record], steps_per_epoch: float) -> list[dict[str, Any]]:
    names = list(dict.fromkeys(name for step in steps for name in step["loss"]))
    x = [step["step"] / steps_per_epoch for step in steps]
    traces = [
        line(x, [step["loss"].get(name) for step in steps], name if name != "loss" else "train", colour=i + (i > 0))
        for i, name in enumerate(names)  # colour 1 is for validation
    ]
    validated = [(v["step"] / steps_per_epoch, v["metrics"]["loss"]) for v in validations if "loss" in v["metrics"]]
    if validated:
        ends, held_out = zip(*validated, strict=True)
        traces.append(line(ends, held_out, "validation", colour=1, mode="lines+markers"))
    return traces


def _metrics(validations: list[Record], steps_per_epoch: float, axis: str) -> dict[str, Figure]:
    """`metrics`, and `large` for metrics outside 0 to 1 (such as rejections), which would flatten the others."""
    names = list(dict.fromkeys(name for v in validations for name in v["metrics"] if name != "loss"))
    values = {name: [v["metrics"].get(name) for v in validations] for name in names}
    ends = [v["step"] / steps_per_epoch for v in validations]

    def plot(chosen: list[str], title: str, scale: dict[str, Any]) -> Figure:
        traces = [
            line(ends, values[name], label(name), colour=i, mode="lines+markers") for i, name in enumerate(chosen)
        ]
        return figure(traces, title=title, x=axis, y="", yaxis=scale, showlegend=True)

    fractions = [name for name in names if all(0 <= (value or 0.0) <= 1 for value in values[name])]
    others = [name for name in names if name not in fractions]
    if not fractions:
        return {"metrics": plot(others, "Validation", {})}
    figures = {"metrics": plot(fractions, "Validation", {"range": [0, 1.02]})}
    return figures | ({"large": plot(others, "Validation, beyond 1", {"type": "log"})} if others else {})


def _of_kind(history: list[Record], kind: str) -> list[Record]:
    return [record for record in history if record["kind"] == kind]


def _pairs(steps: list[Record]) -> list[tuple[int, Record]]:
    return [(steps[i - 1]["samples"] if i else 0, step) for i, step in enumerate(steps)]


def _time(run: Run) -> Figure:
    """How each rank spent its time."""
    bars: dict[str, list[float]] = {}
    for stream in run.streams():
        for name, seconds in time_totals(run.history(stream)).times().parts.items():
            bars.setdefault(name, []).append(round(seconds, 3))
    traces = [
        {"type": "bar", "orientation": "h", "name": name, "y": run.streams(), "x": seconds}
        for name, seconds in bars.items()
    ]
    return figure(traces, title="Where the time went", x="seconds", barmode="stack", yaxis={"autorange": "reversed"})
