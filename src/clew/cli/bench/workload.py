"""`clew bench particleflow`, `hepix`, `score` and `node`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from clew.cli.bench.sending import send_result
from clew.cli.bench.values import Json
from clew.cli.bench.workload_options import NodeOptions, ParticleFlowOptions, Recipe
from clew.cli.options import bold, console, parse_seconds, table, takes_options
from clew.errors import ConfigError

if TYPE_CHECKING:
    from clew.bench.workload.node import NodeScan, SettingRun
    from clew.bench.workload.results import WorkloadResult


@takes_options(ParticleFlowOptions)
def particleflow(options: ParticleFlowOptions) -> None:
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
    from clew.bench.workload.runner import run_workload
    from clew.runs.folder import next_run_path

    config = options.config()
    output = options.output or next_run_path(Path("bench"), config.name)
    with _status_line() as note:
        result = run_workload(config, output, note)
    send_result(config.name, output / f"{config.name}_summary.json", quiet=options.json)
    if options.json:
        typer.echo((output / f"{config.name}_summary.json").read_text(), nl=False)
        return
    _show(result)
    names = (f"{config.name}_summary.json", "report.html")
    console.print(f"[dim]summary:[/] {bold(output / names[0])}   [dim]report:[/] {bold(output / names[1])}")


def hepix(
    working: Annotated[bool, typer.Option("-W", help="Write the results directly into the results folder.")] = False,
    copies: Annotated[int, typer.Option("--copies", "-c", min=1, help="Copies at the same time.")] = 1,
    threads: Annotated[int, typer.Option("--threads", "-t", min=1, help="Threads per copy.")] = 1,
    events: Annotated[int, typer.Option("--events", "-e", min=1, help="Training events per copy.")] = 32,
    extra_args: Annotated[str, typer.Option(help="More options of `clew bench particleflow`.")] = "",
    results: Annotated[Path, typer.Option(help="Folder for results.")] = Path("/results"),
    fixed_events: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The image's own events (default: generate them).")
    ] = None,
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
    words += ["--threads", str(threads), "--events", str(events)]
    words += [] if fixed_events is None else ["--fixed-events", str(fixed_events)]
    words += shlex.split(extra_args)
    command()(words, standalone_mode=False)


def events(
    output: Annotated[Path, typer.Option(help="A new folder for the events and their checksums.")],
    events: Annotated[int, typer.Option(min=1, help="Number of events.")] = 1210,
    seed: Annotated[int, typer.Option(help="Seed of the events.")] = 0,
    recipe: Recipe = "particleflow",
) -> None:
    """Write the fixed events of the particle-flow workload with their checksums, for an image.

    The default has enough for the published 1100 training events. `SHA256SUMS` can be checked with `sha256sum -c`.

    \b
    Example:
      clew bench events --events 1210 --output events
    """
    from clew import settings
    from clew.bench.workload.config import WorkloadConfig
    from clew.bench.workload.fixed_events import events_checksum, write_fixed_events

    config = WorkloadConfig(recipe=recipe)
    loaded = settings.load_settings(config.recipe, config.recipe_settings).recipe
    with _status_line() as note:
        size = write_fixed_events(loaded, events, seed, output, note)
    console.print(f"{output}: {events:,} events, {size / 1e6:,.1f} MB, checksum {events_checksum(output)}")


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

    paths = [summary for path in results for summary in _summaries(path)]
    result = hepscore.node_score(paths, hepscore.load_reference(reference))
    if json:
        typer.echo(text.dumps(dataclasses.asdict(result), indent=1))
        return
    rows = [
        (
            name,
            f"{each['median']:.4g}",
            ", ".join(f"{value:.4g}" for value in each["repetitions"]),
            f"{each['weight']:g}",
        )
        for name, each in result.workloads.items()
    ]
    console.print(table(("workload", "median", "repetitions", "weight"), rows, right=(1, 3)))
    console.print(f"score {bold(f'{result.value:.4g}')}   [dim]reference:[/] {escape(result.reference)}")
    for note in result.notes:
        console.print(f"[yellow]{escape(note)}[/]")


@takes_options(NodeOptions)
def node(options: NodeOptions) -> None:
    """Find the best setting for this node: threads and copies, batch size, precision.

    \b
    Examples:
      clew bench node
      clew bench node --price-per-hour 2.40
      clew bench node --time 5m --gpus 0 --json
    """
    from clew.bench.workload.node import scan_settings

    config, output = options.config(), options.output
    output.mkdir(parents=True, exist_ok=True)
    with _status_line() as note:

        def notify(text: str, trial: SettingRun | None) -> None:
            if trial is not None and not options.json:
                result = f"failed: {trial.message}" if trial.message else f"{trial.events_per_second:,.3g} events/s"
                console.print(f"  {trial.setting}: {escape(result)}")
            elif text:
                note(text)

        seconds, price = parse_seconds(options.time, "--time"), options.price_per_hour
        scan = scan_settings(config, output, seconds=seconds, price_per_hour=price, notify=notify)
    send_result("node", output / "node.json", quiet=options.json)
    if options.json:
        typer.echo((output / "node.json").read_text(), nl=False)
    else:
        _show_scan(scan, config.gpus, price)


def _show_scan(scan: NodeScan, gpus: int | None, price_per_hour: float | None) -> None:
    from clew.bench.pages import load_warnings

    best = scan.best
    console.print(f"best: {bold(best.setting)}, {best.events_per_second:,.3g} events/s")
    if scan.untried:
        console.print(f"[yellow]not measured: {escape('; '.join(scan.untried))}; increase --time[/]")
    for note in load_warnings(scan.environment.get("load_before"), scan.environment.get("cores_allowed")):
        console.print(f"[yellow]{escape(note)}[/]")
    if scan.cost is not None:
        console.print(f"a million events cost {bold(f'{scan.cost:,.2f}')} at {price_per_hour:g} per hour")
    values = {name: getattr(best, name) for name in ("copies", "threads", "batch_size", "precision")}
    if gpus is not None:
        values["gpus"] = gpus
    words = (f"--{name.replace('_', '-')} {value}" for name, value in values.items())
    console.print(f"[dim]run it:[/] clew bench particleflow {' '.join(words)}")


def _summaries(path: Path) -> list[Path]:
    from clew.bench.workload.hepscore import SUFFIX

    if not path.is_dir():
        return [path]
    summaries = sorted(path.rglob(f"*{SUFFIX}"))
    if not summaries:
        raise ConfigError(f"{path}: no *{SUFFIX} in it")
    return summaries


@contextmanager
def _status_line() -> Iterator[Any]:
    """Yield a function that shows a line of text in a terminal, and nothing elsewhere."""
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as status:
        yield lambda text: status.update(escape(text))


def _show(result: WorkloadResult) -> None:
    from clew.bench.pages import load_warnings
    from clew.bench.workload.config import ACCURACY, PADDED
    from clew.bench.workload.results import fit_message, key_figures

    figures = key_figures(result)
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
        ("J/event", result.power if figures["joules_per_event"] is None else f"{figures['joules_per_event']:.4g}")
    )
    if figures["peak_memory_bytes"]:
        rows.append(("peak memory of a copy", f"{figures['peak_memory_bytes'] / 2**30:.2f} GiB"))
    if figures["peak_device_tensors_bytes"]:
        rows.append(("peak memory of tensors", f"{figures['peak_device_tensors_bytes'] / 2**30:.2f} GiB on a device"))
    if figures["data_wait_share"] is not None:
        rows.append(("waiting for data", f"{figures['data_wait_share']:.1%}"))
    if result.inference:
        rows.append(("inference, events/s", f"{result.inference['events_per_second']:,.4g}"))
    if result.agreement:
        from clew.bench.workload.page import agreement_rows

        rows += agreement_rows(result.agreement)
    if result.fits:
        rows.append(("out of memory", f"at batch {result.fits['requested']}; {fit_message(result.fits)}"))
    for row in result.scan:
        where = f" on {row['devices']} devices" if row["devices"] > 1 else ""
        rows.append((f"batch {row['batch_size_per_device']}{where}", _scanned(row)))
    console.print(table(("", ""), rows))
    for note in load_warnings(result.environment.get("load_before"), result.environment.get("cores_allowed")):
        console.print(f"[yellow]{escape(note)}[/]")
    console.print(f"[dim]{escape(figures['comparable'])}[/]")


def _scanned(row: dict[str, Any]) -> str:
    if not row["fits"]:
        return "out of memory"
    if row["message"]:
        return f"failed: {row['message']}"
    accuracy = "" if row["accuracy"] is None else f", accuracy {row['accuracy']:.4f}"
    return f"{row['events_per_second'] or 0:,.4g} events/s{accuracy}"
