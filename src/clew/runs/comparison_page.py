"""A comparison as one page, of the same look as a run's report."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import Any

from clew.figure import COLOURS, Figure, figure, line
from clew.runs.comparison import ABSENT, AXES, Comparison, Curve, Side, text
from clew.runs.html_page import Page, label, score, table

_DASHES = ("solid", "dash", "dot", "dashdot")
_POINTS = 1000
"""Of a curve, at most: a browser draws no more, and the page stays small."""


def write_comparison(compared: Comparison, path: Path) -> Path:
    """Write the page and return where it is."""
    page = Page(f"{len(compared.sides)} runs compared")
    ended = [f"{escape(side.name)}: {escape(s.message)}" for side in compared.sides if (s := side.summary).message]
    page.header(facts=[escape(side.name) for side in compared.sides], notes=ended)
    page.section("Runs", _runs(compared.sides))
    page.section("Settings that differ", _settings(compared))
    page.section("Machines, versions and data that differ", _differences(compared, compared.surroundings))
    page.section("Quality", _quality(compared))
    for axis, title in {"samples": "Over samples", "seconds": "Over time", "joules": "Over energy"}.items():
        page.section(title, figures=figures(compared, axis))
    page.section("Speed", figures=_speed(compared.sides))
    return page.write(path)


def figures(compared: Comparison, axis: str) -> list[Figure]:
    """A figure for each curve, with a line for each run that has it."""
    place = {side.name: number for number, side in enumerate(compared.sides)}
    drawn = []
    for name, curves in compared.curves(axis).items():
        traces = [_trace(curve, axis, run, place[run]) for run, curve in curves.items()]
        kind, _, metric = name.partition(" ")
        values = [value for curve in curves.values() for value in curve.values if value is not None]
        log = {"type": "log"} if metric == "loss" and all(value > 0 for value in values) else {}
        title = f"{label(metric).capitalize()}, {kind}"
        drawn.append(figure(traces, title=title, x=AXES[axis], y=label(metric), yaxis=log, showlegend=True))
    return drawn


def _trace(curve: Curve, axis: str, run: str, place: int) -> dict[str, Any]:
    every = -(-len(curve.values) // _POINTS) or 1
    mode = "lines+markers" if len(curve.values) <= 40 else "lines"
    stroke = {"color": _colour(place), "width": 2, "dash": _DASHES[place // len(COLOURS) % len(_DASHES)]}
    values = [math.nan if value is None else value for value in curve.values[::every]]
    return line(curve.axis(axis)[::every], values, escape(run), mode=mode, line=stroke)


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def _runs(sides: list[Side]) -> str:
    head = ("", "state", "recipe", "workers", "on", "epochs", "parameters", "samples/s", "seconds")
    rows = [
        (
            f'<i class="dot" style="background:{_colour(place)}"></i>&nbsp;{escape(side.name)}',
            f'<span class="state {s.state}">{s.state}</span>',
            escape(Path(s.recipe).stem),
            str(s.workers),
            escape(s.device),
            f"{s.epochs_done} of {s.epochs}",
            f"{s.parameters:,}",
            f"{s.samples_per_second:,.0f}",
            f"{s.seconds:,.1f}",
        )
        for place, (side, s) in enumerate((side, side.summary) for side in sides)
    ]
    return table(head, rows)


def _differences(compared: Comparison, found: dict[str, list[Any]]) -> str:
    head = ("", *(escape(side.name) for side in compared.sides))
    return table(head, [(escape(name), *map(_value, values)) for name, values in found.items()]) if found else ""


def _value(value: Any) -> str:
    return f"<code>{escape(text(value))}</code>"


def _settings(compared: Comparison) -> str:
    """Those that every run has; behind a click those that only some have, of which recipes that differ have many."""
    shared = {name: values for name, values in compared.settings.items() if ABSENT not in values}
    others = {name: values for name, values in compared.settings.items() if ABSENT in values}
    told = _differences(compared, shared) or '<p class="facts">None: all that they share are the same.</p>'
    head = f"{len(others)} settings that only some of them have"
    return told + (f"<details><summary>{head}</summary>{_differences(compared, others)}</details>" if others else "")


def _quality(compared: Comparison) -> str:
    """Evaluations with their errors, then the last validations."""
    rows = [
        (escape(title), label(metric), *(score(each.value, each.error) if each else "–" for each in found))
        for (title, metric), found in compared.scores().items()
    ]
    names = dict.fromkeys(name for side in compared.sides for name in side.summary.metrics)
    rows += [
        ("last validation", label(name), *(score(side.summary.metrics.get(name), None) for side in compared.sides))
        for name in names
    ]
    head = ("", "metric", *(escape(side.name) for side in compared.sides))
    return table(head, rows) if rows else '<p class="facts">None of them was validated or evaluated yet.</p>'


def _speed(sides: list[Side]) -> list[Figure]:
    names = [escape(side.name) for side in sides]
    bar = {"type": "bar", "orientation": "h", "y": names}
    speeds = [round(side.summary.samples_per_second, 1) for side in sides]
    colours = [_colour(place) for place in range(len(sides))]
    parts = ("compute", "communicate", "load", "validate")  # in the order, so in the colours, of the report
    shares = [
        {**bar, "name": part, "x": [round(100 * side.summary.shares.get(part, 0.0), 2) for side in sides]}
        for part in parts
    ]
    upside = {"autorange": "reversed"}
    return [
        figure(
            [{**bar, "x": speeds, "marker": {"color": colours}, "showlegend": False}],
            title="Speed, all workers together",
            x="samples/s",
            yaxis=upside,
        ),
        figure(shares, title="Where the time of rank 0 went", x="% of the time", barmode="stack", yaxis=upside),
    ]
