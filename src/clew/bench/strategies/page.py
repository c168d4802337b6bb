"""The HTML page of a comparison of strategies."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from clew.bench.pages import MISSING, BenchPage, PageSection, facts_table, format_number, series_style, value_range
from clew.bench.strategies.hosts import bits_per_second
from clew.bench.strategies.results import UNLIMITED, StrategyStudy
from clew.figure import Figure, figure, line
from clew.runs.html_page import label, table


def write(study: StrategyStudy, path: Path) -> Path:
    """Write the page and return its path."""
    goal, conditions = study.goal, study.conditions
    sign = "at least" if goal.direction == "maximize" else "at most"
    facts = [
        f"recipe <b>{escape(Path(conditions['recipe']).stem)}</b>",
        f"target: {label(goal.metric)} of {sign} {goal.value:g}",
        f"{conditions['workers']} workers, one host each",
        f"{conditions['cores']} cores in total",
        escape(conditions["when"]),
    ]
    failures = [escape(f"{run.strategy} at {run.bandwidth}: {run.message}") for run in study.trials if run.message]
    curves = [metric_curves(study, bandwidth) for bandwidth in study.lines]
    trainings = f"<details><summary>{len(study.trials)} trainings</summary>{_run_table(study)}</details>"
    sections = [
        PageSection("Time to the target", times(study), [over_bandwidth(study), *curves]),
        PageSection("Every training", trainings),
        PageSection("Conditions", facts_table(conditions)),
    ]
    return BenchPage("Comparison of strategies", facts, failures, sections).write(path)


def times(study: StrategyStudy) -> str:
    """Return a table of seconds, one row per strategy; the fastest is bold."""
    head = ("", *(f"{escape(b)}<br><small>{_measured_line(study, b)}</small>" for b in study.lines))
    rows = [(escape(name), *(_cell(study, name, bandwidth) for bandwidth in study.lines)) for name in study.strategies]
    return table(head, rows)


def _measured_line(study: StrategyStudy, bandwidth: str) -> str:
    """Return the measured bandwidth, and the time there and back if packets were delayed."""
    speed = f"{study.lines[bandwidth] / 1e6:,.0f} Mbit/s measured"
    if not study.conditions.get("delay"):
        return speed
    return f"{speed}, {1000 * study.conditions['round_trip'][bandwidth]:.2g} ms there and back"


def over_bandwidth(study: StrategyStudy) -> Figure:
    """Return a figure of the seconds to the target against bandwidth, one line per strategy.

    Bars reach from the fastest to the slowest training. Trainings that did not reach the target are left out.
    """
    limited = sorted((b for b in study.lines if b != UNLIMITED), key=bits_per_second)
    traces = []
    for place, name in enumerate(study.strategies):
        medians = [(b, time) for b in limited if (time := study.seconds(name, b)) is not None]
        x, y = [bits_per_second(b) for b, _ in medians], [time for _, time in medians]
        traces.append(
            line(x, y, name, mode="lines+markers", error_y=_error_bars(study, name, medians), **series_style(place))
        )
    return figure(
        traces,
        title="Seconds to the target",
        x="bandwidth of each host's line",
        y="seconds",
        showlegend=True,
        xaxis={"type": "log", "tickvals": [bits_per_second(b) for b in limited], "ticktext": limited, "dtick": None},
        yaxis={"type": "log"},
    )


def _error_bars(study: StrategyStudy, name: str, medians: list[tuple[str, float]]) -> dict[str, Any]:
    times = [([run.seconds for run in study.runs_at(name, b) if run.seconds is not None], m) for b, m in medians]
    up, down = [max(values) - median for values, median in times], [median - min(values) for values, median in times]
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1, "width": 3}


def metric_curves(study: StrategyStudy, bandwidth: str) -> Figure:
    """Return a figure of the metric against time at a bandwidth, one line per training, and the target."""
    traces, longest = [], 0.0
    for place, name in enumerate(study.strategies):
        for number, trial in enumerate(run for run in study.runs_at(name, bandwidth) if run.curve):
            x, y = zip(*trial.curve, strict=True)
            longest = max(longest, *x)
            shown = {"legendgroup": name, "showlegend": number == 0, **series_style(place)}
            traces.append(line(x, y, name, mode="lines+markers", **shown))
    goal = study.goal
    dashed = {"color": "#7f7f7f", "width": 1, "dash": "dash"}
    traces.append(line([0, longest], [goal.value or 0.0] * 2, "target", line=dashed))
    return figure(traces, title=f"At {bandwidth}", x="seconds", y=label(goal.metric), showlegend=True)


def _cell(study: StrategyStudy, name: str, bandwidth: str) -> str:
    runs, median = study.runs_at(name, bandwidth), study.seconds(name, bandwidth)
    if not runs:
        return MISSING
    if median is None:
        best = study.goal.best([run.best for run in runs if run.best is not None])
        return "failed" if best is None else f"not reached <small>best {best:.4g}</small>"
    times = [run.seconds for run in runs if run.seconds is not None]
    text = f"{median:,.1f} s"
    return (f"<b>{text}</b>" if study.fastest(bandwidth) == name else text) + value_range(times)


def _run_table(study: StrategyStudy) -> str:
    head = ("strategy", "bandwidth", "seed", "seconds", "samples", "epochs", "best", "samples/s", "communicate", "run")
    runs = [*([study.reference] if study.reference else []), *study.trials]
    rows = [
        (
            escape(run.strategy),
            escape(run.bandwidth),
            str(run.seed),
            format_number(run.seconds, ",.1f"),
            format_number(run.samples, ","),
            str(run.epochs),
            format_number(run.best, ".4f"),
            f"{run.samples_per_second:,.0f}",
            f"{run.communicate:.0%}",
            f"<code>{escape(run.run)}</code>",
        )
        for run in runs
    ]
    return table(head, rows)
