"""`clew predict`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from clew.cli.options import bold, console, printed_warnings
from clew.cli.runs.follow import counting
from clew.errors import ConfigError
from clew.jobs.rank_info import current_rank as launched


def predict(
    run: Annotated[str, typer.Argument(help="The run's folder, or a file that `clew export` wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write: .h5, .parquet or .root.")],
    events: Annotated[
        list[str] | None, typer.Argument(help="A dataset, or files of raw events, as --data and --input take them.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="A dataset (default: the one it was trained on).")] = None,
    split: Annotated[str | None, typer.Option(help="The split of it (default: test, else val).")] = None,
    input: Annotated[list[str] | None, typer.Option(help="Raw events instead of a dataset. Repeatable.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns of the samples that go along: event,label (default: event if there).")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Add the network's outputs that have one row an event.")] = False,
    weights: Annotated[str, typer.Option(help="Which checkpoint: best or last.")] = "best",
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the events.")] = 1,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Events a batch (default: the run's, at least 256).")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Take the place of an existing file.")] = False,
) -> None:
    """Write what a run's model, or an exported one, says of events: one row an event, in their order.

    \b
    Examples:
      clew predict runs/tracking-001 --output tracks.h5
      clew predict runs/tracking-001 --input real_events.txt --output tracks.root
      clew predict runs/top_tagger-001 --split val --output scores.parquet --columns event,top --workers 4
      mpiexec -n 4 clew predict runs/tracking-001 --output tracks.h5
      clew predict tracking-001.onnx dataset -o tracks.parquet
    """
    from clew.data import writers
    from clew.runs import Run

    writers.find(output)
    opened = run if Path(run).is_file() else Run.open(run)
    if events and (data is not None or input):
        raise ConfigError("events are named once: behind the model, by --data, or by --input")
    if events and len(events) == 1 and (Path(events[0]) / "manifest.json").is_file():
        data = events[0]
    elif events:
        input = events
    from clew.inference.predict import predict as work  # loads torch: a wrong name is told before that

    begun, seen = time.perf_counter(), [0]
    with counting("predict") as show, printed_warnings():

        def shown(done: int, total: int | None) -> None:
            seen[0] = done
            show(done, total)

        work(
            opened,
            output=output,
            data=data,
            split=split,
            input=input or (),
            columns=None if columns is None else [name.strip() for name in columns.split(",") if name.strip()],
            raw=raw,
            weights=weights,
            workers=workers,
            batch_size=batch_size,
            replace=replace,
            progress=shown,
        )
    if not launched().rank:
        rate = seen[0] / max(time.perf_counter() - begun, 1e-9)
        console.print(f"{bold(output)}: {seen[0]:,} events [dim]({rate:,.0f}/s)[/]")
