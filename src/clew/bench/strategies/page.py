"""A study as a page: time to the target by bandwidth, the way there, and what it was measured with."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from clew.bench.strategies.hosts import bits_per_second
from clew.bench.strategies.results import UNLIMITED, StrategyStudy
from clew.figure import COLOURS, Figure, figure, line
from clew.runs.html_page import HtmlPage, label, table

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")


def write(study: StrategyStudy, path: Path) -> Path:
    """The page, in the look of a run's report."""
    goal, told = study.goal, study.conditions
    page = HtmlPage("Strategies compared")
    sign = "at least" if goal.direction == "maximize" else "at most"
    facts = [
        f"recipe <b>{escape(Path(told['recipe']).stem)}</b>",
        f"to {label(goal.metric)} of {sign} {goal.value:g}",
        f"{told['workers']} workers on hosts of their own",
        f"{told['cores']} cores in all",
        escape(told["when"]),
    ]
    failed = [f"{t.strategy} at {t.bandwidth}: {escape(t.message)}" for t in study.trials if t.message]
    page.header(facts=facts, notes=failed)
    ways = [way(study, bandwidth) for bandwidth in study.lines]
    page.section("Time to the target", times(study), [over_bandwidth(study), *ways])
    page.section(
        "Every training", f"<details><summary>{len(study.trials)} trainings</summary>{_trials(study)}</details>"
    )
    page.section("Conditions", table((), [(escape(k), escape(str(v))) for k, v in told.items()]))
    return page.write(path)


def times(study: StrategyStudy) -> str:
    """Seconds, a row a strategy; the fastest stands out."""
    head = ("", *(f"{escape(b)}<br><small>{v / 1e6:,.0f} Mbit/s measured</small>" for b, v in study.lines.items()))
    rows = [(name, *(_cell(study, name, bandwidth) for bandwidth in study.lines)) for name in study.strategies]
    return table(head, rows)


def over_bandwidth(study: StrategyStudy) -> Figure:
    """Seconds to the target by bandwidth, a line a strategy, bars from the fastest to the slowest training; what did
    not get there is left out.
    """
    limited = sorted((b for b in study.lines if b != UNLIMITED), key=bits_per_second)
    traces = []
    for place, name in enumerate(study.strategies):
        found = [(b, took) for b in limited if (took := study.seconds(name, b)) is not None]
        x, y = [bits_per_second(b) for b, _ in found], [took for _, took in found]
        traces.append(line(x, y, name, mode="lines+markers", error_y=_spread(study, name, found), **_style(place)))
    return figure(
        traces,
        title="Seconds to the target",
        x="bandwidth of each host's line",
        y="seconds",
        showlegend=True,
        xaxis={"type": "log", "tickvals": [bits_per_second(b) for b in limited], "ticktext": limited, "dtick": None},
        yaxis={"type": "log"},
    )


def _spread(study: StrategyStudy, name: str, found: list[tuple[str, float]]) -> dict[str, Any]:
    known = [([t.seconds for t in study.of(name, b) if t.seconds is not None], middle) for b, middle in found]
    up, down = [max(took) - middle for took, middle in known], [middle - min(took) for took, middle in known]
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1, "width": 3}


def way(study: StrategyStudy, bandwidth: str) -> Figure:
    """The metric over time at a bandwidth, a line a training, and the target."""
    traces, longest = [], 0.0
    for place, name in enumerate(study.strategies):
        for number, trial in enumerate(t for t in study.of(name, bandwidth) if t.curve):
            x, y = zip(*trial.curve, strict=True)
            longest = max(longest, *x)
            shown = {"legendgroup": name, "showlegend": number == 0, **_style(place)}
            traces.append(line(x, y, name, mode="lines+markers", **shown))
    goal = study.goal
    dashed = {"color": "#7f7f7f", "width": 1, "dash": "dash"}
    traces.append(line([0, longest], [goal.value or 0.0] * 2, "target", line=dashed))
    return figure(traces, title=f"At {bandwidth}", x="seconds", y=label(goal.metric), showlegend=True)


def _style(place: int) -> dict[str, Any]:
    colour = COLOURS[place % len(COLOURS)]
    return {
        "line": {"color": colour, "width": 2},
        "marker": {"symbol": _SYMBOLS[place % len(_SYMBOLS)], "size": 7, "color": colour},
    }


def _cell(study: StrategyStudy, name: str, bandwidth: str) -> str:
    trials, middle = study.of(name, bandwidth), study.seconds(name, bandwidth)
    if not trials:
        return "–"
    if middle is None:
        best = study.goal.best([t.best for t in trials if t.best is not None])
        return "failed" if best is None else f"not reached <small>best {best:.4g}</small>"
    took = [t.seconds for t in trials if t.seconds is not None]
    spread = f" <small>{min(took):,.1f} to {max(took):,.1f}</small>" if len(trials) > 1 else ""
    text = f"{middle:,.1f} s"
    return (f"<b>{text}</b>" if study.fastest(bandwidth) == name else text) + spread


def _trials(study: StrategyStudy) -> str:
    head = ("strategy", "bandwidth", "seed", "seconds", "samples", "epochs", "best", "samples/s", "communicate", "run")
    known = [*([study.reference] if study.reference else []), *study.trials]
    rows = [
        (
            t.strategy,
            escape(t.bandwidth),
            str(t.seed),
            "–" if t.seconds is None else f"{t.seconds:,.1f}",
            "–" if t.samples is None else f"{t.samples:,}",
            str(t.epochs),
            "–" if t.best is None else f"{t.best:.4f}",
            f"{t.samples_per_second:,.0f}",
            f"{t.communicate:.0%}",
            f"<code>{escape(t.run)}</code>",
        )
        for t in known
    ]
    return table(head, rows)
