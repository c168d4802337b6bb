"""`clew train`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clew.cli.options import Settings, bold, console, overrides, program, seconds_in
from clew.errors import ConfigError

if TYPE_CHECKING:
    from clew.ledger import Run


def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe's name or file, a YAML with settings, or a run's folder.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="A folder that `clew prepare` made.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that train together.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.")] = None,
    output: Annotated[str | None, typer.Option(help="The run's folder (default: the next under runs/).")] = None,
    settings: Settings = None,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Go on with a run that did not finish.")] = None,
    time_limit: Annotated[str | None, typer.Option(help="Stop, ready to resume, after so long: 90s, 30m, 12h.")] = None,
) -> None:
    """Train a recipe's model on a dataset.

    \b
    Examples:
      clew train tracking --dataset dataset --workers 2
      clew train my.yaml --set train.optimizer.lr=1e-3 --output runs/first
      clew train runs/first --output runs/again
      clew train tracking --time-limit 2h
      clew train --resume runs/tracking-001

    Stopped by a time limit, SIGTERM or SIGUSR1, it writes a checkpoint and ends with exit code 75.
    """
    from clew.cli.follow import following

    minutes = None if time_limit is None else seconds_in(time_limit, "--time-limit") / 60
    if (recipe is None) == (resume is None):
        raise ConfigError("name a recipe to train, or a run to go on with: --resume RUN")
    with following() as begun:
        if resume is not None:
            run = _resume(resume, workers, minutes, begun, others=[dataset, epochs, output, *(settings or ())])
        else:
            from clew import spec
            from clew.train.api import train as work

            options = {"dataset": dataset, "workers": workers, "epochs": epochs, "time_limit_minutes": minutes}
            chosen = overrides(settings, **{f"train__{name}": value for name, value in options.items()})
            loaded = spec.load(str(recipe), chosen)
            run = work(loaded.recipe, None, loaded.train, output=output, begun=begun)
    console.print(f"{bold(run.path)} finished. Next: {program()} evaluate {bold(run.path)}")


def _resume(
    name: str, workers: int | None, minutes: float | None, begun: Callable[[Run], None], others: list[Any]
) -> Run:
    """Only the number of workers and the time limit may differ from what the run began with."""
    if any(other is not None for other in others):
        raise ConfigError("--resume goes on with the run's own settings; only --workers and --time-limit can be given")
    from clew.ledger import Run
    from clew.train.api import resume

    asked: dict[str, Any] = {"workers": workers, "time_limit_minutes": minutes}
    return resume(Run.open(name), begun=begun, **{key: value for key, value in asked.items() if value is not None})
