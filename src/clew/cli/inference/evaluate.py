"""`clew evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clew.cli.inference.evaluate_files import check_options, evaluate_files
from clew.cli.jobs.command_words import command_words
from clew.cli.jobs.on_site import SiteOptions, SiteWork, on_site
from clew.cli.options import Settings, bold, console, printed_warnings, table
from clew.cli.runs.follow import counting
from clew.cli.transfer_progress import show_fetches, show_transfers
from clew.errors import ConfigError
from clew.jobs.rank_info import current_rank as launched
from clew.jobs.task import command_task

if TYPE_CHECKING:
    from clew.inference.evaluate import Evaluation
    from clew.runs import Run


def _plan(site: SiteOptions, **options: Any) -> SiteWork:
    """What `--on SITE` submits."""
    from clew.runs import Run

    run = options["run"]
    if options["against"]:
        raise ConfigError("--on evaluates a run; --against compares files here")
    if not site.values["after"]:
        run = str(Run.open(run).path)
    task = command_task(command_words(("evaluate",), options))
    return SiteWork("evaluate", Path(run), task, workers=site.workers(options["workers"]))


@on_site(_plan)
def evaluate(
    run: Annotated[
        str,
        typer.Argument(help="Folder of the run, or the URL of a run or model in a store; a file with --against."),
    ],
    data: Annotated[
        str | None,
        typer.Option("--dataset", help="A dataset: a folder or a URL in a store (default: the one it was trained on)."),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split of the dataset (default: test, else val).")] = None,
    input: Annotated[list[str] | None, typer.Option(help="Raw events instead of a dataset. Repeatable.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the evaluation in the report.")] = None,
    weights: Annotated[str, typer.Option(help="Which checkpoint: best or last.")] = "best",
    workers: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Events per batch (default: that of the run, at least 256).")
    ] = None,
    current_code: Annotated[
        bool, typer.Option("--current-code", help="Use today's code of the recipe, not the code that the run saved.")
    ] = False,
    trust: Annotated[bool, typer.Option("--trust", help="Run code that came from elsewhere, now and later.")] = False,
    against: Annotated[
        list[str] | None,
        typer.Option(help="Compare a file of generated samples with this file of true ones. Repeatable."),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="The recipe that reads the files of --against.")] = None,
    settings: Settings = None,
    output: Annotated[str | None, typer.Option(help="The report of --against, an HTML file.")] = None,
) -> None:
    """Evaluate a run's model on events it was not trained on, and add the metrics to its report.

    With --against, compare a file of generated samples with a file of true ones; no run is needed.

    \b
    Examples:
      clew evaluate runs/tracking-001
      clew evaluate runs/tracking-001 --input real_events.txt --name real
      clew evaluate runs/tracking-001 --dataset other_dataset --split val --workers 4
      clew evaluate runs/top_tagger-001 --current-code
      clew evaluate s3://bucket/models/tracking-001-1a2b3c4d
      mpiexec -n 4 clew evaluate runs/tracking-001
      clew evaluate runs/tracking-001 --on mycluster --after runs/tracking-001
      clew evaluate generated.h5 --against geant4.h5 --recipe fastsim
    """
    of_run = {"--dataset": data, "--split": split, "--input": input, "--name": name, "--batch-size": batch_size}
    check_options({**of_run, "--recipe": recipe, "--set": settings, "--output": output}, against)
    if against:
        show(evaluate_files(run, against, recipe, settings or (), output))
        return
    options = {"data": data, "split": split, "input": input or (), "name": name, "weights": weights, "trust": trust}
    _evaluate_run(run, {**options, "workers": workers, "batch_size": batch_size, "current_code": current_code})


def _evaluate_run(run: str, options: dict[str, Any]) -> None:
    """Evaluate a run with the options of `clew.evaluate`."""
    from clew import storage
    from clew.storage import models

    with show_transfers("get") as watch:
        opened = models.open_run(run, watch=watch)
    from clew.inference.evaluate import evaluate as evaluate_model  # loads torch, so a wrong folder is reported first

    location = options["data"] or str(opened.config().data.get("train", {}).get("dataset", ""))
    if not options["input"] and storage.is_url(location):
        with show_fetches():
            storage.folder(location)
    with counting("evaluate") as on_progress, printed_warnings():
        result = evaluate_model(opened, **options, progress=on_progress)
    if launched().rank:  # only rank 0 prints
        return
    _finish(opened, run, result)


def _finish(opened: Run, location: str, result: Evaluation) -> None:
    """Send the run to the server, print the metrics, and update the copy of the run in a store."""
    from clew import storage
    from clew.runs.push_process import pushed
    from clew.storage import models

    with pushed(run=opened):
        show(result)
    console.print(f"report: {bold(opened.report_file)}")
    if storage.is_url(location):
        with show_transfers("put") as watch:
            folder, name = storage.parent_location(location), storage.base_name(location)
            models.store_model(opened, folder, ("all",), name=name, watch=watch)
        console.print(f"{bold(storage.mask_secrets(location))}: updated")


def show(result: Evaluation) -> None:
    """Print the metrics with their errors."""
    from clew.runs.scores import Score

    rate = result.events / max(result.seconds, 1e-9)
    console.print(f"{bold(result.name)}: {result.events:,} events [dim]({rate:,.0f}/s)[/]")
    rows = []
    for name, item in result.metrics.items():
        if not item.scalar:
            continue
        score = Score.of_metric(item)
        rows.append((name.replace("_", " "), score.value_text, score.error_text))
    console.print(table(("metric", "value", ""), rows, right=(1,)))
