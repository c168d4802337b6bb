"""`clew bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from clew.cli.bench import workload
from clew.cli.bench.scale_options import ScaleOptions
from clew.cli.bench.sending import send_result
from clew.cli.bench.strategies import strategies
from clew.cli.bench.values import Json
from clew.cli.options import bold, console, progress, table, takes_options
from clew.cli.text_table import Column, line_width, write

if TYPE_CHECKING:
    from clew.bench.scaling.results import ScalingResult
    from clew.bench.scaling.study import ScalingProgress

app = typer.Typer(help="Measure scaling, strategies, and a node with the particle-flow workload.", no_args_is_help=True)
_SHARES = {"communicate": "communication", "wait": "wait", "io": "I/O", "compute": "compute"}
"""Titles of columns; a narrow terminal drops the last ones first."""


@app.callback()
def _group() -> None:
    """Measure scaling, strategies, and a node with the particle-flow workload."""


@app.command()
@takes_options(ScaleOptions)
def scale(options: ScaleOptions) -> None:
    """Measure how training scales: speed-up, efficiency, losses, and where the time goes at every size.

    Results are written after every size. The same command resumes an interrupted study, also with more sizes. Sizes
    with more ranks than cores (or devices) are marked, and no prediction uses them.

    \b
    Examples:
      clew bench scale tracking --dataset dataset --workers 1,2,4
      clew bench scale tracking --weak --batch-size 32 --repeat 3
      clew bench scale tracking --strategy allreduce,downpour --predict 8,64
      clew bench scale tracking --workers 1,2,4,8,16 --on mycluster --output scaling-mycluster
    """
    from clew.bench.scaling.study import measure_scaling

    config, output = options.config(), options.output
    with progress() as bar:
        task = bar.add_task("scale", total=None, note="")

        def on_progress(now: ScalingProgress) -> None:
            note = f"{now.run.strategy} on {now.run.workers}: {now.state} {now.seconds:.0f} s"
            bar.update(task, completed=now.done, total=now.total, note=note)
            if now.ended and not options.json:
                bar.console.print(f"  {_line(now)}")

        result = measure_scaling(config, output, on_progress)
    send_result(f"scale {config.recipe}", output / "scale.json", quiet=options.json)
    if options.json:
        typer.echo((output / "scale.json").read_text(), nl=False)
        return
    _show(result)
    console.print(f"[dim]page:[/] {bold(output / 'scale.html')}   [dim]figures:[/] {bold(output / 'scale.json')}")


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(metavar="A.json", help="A result of `clew bench`.")],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="Another result of the same kind.")],
    json: Json = False,
) -> None:
    """Compare two results: B against A, with significance if there are repeats.

    Results with different workloads, data, batch sizes or modes are refused.

    \b
    Examples:
      clew bench compare before/scale.json after/scale.json
      clew bench compare node-a/particleflow_summary.json node-b/particleflow_summary.json
    """
    from clew.bench.compare import compare as compare_results

    result = compare_results(first, second)
    if json:
        typer.echo(result.json())
        return
    rows = [(row.name, f"{row.a:,.4g}", f"{row.b:,.4g}", f"{row.ratio:.3f}", row.significance) for row in result.rows]
    console.print(table((result.what, "A", "B", "B/A", ""), rows, right=(1, 2, 3)))
    for note in result.notes:
        console.print(f"[yellow]{escape(note)}[/]")


app.command()(strategies)
app.command()(workload.particleflow)
app.command()(workload.node)
app.command()(workload.score)
app.command()(workload.hepix)
app.command()(workload.events)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _line(now: ScalingProgress) -> str:
    run = now.run
    mark = ", oversubscribed" if run.oversubscribed else ""
    text = f"failed: {run.message}" if run.message else f"{run.events_per_second:,.1f} events/s{mark}"
    return escape(f"[{now.done}/{now.total}] {run.strategy} on {run.workers}: {text}")


def _show(result: ScalingResult) -> None:
    from clew.bench.pages import load_warnings

    rows = result.rows()
    cores = "" if result.config["on"] else f"{result.conditions['cores']} cores on "
    where = f"{cores}{result.conditions['where']}"
    console.print(f"\n{'weak' if result.weak else 'strong'} scaling, {where}")
    columns = [
        Column("strategy", [row["strategy"] for row in rows]),
        Column("workers", [str(row["workers"]) for row in rows], right=True),
        Column("events/s", [f"{row['events_per_second']:,.1f}" for row in rows], right=True),
        Column("speed-up", [f"{row['speedup']:.2f}" for row in rows], right=True),
        Column("efficiency", [f"{row['efficiency']:.0%}" for row in rows], right=True),
    ]
    for rank, (part, title) in enumerate(_SHARES.items(), start=1):
        columns.append(Column(title, [_share(row["shares"][part]) for row in rows], rank, right=True))
    columns.append(Column("", ["oversubscribed" if row["oversubscribed"] else "" for row in rows]))
    write(columns, width=line_width())
    for name, each in result.forecasts.items():
        for place, size in enumerate(each.workers):
            if size not in result.sizes(name):
                low, high = each.speedup_low[place], each.speedup_high[place]
                text = f"speed-up {each.speedup[place]:.2f} ({low:.2f} to {high:.2f}, {each.level:.0%} band)"
                console.print(f"[dim]prediction for {name} on {size}: {text}[/]")
        if each.note:
            console.print(f"[dim]{escape(name)}: {escape(each.note)}[/]")
    if not result.config["on"]:
        for note in load_warnings(result.conditions.get("load_before"), result.conditions["cores"]):
            console.print(f"[yellow]{escape(note)}[/]")
    for run in result.trainings:
        if run.message:
            console.print(f"[yellow]{run.strategy} on {run.workers}:[/] {escape(run.message)}")
