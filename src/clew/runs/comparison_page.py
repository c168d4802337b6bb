"""A comparison of runs as an HTML page, in the style of a run's report."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import Any

from clew.figure import COLOURS, Figure, figure, line
from clew.runs.comparison import ABSENT, AXES, ComparedCurve, ComparedRun, Comparison, setting_text
from clew.runs.html_page import HtmlPage, label, score_cell, table
from clew.runs.scores import Score

_DASHES = ("solid", "dash", "dot", "dashdot")
_POINTS = 1000
"""Maximum number of points per curve, which keeps the page small."""


def write_comparison(comparison: Comparison, path: Path) -> Path:
    """Write the page and return its path."""
    page = HtmlPage(f"{len(comparison.runs)} runs compared")
    messages = [f"{escape(run.name)}: {escape(s.message)}" for run in comparison.runs if (s := run.summary).message]
    page.header(facts=[escape(run.name) for run in comparison.runs], notes=messages)
    page.section("Runs", _runs(comparison.runs))
    page.section("Settings that differ", _settings(comparison))
    page.section("Machines, versions and data that differ", _differences(comparison, comparison.environment))
    for name, lines in comparison.code.items():
        text = escape("\n".join(lines))
        page.section(f"Code that differs: {comparison.runs[0].name} and {name}", f"<pre>{text}</pre>")
    page.section("Quality", _quality(comparison))
    for axis, title in {"samples": "Over samples", "seconds": "Over time", "joules": "Over energy"}.items():
        page.section(title, figures=figures(comparison, axis))
    page.section("Speed", figures=_speed(comparison.runs))
    return page.write(path)


def figures(comparison: Comparison, axis: str) -> list[Figure]:
    """One figure per curve, with one line per run that has it."""
    place = {side.name: number for number, side in enumerate(comparison.runs)}
    figures_drawn = []
    for name, curves in comparison.curves(axis).items():
        traces = [_trace(curve, axis, run, place[run]) for run, curve in curves.items()]
        kind, _, metric = name.partition(" ")
        values = [value for curve in curves.values() for value in curve.values if value is not None]
        log = {"type": "log"} if metric == "loss" and all(value > 0 for value in values) else {}
        title = f"{label(metric).capitalize()}, {kind}"
        figures_drawn.append(figure(traces, title=title, x=AXES[axis], y=label(metric), yaxis=log, showlegend=True))
    return figures_drawn


def _trace(curve: ComparedCurve, axis: str, run: str, number: int) -> dict[str, Any]:
    every = -(-len(curve.values) // _POINTS) or 1
    mode = "lines+markers" if len(curve.values) <= 40 else "lines"
    stroke = {"color": _colour(number), "width": 2, "dash": _DASHES[number // len(COLOURS) % len(_DASHES)]}
    values = [math.nan if value is None else value for value in curve.values[::every]]
    return line(curve.axis(axis)[::every], values, escape(run), mode=mode, line=stroke)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _runs(runs: list[ComparedRun]) -> str:
    head = ("", "state", "recipe", "workers", "on", "epochs", "parameters", "samples/s", "seconds")
    rows = [
        (
            f'<i class="swatch" style="--c:{_colour(number)}"></i>{escape(run.name)}',
            f'<span class="state {escape(s.state)}">{escape(s.state)}</span>',
            escape(Path(s.recipe).stem),
            escape(str(s.workers)),
            escape(s.device),
            escape(f"{s.epochs_done} of {s.epochs}"),
            f"{s.parameters:,}",
            f"{s.times.samples_per_second:,.0f}",
            f"{s.seconds:,.1f}",
        )
        for number, (run, s) in enumerate((run, run.summary) for run in runs)
    ]
    return table(head, rows)


def _differences(comparison: Comparison, differences: dict[str, list[Any]]) -> str:
    head = ("", *(escape(run.name) for run in comparison.runs))
    return (
        table(head, [(escape(name), *map(_value, values)) for name, values in differences.items()])
        if differences
        else ""
    )


def _value(value: Any) -> str:
    return f"<code>{escape(setting_text(value))}</code>"


def _settings(comparison: Comparison) -> str:
    """Settings that every run has; then, folded, those that only some runs have (many if the recipes differ)."""
    shared = {name: values for name, values in comparison.settings.items() if ABSENT not in values}
    partial = {name: values for name, values in comparison.settings.items() if ABSENT in values}
    html = _differences(comparison, shared) or '<p class="soft">None: all common settings are equal.</p>'
    head = f"{len(partial)} settings that only some runs have"
    return html + (
        f"<details><summary>{head}</summary>{_differences(comparison, partial)}</details>" if partial else ""
    )


def _quality(comparison: Comparison) -> str:
    """Evaluations with errors, then the last validations."""
    rows = [
        (escape(title), label(metric), *map(score_cell, scores))
        for (title, metric), scores in comparison.scores().items()
    ]
    names = dict.fromkeys(name for run in comparison.runs for name in run.summary.metrics)
    rows += [
        ("last validation", label(name), *(score_cell(Score(run.summary.metrics.get(name))) for run in comparison.runs))
        for name in names
    ]
    head = ("", "metric", *(escape(run.name) for run in comparison.runs))
    return table(head, rows) if rows else '<p class="soft">No run was validated or evaluated yet.</p>'


def _speed(runs: list[ComparedRun]) -> list[Figure]:
    names = [escape(run.name) for run in runs]
    bar = {"type": "bar", "orientation": "h", "y": names}
    speeds = [round(run.summary.times.samples_per_second, 1) for run in runs]
    colours = [_colour(number) for number in range(len(runs))]
    parts = ("compute", "communicate", "data wait", "validate")  # same order, so same colours, as in the report
    shares = [
        {**bar, "name": part, "x": [round(100 * run.summary.times.shares.get(part, 0.0), 2) for run in runs]}
        for part in parts
    ]
    reversed_axis = {"autorange": "reversed"}
    return [
        figure(
            [{**bar, "x": speeds, "marker": {"color": colours}, "showlegend": False}],
            title="Speed, all workers together",
            x="samples/s",
            yaxis=reversed_axis,
        ),
        figure(shares, title="Where the time of rank 0 went", x="% of the time", barmode="stack", yaxis=reversed_axis),
    ]
