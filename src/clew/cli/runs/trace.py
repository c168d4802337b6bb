"""`clew trace`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from clew.cli.options import bold, console, table


def trace(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of the run.")],
    output: Annotated[
        Path | None, typer.Option(help="File of the timeline (default: trace.json in the run's folder).")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the viewer in a browser.")] = False,
) -> None:
    """Show how every rank spent its time, and write one timeline of all ranks for a viewer.

    The file opens in ui.perfetto.dev or chrome://tracing. Shares are of the recorded steps: the first 2,000, then
    one in ten. On a GPU they are shares of the CPU's time, which runs ahead of the GPU.

    \b
    Examples:
      clew trace runs/tracking-001
      clew trace runs/tracking-001 --output timeline.json
    """
    from clew.runs import Run
    from clew.runs import timeline as traces

    opened = Run.open(run)
    shares = {rank: traces.phase_shares(spans) for rank, spans in traces.traces(opened).items()}
    names = [name for name in (*traces.PHASES, "other") if any(name in each for each in shares.values())]
    columns = _columns(shares)
    rows = [(name, *(f"{each.get(name, 0.0):.1%}" for each in columns.values())) for name in names]
    console.print(table(("", *columns), rows, right=range(1, len(columns) + 1)))
    path = output or opened.path / "trace.json"
    count = traces.write_chrome(opened, path)
    console.print(f"{bold(path)}: {count:,} spans; open it in [bold]https://ui.perfetto.dev[/]")
    if show:
        typer.launch("https://ui.perfetto.dev")


def _columns(shares: dict[int, dict[str, float]]) -> dict[str, dict[str, float]]:
    """One column per rank; for more than six ranks the mean, the smallest and the largest share."""
    if len(shares) <= 6:
        return {f"rank {rank}": each for rank, each in shares.items()}
    names = {name for each in shares.values() for name in each}
    values = {name: [each.get(name, 0.0) for each in shares.values()] for name in names}
    reductions: dict[str, Callable[[list[float]], float]] = {
        "mean": lambda ranks: sum(ranks) / len(ranks),
        "smallest": min,
        "largest": max,
    }
    return {title: {name: float(f(ranks)) for name, ranks in values.items()} for title, f in reductions.items()}
