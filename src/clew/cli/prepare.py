"""`clew prepare`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from clew.cli.options import Settings, What, console, overrides, progress


def prepare(
    recipe: What,
    input: Annotated[list[str] | None, typer.Option(help="Files, a folder or a glob. Repeatable.")] = None,
    output: Annotated[str | None, typer.Option(help="The dataset's folder.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes (default: one a core).")] = None,
    settings: Settings = None,
    replace: Annotated[bool, typer.Option("--replace", help="Take the place of another dataset.")] = False,
) -> None:
    """Turn raw events into a dataset of HDF5 shards.

    Nothing is done where the dataset is there and neither inputs, settings nor code have changed.

    \b
    Examples:
      clew prepare tracking --input 'events/*.txt' --output dataset --workers 8
      clew prepare my_recipe.py --input events --set prepare.split='{train: 0.9, val: 0.1}'
    """
    from clew import spec
    from clew.prepare.api import prepare as work

    chosen = overrides(settings, prepare__input=input, prepare__output=output, prepare__workers=workers)
    loaded = spec.load(recipe, chosen)
    begun = time.perf_counter()
    with progress() as bar:
        task = bar.add_task("prepare", total=None, note="")

        def show(done: int, total: int, events: int) -> None:
            rate = events / max(time.perf_counter() - begun, 1e-9)
            bar.update(task, completed=done, total=total, note=f"{events:,} events, {rate:,.0f}/s")

        dataset = work(loaded.recipe, loaded.prepare, replace=replace, progress=show)
    seconds = time.perf_counter() - begun
    told = ", ".join(f"{name} {count:,}" for name, count in dataset.splits.items())
    console.print(f"[bold]{dataset.path}[/]: {told} events [dim]({seconds:.1f} s)[/]")
