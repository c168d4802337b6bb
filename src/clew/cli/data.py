"""`clew data`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from clew.cli.options import Settings, What, console, progress

app = typer.Typer(help="Events and datasets: generate.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command()
def generate(
    recipe: What,
    events: Annotated[int, typer.Option(min=1, help="How many.")] = 1000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same events.")] = 0,
    output: Annotated[Path, typer.Option(help="The folder the files go to.")] = Path("events"),
    settings: Settings = None,
) -> None:
    """Make synthetic raw events with a recipe's generator.

    \b
    Example:
      clew data generate tracking --events 10000 --seed 1 --output events
    """
    from clew import spec

    loaded = spec.load(recipe, settings or ())
    begun, done = time.perf_counter(), 0
    with progress() as bar:
        task = bar.add_task("generate", total=events, note="")
        for path, count in loaded.recipe.generate(events, seed, output):
            done += count
            bar.update(task, completed=done, note=path.name)
    rate = done / max(time.perf_counter() - begun, 1e-9)
    console.print(f"[bold]{output}[/]: {done:,} synthetic events [dim]({rate:,.0f}/s)[/]")
