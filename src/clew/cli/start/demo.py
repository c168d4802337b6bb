"""`clew demo`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.options import console, overrides, program

if TYPE_CHECKING:
    from clew.runs import Run

REAL = "tracking/ariadne/cgem_50_events.txt"
"""A public sample of BES-III, in the folder of test data."""


def demo(
    output: Annotated[Path, typer.Option(help="Folder for all files.")] = Path("demo"),
    events: Annotated[int, typer.Option(min=100, help="Number of synthetic events.")] = 2000,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 2,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data (default: the recipe's).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the events.")] = 1,
    push: Annotated[
        bool, typer.Option("--push", help="Send the run, its plots and its report to the server of `clew login`.")
    ] = False,
) -> None:
    """Find tracks in synthetic events: generate, prepare, train, evaluate, report. About two minutes.

    \b
    Examples:
      clew demo --output demo --workers 2
      clew demo --push
    """
    from clew.cli.data import data
    from clew.runs.folder import next_run_path

    if push:
        _check_login()
    start = time.perf_counter()
    raw, dataset = output / f"events-{events}-seed{seed}", output / f"dataset-{events}-seed{seed}"
    _print_step(1, "generate events", f"clew data generate tracking --events {events} --seed {seed} --output {raw}")
    data.generate("tracking", events=events, seed=seed, output=raw)
    command = f"clew prepare tracking --input {raw} --output {dataset} --workers {workers}"
    _print_step(2, "prepare segment graphs", command)
    _prepare(raw, dataset, workers)
    run_path = next_run_path(output / "runs", "tracking")
    more = f" --epochs {epochs}" if epochs else ""
    command = f"clew train tracking --dataset {dataset} --workers {workers} --output {run_path}{more}"
    _print_step(3, "train the GraphNet", command)
    run = _train(dataset, run_path, workers, epochs)
    _evaluate(run)
    _print_summary(run, workers, time.perf_counter() - start)
    if push:
        from clew.cli.runs.push import push as push_runs

        push_runs([run_path], group=None, tags=(), files=True)
    console.print(f"Files:  events {raw}, dataset {dataset}, run {run_path}")
    console.print("Next commands:")
    for command in (
        f"runs show {run_path}",
        f"train tracking --dataset {dataset} --workers {workers} --set model.iterations=2",
        "init my_recipe --like tracking",
    ):
        console.print(f"  [cyan]{program()} {command}[/]")


def _check_login() -> None:
    """Check that there is a server, before minutes of work."""
    from clew.client.credentials import credentials
    from clew.errors import ConfigError

    if credentials() is None:
        raise ConfigError("--push: no server; log in first with `clew login`, or leave the option out")


def _prepare(raw: Path, dataset: Path, workers: int) -> None:
    from clew.cli.runs.follow import preparing
    from clew.data.prepare.api import prepare
    from clew.settings import load_settings

    settings = overrides((), prepare__input=[str(raw)], prepare__output=str(dataset), prepare__workers=workers)
    loaded = load_settings("tracking", settings)
    with preparing() as view:
        view.prepared(prepare(loaded.recipe, loaded.prepare, replace=True, progress=view.preparing))


def _train(dataset: Path, run_path: Path, workers: int, epochs: int | None) -> Run:
    from clew.cli.runs.follow import preparing
    from clew.settings import load_settings
    from clew.training.api import train

    loaded = load_settings("tracking", overrides((), train__workers=workers, train__epochs=epochs))
    with preparing() as view:
        return train(loaded.recipe, dataset, config=loaded.train, output=run_path, progress=view)


def _evaluate(run: Run) -> None:
    from clew.cli.inference.evaluate import show
    from clew.inference.evaluate import evaluate

    title = "build tracks and evaluate them on held-out events"
    _print_step(4, title, f"clew evaluate {run.path} --name 'synthetic, unseen'")
    show(evaluate(run, name="synthetic, unseen"))
    real = Path(os.environ.get("CLEW_TEST_DATA", "../shared/data")) / REAL
    if real.is_file():
        _print_step(5, "and on the public BES-III sample", f"clew evaluate {run.path} --input {real} --name BES-III")
        show(evaluate(run, input=[str(real)], name="BES-III"))
    else:
        console.print(
            f"\n[dim]The public BES-III sample ({REAL}) is missing; set CLEW_TEST_DATA to evaluate it too.[/]"
        )


def _print_summary(run: Run, workers: int, seconds: float) -> None:
    from clew.runs.summary import summarize

    report, summary = run.report_file, summarize(run)
    console.print(
        f"\n[bold green]Done in {seconds:.0f} s.[/] Trained {summary.parameters:,} parameters for "
        f"{summary.epochs_done} epochs on {workers} processes at {summary.times.samples_per_second:,.0f} events/s."
    )
    console.print(f"Report: [bold]{report.absolute()}[/]  (open it in a browser)")


def _print_step(number: int, title: str, command: str) -> None:
    console.print(f"\n[bold]{number}. {title}[/]  [dim]{command}[/]")
