"""`clew compare`: runs side by side, in the terminal or as a page."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clew.cli.options import bold, console, table
from clew.cli.runs.listing import length, number

if TYPE_CHECKING:
    from clew.runs.comparison import ComparedCurve, Comparison

_MAX_DIFF = 60
"""Lines of the difference of two recipes that are printed."""
_MARKS = 5
"""Number of points along an axis at which the values of curves are printed."""


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN RUN ...", help="Folders of the runs.")],
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML page with curves instead.")] = None,
) -> None:
    """Compare runs: settings and code that differ, curves, final metrics with errors, speed.

    \b
    Examples:
      clew compare runs/tracking-001 runs/tracking-002
      clew compare runs/* --html compare.html
      clew runs compare tracking-001 tracking-002
    """
    from clew.runs.comparison import compare_runs

    compared = compare_runs(runs)
    if html is None:
        show(compared)
        return
    from clew.runs.comparison_page import write_comparison

    console.print(bold(write_comparison(compared, html)))


def show(compared: Comparison) -> None:
    """Print every table that is not empty."""
    from clew.runs.comparison import setting_text

    names = [side.name for side in compared.runs]
    _part("Runs", ("", *names), _runs(compared), right=range(1, len(names) + 1))
    for title, differences in {
        "Settings that differ": compared.settings,
        "Environment that differs": compared.environment,
    }.items():
        _part(title, ("", *names), [(key, *map(setting_text, values)) for key, values in differences.items()])
    if not compared.settings:
        console.print("[bold]Settings[/]: identical\n")
    for name, lines in compared.code.items():
        console.print(f"[bold]Code that differs[/] ({names[0]} and {name})")
        console.print("\n".join(lines[:_MAX_DIFF]), markup=False)
        console.print(f"[dim]and {len(lines) - _MAX_DIFF} more lines[/]\n" if len(lines) > _MAX_DIFF else "")
    _part("Quality", ("", "", *names), _quality(compared), right=range(2, len(names) + 2))
    for axis, (title, mark_text) in _AXES.items():
        marks = _marks(compared, axis)
        rows = list(_curves(compared, axis, marks))
        _part(title, ("", "", *map(mark_text, marks)), rows, right=range(2, _MARKS + 2))


def _part(title: str, head: Iterable[str], rows: list[tuple[Any, ...]], *, right: Iterable[int] = ()) -> None:
    if rows:
        console.print(f"[bold]{title}[/]")
        grid = table(head, rows, right=right)
        for column in grid.columns:
            column.overflow = "fold"  # paths may differ at the end only
        console.print(grid, soft_wrap=False)
        console.print()


def _runs(compared: Comparison) -> list[tuple[Any, ...]]:
    summaries = [side.summary for side in compared.runs]
    shares = dict.fromkeys(part for s in summaries for part in s.times.shares)
    rows: list[tuple[Any, ...]] = [
        ("state", *(s.state for s in summaries)),
        ("recipe", *(Path(s.recipe).stem for s in summaries)),
        ("epochs", *(f"{s.epochs_done}/{s.epochs}" if s.epochs else s.epochs_done for s in summaries)),
        ("workers", *(s.workers for s in summaries)),
        ("parameters", *(f"{s.parameters:,}" for s in summaries)),
        ("samples/s", *(f"{s.times.samples_per_second:,.0f}" for s in summaries)),
        ("time", *(length(s.seconds) for s in summaries)),
        *((f"time to {part}", *(f"{s.times.shares.get(part, 0.0):.1%}" for s in summaries)) for part in shares),
    ]
    return [*rows, *([("why it ended", *(s.message for s in summaries))] if any(s.message for s in summaries) else [])]


def _quality(compared: Comparison) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = [
        (title, metric, *("–" if each is None else each.text for each in scores))
        for (title, metric), scores in compared.scores().items()
    ]
    names = dict.fromkeys(name for side in compared.runs for name in side.summary.metrics)
    return rows + [
        ("validation", name, *(number(side.summary.metrics.get(name)) or "–" for side in compared.runs))
        for name in names
    ]


def _marks(compared: Comparison, axis: str) -> list[float]:
    ends = [curve.axis(axis)[-1] for curves in compared.curves(axis).values() for curve in curves.values()]
    return [max(ends, default=0.0) * place / _MARKS for place in range(1, _MARKS + 1)]


def _curves(compared: Comparison, axis: str, marks: list[float]) -> Iterator[tuple[Any, ...]]:
    for name, curves in compared.curves(axis).items():
        for place, (run, curve) in enumerate(curves.items()):
            yield ("" if place else name, run, *(_at(curve, axis, mark) for mark in marks))


def _at(curve: ComparedCurve, axis: str, mark: float) -> str:
    """The newest value at a mark; in brackets after the end of the run, empty before its first value."""
    places = curve.axis(axis)
    index = bisect.bisect_right(places, mark * (1 + 1e-9)) - 1
    if index < 0:
        return ""
    ended = index == len(places) - 1 and places[-1] < mark * (1 - 0.5 / _MARKS)
    text = number(curve.values[index])
    return f"({text})" if ended else text


def _short(count: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.0f}"


_BRACKETS = "[dim](in brackets: after its end)[/]"
_AXES: dict[str, tuple[str, Callable[[float], str]]] = {
    "samples": (f"Over samples {_BRACKETS}", _short),
    "seconds": (f"Over time {_BRACKETS}", length),
    "joules": (f"Over energy in J {_BRACKETS}", _short),
}
