"""`clew runs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from clew.cli.options import bold, console, table

app = typer.Typer(help="Look at runs: list, show, report.", no_args_is_help=True)
_RunFolder = Annotated[str, typer.Argument(metavar="RUN", help="The run's folder.")]


@app.command("list")
def list_(
    root: Annotated[Path, typer.Argument(help="The folder that holds the runs.")] = Path("runs"),
) -> None:
    """Every run under a folder, a line each.

    \b
    Examples:
      clew runs list
      clew runs list demo/runs
    """
    from clew.ledger import list_runs
    from clew.ledger.summary import summarize

    found = [summarize(run) for run in list_runs(root)]
    if not found:
        console.print(f"no runs in {bold(root)}; `clew train` makes one")
        return
    rows = [
        (
            s.name,
            s.state,
            Path(s.recipe).stem,
            f"{s.epochs_done}/{s.epochs}",
            s.workers,
            f"{s.samples_per_second:,.0f}",
            f"{s.seconds:.0f}",
            "  ".join(f"{name} {value:.4f}" for name, value in list(s.metrics.items())[:3] if value is not None),
        )
        for s in found
    ]
    head = ("run", "state", "recipe", "epochs", "workers", "samples/s", "seconds", "last validation")
    console.print(table(head, rows, right=(3, 4, 5, 6)))


@app.command()
def show(run: _RunFolder) -> None:
    """One run: what it did, how well, where its time went.

    \b
    Example:
      clew runs show runs/tracking-001
    """
    from clew.ledger import Run
    from clew.ledger.summary import summarize

    opened = Run.open(run)
    s = summarize(opened)
    console.print(f"{bold(s.name)}  {s.state}  {escape(s.message)}")
    rows = [
        ("recipe", s.recipe),
        ("epochs", f"{s.epochs_done} of {s.epochs}"),
        ("workers", s.workers),
        ("parameters", f"{s.parameters:,}"),
        ("samples/s", f"{s.samples_per_second:,.0f}"),
        ("seconds", f"{s.seconds:.1f}"),
        ("time", ", ".join(f"{name} {share:.1%}" for name, share in s.shares.items())),
        *((f"val {name}", f"{value:.4f}") for name, value in s.metrics.items() if value is not None),
    ]
    for name, record in opened.evaluations().items():
        rows += [(f"{name} {m}", f"{e['value']:.4f}") for m, e in record["metrics"].items() if e["value"] is not None]
    console.print(table(("", ""), rows))


@app.command()
def report(run: _RunFolder) -> None:
    """Write report.html anew from the run's records and plots.

    \b
    Example:
      clew runs report runs/tracking-001
    """
    from clew.ledger import Run
    from clew.ledger.report import write_report

    console.print(bold(write_report(Run.open(run))))
