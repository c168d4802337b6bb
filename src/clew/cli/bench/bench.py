"""`clew bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from clew.cli.bench import workload
from clew.cli.bench.strategies import strategies
from clew.cli.options import Settings, What, bold, console, parse_seconds, progress, table
from clew.cli.text_table import Column, room, write
from clew.errors import ConfigError

if TYPE_CHECKING:
    from clew.bench.scaling.study import ScalingProgress, ScalingResult

app = typer.Typer(help="Measure: scaling, and a node with the particle-flow workload.", no_args_is_help=True)
_SHARES = {"communicate": "talk", "wait": "wait", "io": "I/O", "compute": "compute"}
"""In the order in which a narrow terminal keeps them."""
Json = Annotated[bool, typer.Option("--json", help="For other programs: print the JSON.")]


@app.callback()
def _group() -> None:
    """Measure: scaling, and a node with the particle-flow workload."""


@app.command()
def scale(
    recipe: What,
    workers: Annotated[str, typer.Option(help="Sizes, with commas.")] = "1,2,4",
    strategy: Annotated[str, typer.Option(help="One or several, with commas (see `clew train`).")] = "allreduce",
    weak: Annotated[
        bool, typer.Option("--weak", help="The work grows with the workers; default: they share it.")
    ] = False,
    dataset: Annotated[str | None, typer.Option(help="A folder that `clew prepare` made.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data; the first is left out of speeds.")] = 3,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Of all workers together; with --weak of each (default: the recipe's).")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Of each worker (default: the cores, shared by the largest size).")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Trainings of each size, with other seeds.")] = 1,
    predict: Annotated[str, typer.Option(help="Sizes to predict (default: doubling up to 16 times the largest).")] = "",
    limit: Annotated[str, typer.Option(help="The longest that one training may take: 90s, 10m.")] = "10m",
    on: Annotated[str | None, typer.Option(metavar="SITE", help="Start every size there (`clew site list`).")] = None,
    settings: Settings = None,
    output: Annotated[Path, typer.Option(help="A folder for the runs, scale.json and scale.html.")] = Path("scaling"),
    json: Json = False,
) -> None:
    """How a training scales: speed-up, efficiency, losses, and where the time goes at every size.

    Results are on disk after every size. An interrupted study goes on when called again, also with more sizes. Sizes
    with more ranks than cores (or devices) are marked, and no prediction uses them.

    \b
    Examples:
      clew bench scale tracking --dataset dataset --workers 1,2,4
      clew bench scale tracking --weak --batch-size 32 --repeat 3
      clew bench scale tracking --strategy allreduce,downpour --predict 8,64
      clew bench scale tracking --workers 1,2,4,8,16 --on mycluster --output scaling-mycluster
    """
    from clew.bench.scaling.study import ScaleConfig, measure_scaling
    from clew.core.config import Document, validate

    given = {
        "recipe": recipe,
        "dataset": dataset,
        "workers": whole(workers, "--workers"),
        "strategies": parts(strategy),
        "weak": weak,
        "epochs": epochs,
        "batch_size": batch_size,
        "threads": threads,
        "repeat": repeat,
        "predict": whole(predict, "--predict"),
        "minutes": parse_seconds(limit, "--limit") / 60,
        "on": on,
        "settings": list(settings or ()),
    }
    config = validate(ScaleConfig, Document(given, {}, "clew bench scale"))
    with progress() as bar:
        task = bar.add_task("scale", total=None, note="")

        def told(now: ScalingProgress) -> None:
            note = f"{now.trained.strategy} on {now.trained.workers}: {now.state} {now.spent:.0f} s"
            bar.update(task, completed=now.done, total=now.total, note=note)
            if now.over and not json:
                bar.console.print(f"  {_line(now)}")

        found = measure_scaling(config, output, told)
    if json:
        typer.echo((output / "scale.json").read_text(), nl=False)
        return
    _show(found)
    console.print(f"[dim]page:[/] {bold(output / 'scale.html')}   [dim]figures:[/] {bold(output / 'scale.json')}")


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(metavar="A.json", help="A result of `clew bench`.")],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="Another of the same kind.")],
    json: Json = False,
) -> None:
    """Two results side by side: B against A, with significance where there are repeats.

    Refuses what cannot be compared: other workloads, data, batch sizes or modes.

    \b
    Examples:
      clew bench compare before/scale.json after/scale.json
      clew bench compare node-a/particleflow_summary.json node-b/particleflow_summary.json
    """
    from clew.bench.compare import compare as work

    found = work(first, second)
    if json:
        typer.echo(found.json())
        return
    rows = [(row.name, f"{row.a:,.4g}", f"{row.b:,.4g}", f"{row.ratio:.3f}", row.told) for row in found.rows]
    console.print(table((found.what, "A", "B", "B/A", ""), rows, right=(1, 2, 3)))
    for note in found.notes:
        console.print(f"[yellow]{escape(note)}[/]")


app.command()(strategies)
app.command()(workload.particleflow)
app.command()(workload.node)
app.command()(workload.score)
app.command()(workload.hepix)


def parts(text: str) -> list[str]:
    """Words between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def whole(text: str, option: str) -> list[int]:
    """Numbers between commas.

    Raises:
        ConfigError: one is none.
    """
    try:
        return [int(part) for part in parts(text)]
    except ValueError:
        raise ConfigError(f"{option} {text}: expected whole numbers with commas, as 1,2,4") from None


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _line(now: ScalingProgress) -> str:
    trained = now.trained
    mark = ", oversubscribed" if trained.oversubscribed else ""
    said = f"failed: {trained.message}" if trained.message else f"{trained.events_per_second:,.1f} events/s{mark}"
    return escape(f"[{now.done}/{now.total}] {trained.strategy} on {trained.workers}: {said}")


def _show(found: ScalingResult) -> None:
    from clew.bench.workload.environment import load_warnings

    rows = found.rows()
    cores = "" if found.config["on"] else f"{found.conditions['cores']} cores on "
    where = f"{cores}{found.conditions['where']}"
    console.print(f"\n{'weak' if found.weak else 'strong'} scaling, {where}")
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
    write(columns, width=room())
    for name, each in found.forecasts.items():
        for place, size in enumerate(each.workers):
            if size not in found.sizes(name):
                low, high = each.speedup_low[place], each.speedup_high[place]
                told = f"speed-up {each.speedup[place]:.2f} ({low:.2f} to {high:.2f}, {each.level:.0%} band)"
                console.print(f"[dim]prediction for {name} on {size}: {told}[/]")
        if each.note:
            console.print(f"[dim]{escape(name)}: {escape(each.note)}[/]")
    if not found.config["on"]:
        for note in load_warnings(found.conditions.get("load_before"), found.conditions["cores"]):
            console.print(f"[yellow]{escape(note)}[/]")
    for trained in found.trainings:
        if trained.message:
            console.print(f"[yellow]{trained.strategy} on {trained.workers}:[/] {escape(trained.message)}")
