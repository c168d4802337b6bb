"""`clew demo`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from clew.cli.options import console, program

REAL = "tracking/ariadne/cgem_50_events.txt"


def demo(
    output: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("demo"),
    events: Annotated[int, typer.Option(min=100, help="Synthetic events to make.")] = 2000,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data (default: the recipe's).")] = None,
    seed: Annotated[int, typer.Option(help="Of the events.")] = 1,
) -> None:
    """From nothing to found tracks: make events, prepare, train, judge, report. About two minutes on two cores.

    \b
    Example:
      clew demo --output demo --workers 2
    """
    from clew.cli.data import data
    from clew.cli.inference import evaluate
    from clew.cli.options import overrides
    from clew.cli.runs.follow import preparing
    from clew.data.prepare.api import prepare
    from clew.runs.folder import next_run_path
    from clew.runs.report import write_report
    from clew.runs.summary import summarize
    from clew.settings import load_settings

    start = time.perf_counter()
    raw, dataset = output / f"events-{events}-seed{seed}", output / f"dataset-{events}-seed{seed}"
    _say(1, "make events", f"clew data generate tracking --events {events} --seed {seed} --output {raw}")
    data.generate("tracking", events=events, seed=seed, output=raw)
    _say(2, "prepare segment graphs", f"clew prepare tracking --input {raw} --output {dataset} --workers {workers}")
    ready = overrides((), prepare__input=[str(raw)], prepare__output=str(dataset), prepare__workers=workers)
    loaded = load_settings("tracking", ready)
    with preparing() as view:
        view.prepared(prepare(loaded.recipe, loaded.prepare, replace=True, progress=view.preparing))
    run_path = next_run_path(output / "runs", "tracking")
    more = f" --epochs {epochs}" if epochs else ""
    command = f"clew train tracking --dataset {dataset} --workers {workers} --output {run_path}{more}"
    _say(3, "train the GraphNet", command)
    from clew.inference.evaluate import evaluate as judge
    from clew.training.api import train

    settings = overrides((), train__workers=workers, train__epochs=epochs)
    loaded = load_settings("tracking", settings)
    with preparing() as view:
        run = train(loaded.recipe, dataset, config=loaded.train, output=run_path, progress=view)
    _say(4, "build tracks and judge them on unseen events", f"clew evaluate {run_path} --name 'synthetic, unseen'")
    evaluate.show(judge(run, name="synthetic, unseen"))
    real = Path(os.environ.get("CLEW_TEST_DATA", "../shared/data")) / REAL
    if real.is_file():
        _say(5, "and on the public BES-III sample", f"clew evaluate {run_path} --input {real} --name BES-III")
        evaluate.show(judge(run, input=[str(real)], name="BES-III"))
    else:
        console.print(f"\n[dim]The public BES-III sample ({REAL}) is not here; set CLEW_TEST_DATA to judge it too.[/]")
    report = write_report(run)
    summary = summarize(run)
    console.print(
        f"\n[bold green]Done in {time.perf_counter() - start:.0f} s.[/] Trained {summary.parameters:,} parameters for "
        f"{summary.epochs_done} epochs on {workers} processes at {summary.samples_per_second:,.0f} events/s."
    )
    console.print(f"Report: [bold]{report.absolute()}[/]  (open it in a browser)")
    console.print(f"Files:  events {raw}, dataset {dataset}, run {run_path}")
    console.print("Try next:")
    for command in (
        f"clew runs show {run_path}",
        f"clew train tracking --dataset {dataset} --workers {workers} --set model.iterations=2",
        "clew init my_recipe --like tracking",
    ):
        console.print(f"  [cyan]{program()}{command.removeprefix('clew')}[/]")


def _say(number: int, what: str, command: str) -> None:
    console.print(f"\n[bold]{number}. {what}[/]  [dim]{command}[/]")
