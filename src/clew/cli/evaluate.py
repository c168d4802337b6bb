"""`clew evaluate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.follow import counting
from clew.cli.options import bold, console, table
from clew.launch.place import find as launched

if TYPE_CHECKING:
    from clew.train.evaluate import Evaluation


def evaluate(
    run: Annotated[str, typer.Argument(help="The run's folder.")],
    data: Annotated[str | None, typer.Option(help="A dataset (default: the one it was trained on).")] = None,
    split: Annotated[str | None, typer.Option(help="The split of it (default: test, else val).")] = None,
    input: Annotated[list[str] | None, typer.Option(help="Raw events instead of a dataset. Repeatable.")] = None,
    name: Annotated[str | None, typer.Option(help="What the report calls it.")] = None,
    weights: Annotated[str, typer.Option(help="Which checkpoint: best or last.")] = "best",
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the events.")] = 1,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Events a batch (default: the run's, at least 256).")
    ] = None,
) -> None:
    """Judge a run's model on events it has not seen, and put the figures into its report.

    \b
    Examples:
      clew evaluate runs/tracking-001
      clew evaluate runs/tracking-001 --input real_events.txt --name real
      clew evaluate runs/tracking-001 --data other_dataset --split val --workers 4
      mpiexec -n 4 clew evaluate runs/tracking-001
    """
    from clew.ledger import Run
    from clew.ledger.pushing import pushed
    from clew.ledger.report import write_report

    opened = Run.open(run)
    from clew.train.evaluate import evaluate as work  # loads torch: a wrong folder is told before that

    with counting("evaluate") as shown:
        result = work(
            opened,
            data=data,
            split=split,
            input=input or (),
            name=name,
            weights=weights,
            workers=workers,
            batch_size=batch_size,
            progress=shown,
        )
    if launched().rank:  # under a launcher one tells for all
        return
    with pushed(run=opened):
        report = write_report(opened)
    show(result)
    console.print(f"report: {bold(report)}")


def show(result: Evaluation) -> None:
    """Print the numbers with their errors."""
    rate = result.events / max(result.seconds, 1e-9)
    console.print(f"{bold(result.name)}: {result.events:,} events [dim]({rate:,.0f}/s)[/]")
    rows = []
    for name, item in result.tallies.items():
        if not item.scalar:
            continue
        error = f"± {item.error:.4f}" if item.error == item.error else ""
        rows.append((name.replace("_", " "), f"{item.value:.4f}", error))
    console.print(table(("metric", "value", ""), rows, right=(1,)))
