"""`clew bench particleflow`, `hepix`, `score` and `node`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from clew.cli.options import Settings, bold, console, parse_seconds, table
from clew.errors import ConfigError

if TYPE_CHECKING:
    from clew.bench.workload.node import SettingRun
    from clew.bench.workload.results import WorkloadResult

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Precision = Annotated[str, typer.Option(help="float32, bf16 or fp16.")]
Recipe = Annotated[str, typer.Option(hidden=True, help="Another recipe, for tests.")]


def particleflow(
    output: Annotated[
        Path | None, typer.Option(help="Folder for summary, report and runs (default: the next free one in bench/).")
    ] = None,
    events: Annotated[int, typer.Option(min=1, help="Training events; a tenth more are for validation.")] = 32,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs; the first one does not count for the speed.")] = 2,
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size per device.")] = 4,
    gpus: Annotated[
        int | None, typer.Option(min=0, help="Devices per copy; 0: processors (default: one if there is one).")
    ] = None,
    copies: Annotated[int, typer.Option(min=1, help="Copies at the same time, each on its own cores.")] = 1,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads per copy (default: the cores divided by the copies).")
    ] = None,
    precision: Precision = "float32",
    seed: Annotated[int, typer.Option(help="Seed of events and weights.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings with different seeds, to measure the spread.")] = 1,
    target: Annotated[float | None, typer.Option(help="Accuracy up to which the time is measured.")] = None,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Reproducible algorithms; compares outputs between threads or devices."),
    ] = False,
    inference: Annotated[bool, typer.Option("--inference", help="Measure inference as well.")] = False,
    batch_scan: Annotated[str, typer.Option(help="More batch sizes, separated by commas: 1,2,4,8.")] = "",
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="FILES", help="Files to read events from, instead of synthetic ones. Repeatable."),
    ] = None,
    settings: Settings = None,
    recipe: Recipe = "particleflow",
    json: Json = False,
) -> None:
    """Train the particle-flow network on this node, and write a summary for HEPscore.

    `particleflow_summary.json` has the format of hep-workloads; `report.html` and `report.json` hold more. All are
    written after every epoch. Synthetic events are generated once and cached. Out of memory is a result too.

    \b
    Examples:
      clew bench particleflow
      clew bench particleflow --events 1100 --epochs 5 --batch-size 16 --output published
      clew bench particleflow --copies 4 --threads 8 --precision bf16 --inference
      clew bench particleflow --deterministic --seeds 3 --batch-scan 1,2,4,8
      clew bench particleflow --data 'delphes/*.pkl.bz2' --events 1100 --epochs 5 --batch-size 16
    """
    from clew.bench.workload.config import WorkloadConfig
    from clew.bench.workload.runner import run_workload
    from clew.cli.bench.values import whole_numbers
    from clew.core.config import Document, validate
    from clew.runs.folder import next_run_path

    options: dict[str, Any] = {
        "recipe": recipe,
        "name": Path(recipe).stem,
        "events": events,
        "epochs": epochs,
        "batch_size": batch_size,
        "gpus": gpus,
        "copies": copies,
        "threads": threads,
        "precision": precision,
        "seed": seed,
        "seeds": seeds,
        "target": target,
        "deterministic": deterministic,
        "inference": inference,
        "batch_scan": whole_numbers(batch_scan, "--batch-scan"),
        "data": list(data or ()),
        "settings": list(settings or ()),
    }
    config = validate(WorkloadConfig, Document(options, {}, "clew bench particleflow"))
    output = output or next_run_path(Path("bench"), config.name)
    with _status_line() as note:
        found = run_workload(config, output, note)
    if json:
        typer.echo((output / f"{config.name}_summary.json").read_text(), nl=False)
        return
    _show(found)
    names = (f"{config.name}_summary.json", "report.html")
    console.print(f"[dim]summary:[/] {bold(output / names[0])}   [dim]report:[/] {bold(output / names[1])}")


def hepix(
    working: Annotated[bool, typer.Option("-W", help="Write the results directly into the results folder.")] = False,
    copies: Annotated[int, typer.Option("--copies", "-c", min=1, help="Copies at the same time.")] = 1,
    threads: Annotated[int, typer.Option("--threads", "-t", min=1, help="Threads per copy.")] = 1,
    events: Annotated[int, typer.Option("--events", "-e", min=1, help="Training events per copy.")] = 32,
    extra_args: Annotated[str, typer.Option(help="More options of `clew bench particleflow`.")] = "",
    results: Annotated[Path, typer.Option(help="Folder for results.")] = Path("/results"),
) -> None:
    """Entry point of the container, with the options that hep-score uses.

    Without -W the results go into a subfolder of the results folder.

    \b
    Examples:
      clew bench hepix -W --copies 2 --threads 4 --events 32
      clew bench hepix -W --copies 1 --threads 1 --events 1100 --extra-args '--epochs 5 --batch-size 16 --gpus 1'
    """
    from clew.cli.main import command

    if not results.is_dir():
        raise ConfigError(f"{results}: no such folder; bind one (-B DIR:/results), or choose one with --results")
    output = results if working else results / "particleflow"
    words = ["bench", "particleflow", "--output", str(output), "--copies", str(copies)]
    words += ["--threads", str(threads), "--events", str(events), *shlex.split(extra_args)]
    command()(words, standalone_mode=False)


def score(
    results: Annotated[list[Path], typer.Argument(metavar="RESULTS", help="Summaries, or folders that contain them.")],
    reference: Annotated[
        Path | None,
        typer.Option(help="A summary of the reference machine, or a YAML (default: the published Xeon Gold 6148)."),
    ] = None,
    json: Json = False,
) -> None:
    """Compute one score from several results, as HEPscore does.

    Every score is divided by that of the reference machine; the geometric mean counts for a run, the median of three
    runs for a workload, and the weighted geometric mean of workloads, times a scale, for the node.

    \b
    Examples:
      clew bench score one two three
      clew bench score results --reference reference/particleflow_summary.json
      clew bench score results --reference reference.yaml --json
    """
    import dataclasses
    import json as text

    from clew.bench.workload import hepscore

    paths = [path for given in results for path in _summaries(given)]
    found = hepscore.node_score(paths, hepscore.load_reference(reference))
    if json:
        typer.echo(text.dumps(dataclasses.asdict(found), indent=1))
        return
    rows = [
        (
            name,
            f"{each['median']:.4g}",
            ", ".join(f"{value:.4g}" for value in each["repetitions"]),
            f"{each['weight']:g}",
        )
        for name, each in found.workloads.items()
    ]
    console.print(table(("workload", "median", "repetitions", "weight"), rows, right=(1, 3)))
    console.print(f"score {bold(f'{found.value:.4g}')}   [dim]reference:[/] {escape(found.reference)}")
    for note in found.notes:
        console.print(f"[yellow]{escape(note)}[/]")


def node(
    output: Annotated[Path, typer.Option(help="Folder for node.json and the runs.")] = Path("node"),
    time: Annotated[str, typer.Option(help="Approximate duration of the scan, for example 90s or 2m.")] = "2m",
    price_per_hour: Annotated[
        float | None, typer.Option(min=0.0, help="Price of this node, for the cost of a million events.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="0: processors only.")] = None,
    events: Annotated[int, typer.Option(min=1, help="Synthetic events to train on.")] = 32,
    settings: Settings = None,
    recipe: Recipe = "particleflow",
    json: Json = False,
) -> None:
    """Find the best setting for this node: threads and copies, batch size, precision.

    \b
    Examples:
      clew bench node
      clew bench node --price-per-hour 2.40
      clew bench node --time 5m --gpus 0 --json
    """
    from clew.bench.pages import load_warnings
    from clew.bench.workload.config import WorkloadConfig
    from clew.bench.workload.node import scan_settings
    from clew.core.config import Document, validate

    options = {"recipe": recipe, "events": events, "gpus": gpus, "settings": list(settings or ())}
    config = validate(WorkloadConfig, Document(options, {}, "clew bench node"))
    output.mkdir(parents=True, exist_ok=True)
    with _status_line() as note:

        def notify(text: str, trial: SettingRun | None) -> None:
            if trial is not None and not json:
                result = f"failed: {trial.message}" if trial.message else f"{trial.events_per_second:,.3g} events/s"
                console.print(f"  {trial.setting}: {escape(result)}")
            elif text:
                note(text)

        seconds = parse_seconds(time, "--time")
        found = scan_settings(config, output, seconds=seconds, price_per_hour=price_per_hour, notify=notify)
    if json:
        typer.echo((output / "node.json").read_text(), nl=False)
        return
    best = found.best
    console.print(f"best: {bold(best.setting)}, {best.events_per_second:,.3g} events/s")
    if found.untried:
        console.print(f"[yellow]not measured: {escape('; '.join(found.untried))}; increase --time[/]")
    for note in load_warnings(found.environment.get("load_before"), found.environment.get("cores_allowed")):
        console.print(f"[yellow]{escape(note)}[/]")
    if found.cost is not None:
        console.print(f"a million events cost {bold(f'{found.cost:,.2f}')} at {price_per_hour:g} an hour")
    devices = [] if config.gpus is None else ["--gpus", str(config.gpus)]
    words = [
        "--copies",
        best.copies,
        "--threads",
        best.threads,
        "--batch-size",
        best.batch_size,
        "--precision",
        best.precision,
    ]
    console.print(f"[dim]run it:[/] clew bench particleflow {' '.join(map(str, [*words, *devices]))}")


def _summaries(given: Path) -> list[Path]:
    from clew.bench.workload.hepscore import SUFFIX

    if not given.is_dir():
        return [given]
    found = sorted(given.rglob(f"*{SUFFIX}"))
    if not found:
        raise ConfigError(f"{given}: no *{SUFFIX} in it")
    return found


@contextmanager
def _status_line() -> Iterator[Any]:
    """Yield a function that shows a line of text in a terminal, and nothing elsewhere."""
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as status:
        yield lambda text: status.update(escape(text))


def _show(found: WorkloadResult) -> None:
    from clew.bench.pages import load_warnings
    from clew.bench.workload.config import ACCURACY, PADDED
    from clew.bench.workload.results import fit_message, key_figures

    figures = key_figures(found)
    counted = "first epoch not counted" if figures["first_epoch_left_out"] else "one epoch"
    rows: list[tuple[str, str]] = []
    if figures["events_per_second"] is not None:
        rows.append(("events/s", f"{figures['events_per_second']:,.4g} ({counted})"))
    for name, title in ((ACCURACY, "accuracy"), (PADDED, "accuracy, padding counted")):
        if figures["accuracy"][name] is not None:
            rows.append((title, f"{figures['accuracy'][name]['mean']:.4f}"))
    if figures["band"] is not None:
        band = figures["band"]
        verdict = {True: "passed", False: "NOT passed", None: "not known"}[figures["passed"]]
        rows.append(("pass band", f"{band['metric']} {band['low']:.4f} to {band['high']:.4f}: {verdict}"))
    if figures["target"] is not None:
        took = figures["seconds_to_target"]
        rows.append((f"time to {figures['target']:.4f}", "not reached" if took is None else f"{took:,.1f} s"))
    rows.append(
        ("J/event", found.power if figures["joules_per_event"] is None else f"{figures['joules_per_event']:.4g}")
    )
    if figures["peak_memory_bytes"]:
        rows.append(("peak memory of a copy", f"{figures['peak_memory_bytes'] / 2**30:.2f} GiB"))
    if figures["peak_device_tensors_bytes"]:
        rows.append(("peak memory of tensors", f"{figures['peak_device_tensors_bytes'] / 2**30:.2f} GiB on a device"))
    if figures["data_wait_share"] is not None:
        rows.append(("waiting for data", f"{figures['data_wait_share']:.1%}"))
    if found.inference:
        rows.append(("inference, events/s", f"{found.inference['events_per_second']:,.4g}"))
    if found.agreement:
        from clew.bench.workload.page import agreement_rows

        rows += agreement_rows(found.agreement)
    if found.fits:
        rows.append(("out of memory", f"at batch {found.fits['requested']}; {fit_message(found.fits)}"))
    for row in found.scan:
        where = f" on {row['devices']} devices" if row["devices"] > 1 else ""
        rows.append((f"batch {row['batch_size_per_device']}{where}", _scanned(row)))
    console.print(table(("", ""), rows))
    for note in load_warnings(found.environment.get("load_before"), found.environment.get("cores_allowed")):
        console.print(f"[yellow]{escape(note)}[/]")
    console.print(f"[dim]{escape(figures['comparable'])}[/]")


def _scanned(row: dict[str, Any]) -> str:
    if not row["fits"]:
        return "out of memory"
    if row["message"]:
        return f"failed: {row['message']}"
    accuracy = "" if row["accuracy"] is None else f", accuracy {row['accuracy']:.4f}"
    return f"{row['events_per_second'] or 0:,.4g} events/s{accuracy}"
