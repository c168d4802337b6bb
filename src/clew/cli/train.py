"""`clew train`."""

from __future__ import annotations

from typing import Annotated

import typer

from clew.cli.options import Settings, What, bold, console, overrides


def train(
    recipe: What,
    dataset: Annotated[str | None, typer.Option(help="A folder that `clew prepare` made.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that train together.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.")] = None,
    output: Annotated[str | None, typer.Option(help="The run's folder (default: the next under runs/).")] = None,
    settings: Settings = None,
) -> None:
    """Train a recipe's model on a dataset.

    \b
    Examples:
      clew train tracking --dataset dataset --workers 2
      clew train my.yaml --set train.optimizer.lr=1e-3 --output runs/first
      clew train runs/first --output runs/again
    """
    from clew import spec
    from clew.cli.follow import following
    from clew.train.api import train as work

    chosen = overrides(settings, train__dataset=dataset, train__workers=workers, train__epochs=epochs)
    loaded = spec.load(recipe, chosen)
    with following() as begun:
        run = work(loaded.recipe, None, loaded.train, output=output, begun=begun)
    console.print(f"{bold(run.path)} finished. Next: clew evaluate {bold(run.path)}")
