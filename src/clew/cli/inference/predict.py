"""`clew predict`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from clew.cli.options import bold, console, printed_warnings, takes_options
from clew.cli.runs.follow import counting
from clew.errors import ConfigError
from clew.jobs.rank_info import current_rank


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """All options of `clew predict`."""

    run: Annotated[
        str,
        typer.Argument(help="Folder of the run, a model of `clew model list`, or a file that `clew export` wrote."),
    ]
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The file to write: .h5, .parquet or .root (default: MODEL-predictions.h5)."
        ),
    ] = None
    events: Annotated[
        list[str] | None, typer.Argument(help="A dataset, or files of raw events; as --dataset and --input.")
    ] = None
    data: Annotated[str | None, typer.Option("--dataset", help="A dataset (default: the one it was trained on).")] = (
        None
    )
    split: Annotated[str | None, typer.Option(help="Split of the dataset (default: test, else val).")] = None
    input: Annotated[list[str] | None, typer.Option(help="Raw events instead of a dataset. Repeatable.")] = None
    columns: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="COLUMNS",
            help="Columns of the samples to copy: label,event (default: run, event, ..., if they exist).",
        ),
    ] = None
    raw: Annotated[bool, typer.Option("--raw", help="Add the outputs of the network that have one row per event.")] = (
        False
    )
    weights: Annotated[str, typer.Option(help="Which checkpoint: best or last.")] = "best"
    workers: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Events per batch (default: that of the run, at least 256).")
    ] = None
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing file.")] = False
    current_code: Annotated[
        bool, typer.Option("--current-code", help="Use today's code of the recipe, not the code that the run saved.")
    ] = False
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the code of a model that came from elsewhere, now and later.")
    ] = False

    def source(self) -> dict[str, Any]:
        """The events, as the arguments `data` and `input` of `clew.predict`.

        Raises:
            ConfigError: Events are named more than once.
        """
        if not self.events:
            return {"data": self.data, "input": self.input or ()}
        if self.data is not None or self.input:
            raise ConfigError("events are named more than once: after the model, by --dataset, or by --input")
        if len(self.events) == 1 and (Path(self.events[0]) / "manifest.json").is_file():
            return {"data": self.events[0]}
        return {"input": self.events}

    def column_names(self) -> list[str] | None:
        """The names in `--with`."""
        if self.columns is None:
            return None
        return [name.strip() for name in self.columns.split(",") if name.strip()]


@takes_options(PredictOptions)
def predict(options: PredictOptions) -> None:
    """Write the predictions of a run's model, or of an exported model: one row per event, in their order.

    \b
    Examples:
      clew predict runs/tracking-001 --output tracks.h5
      clew predict runs/tracking-001 --input real_events.txt --output tracks.root
      clew predict runs/top_tagger-001 --split val --output scores.parquet --with label,event --workers 4
      mpiexec -n 4 clew predict runs/tracking-001 --output tracks.h5
      clew predict tracking-001.onnx dataset -o tracks.parquet
      clew predict tracking-bes3 --input events.txt
    """
    from clew.data import writers
    from clew.storage import models

    output = options.output or Path(f"{Path(options.run).stem}-predictions.h5")
    writers.find(output)
    model = options.run if Path(options.run).is_file() else models.open_run(options.run)
    source = options.source()
    from clew.inference.predict import predict as predict_events  # loads torch, so a wrong name is reported first

    started, events = time.perf_counter(), 0
    with counting("predict") as show, printed_warnings():

        def on_progress(done: int, total: int | None) -> None:
            nonlocal events
            events = done
            show(done, total)

        predict_events(
            model,
            output=output,
            **source,
            split=options.split,
            columns=options.column_names(),
            raw=options.raw,
            weights=options.weights,
            workers=options.workers,
            batch_size=options.batch_size,
            replace=options.replace,
            current_code=options.current_code,
            trust=options.trust,
            progress=on_progress,
        )
    if not current_rank().rank:
        rate = events / max(time.perf_counter() - started, 1e-9)
        console.print(f"{bold(output)}: {events:,} events [dim]({rate:,.0f}/s)[/]")
