"""`clew evaluate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.options import bold, console, progress, table

if TYPE_CHECKING:
    from clew.train.evaluate import Evaluation


def evaluate(
    run: Annotated[str, typer.Argument(help="The run's folder.")],
    data: Annotated[str | None, typer.Option(help="A dataset (default: the one it was trained on).")] = None,
    split: Annotated[str | None, typer.Option(help="The split of it (default: test, else val).")] = None,
    input: Annotated[list[str] | None, typer.Option(help="Raw events instead of a dataset. Repeatable.")] = None,
    name: Annotated[str | None, typer.Option(help="What the report calls it.")] = None,
    weights: Annotated[str, typer.Option(help="Which checkpoint: best or last.")] = "best",
) -> None:
    """Judge a run's model on events it has not seen, and put the figures into its report.

    \b
    Examples:
      clew evaluate runs/tracking-001
      clew evaluate runs/tracking-001 --input real_events.txt --name real
    """
    from clew.ledger import Run
    from clew.ledger.report import write_report

    opened = Run.open(run)
    from clew.train.evaluate import evaluate as work  # loads torch: a wrong folder is told before that

    with progress() as bar:
        task = bar.add_task("evaluate", total=None, note="events")

        def shown(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

        result = work(opened, data=data, split=split, input=input or (), name=name, weights=weights, progress=shown)
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
