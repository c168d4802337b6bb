"""What `clew train` does: one training, from a recipe, from a model, or continued from a checkpoint.

The command line and the jobs of launchers both run a `TrainTask` through `run`.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.cli.options import bold, console, overrides, parse_seconds, printed_warnings, program
from clew.cli.transfer_progress import show_fetches
from clew.core.config import to_data
from clew.errors import ConfigError
from clew.jobs.lease import Lease
from clew.jobs.rank_info import current_rank
from clew.jobs.task import TrainTask
from clew.runs.console_log import captured_console
from clew.runs.live_view import RunView

if TYPE_CHECKING:
    from clew.runs import Run

_COLUMN_OPTIONS = ("features", "labels", "loss", "weight", "select", "scale")
_ONE_OF = "name a recipe to train, a run to continue (--resume RUN), a model (--model), or an estimator (--estimator)"


def check_source(task: TrainTask) -> None:
    """Check that a task names what it trains.

    Raises:
        ConfigError: it names nothing, or more than one thing.
    """
    if sum(value is not None for value in (task.recipe, task.resume, task.model, task.estimator)) != 1:
        raise ConfigError(_ONE_OF)


def run(task: TrainTask, index: int | None = None) -> None:
    """Train, and print what comes next."""
    from clew.cli.runs.follow import preparing

    minutes = None if task.time_limit is None else parse_seconds(task.time_limit, "--time-limit") / 60
    check_source(task)
    files = {"train": task.train_files, "val": task.val_files, **_columns(task)}
    model_options = [f"--{name}" for name, value in files.items() if value is not None]
    if task.model is None and task.estimator is None and model_options:
        names = ", ".join(model_options)
        raise ConfigError(f"{names}: only together with --model or --estimator; a recipe has its own columns")
    if task.continues and task.resume is None and task.output is not None and _has_checkpoint(Path(task.output)):
        task = TrainTask(resume=task.output, time_limit=task.time_limit, lease=task.lease, continues=True)
    if console.is_terminal and current_rank().rank == 0:
        console.print("loading PyTorch and the recipe ...", style="dim")  # this takes seconds
    # a study that assigned a lease watches the records itself
    shown = preparing() if task.lease is None else contextlib.nullcontext(_PathView())
    with captured_console(), shown as view, printed_warnings(), show_fetches():
        trained = _resume(task, minutes, view) if task.resume is not None else _train(task, minutes, view)
    if current_rank().rank == 0 and trained.replicas():
        _print_ensemble(trained)
    elif current_rank().rank == 0:
        from clew.runs.advice import communication_advice
        from clew.runs.summary import summarize

        console.print(f"{bold(trained.path)} finished. Next: {program()} evaluate {bold(trained.path)}")
        if advice := communication_advice(summarize(trained)):
            console.print(advice, style="yellow", markup=False)


def preload() -> None:
    """Import what trainings need."""
    import clew.cli.runs.follow
    import clew.settings
    import clew.training.api
    import clew.training.loop  # noqa: F401


def _columns(task: TrainTask) -> dict[str, str | None]:
    return {name: getattr(task, name) for name in _COLUMN_OPTIONS}


def all_settings(task: TrainTask, minutes: float | None = None) -> list[str]:
    """Return the settings of a training: those of `--set`, and the options that are settings too.

    Args:
        task: The training.
        minutes: Its time limit.
    """
    options: dict[str, Any] = {
        "dataset": task.dataset,
        "workers": task.workers,
        "epochs": task.epochs,
        "optimizer__lr": task.lr,
        "device": task.device,
        "start_from": task.start_from,
        "replicas": task.replicas,
        "time_limit_minutes": minutes,
        "strategy": task.strategy,
        "asynchronous__listen": task.listen,
    }
    if task.batch_size is not None:
        options["batch_size"] = int(task.batch_size) if task.batch_size.isdecimal() else task.batch_size
    return overrides(task.settings, **{f"train__{name}": value for name, value in options.items()})


def _train(task: TrainTask, minutes: float | None, view: RunView) -> Run:
    from clew.settings import load_settings
    from clew.training.api import TrainingRequest
    from clew.training.run_recipe import warn_if_code_changed

    settings = all_settings(task, minutes)
    if task.model is not None or task.estimator is not None:
        return _train_model(task, settings, view)
    warn_if_code_changed(str(task.recipe))
    loaded = load_settings(str(task.recipe), settings)
    lease = None if task.lease is None else Lease(Path(task.lease))
    request = TrainingRequest(loaded.recipe, config=loaded.train, output=task.output)
    return request.run(progress=view, lease=lease)


def _train_model(task: TrainTask, settings: list[str], view: RunView) -> Run:
    """Training without a recipe."""
    from clew.settings import load_settings
    from clew.training.api import train

    loaded = load_settings("columns", settings)
    model, columns = loaded.recipe.config.model, loaded.recipe.config.columns
    options: dict[str, Any] = {**to_data(loaded.train), "arguments": model.arguments}
    options |= {"outputs": model.outputs, "penalties": model.penalties, "estimator": task.estimator}
    options |= {"negative_weights": model.negative_weights, "batch": model.batch}
    if loaded.train.batch_size == loaded.recipe.defaults["train"]["batch_size"]:
        del options["batch_size"]  # a data module may have its own
    options |= {**to_data(columns), "loss": loaded.recipe.config.loss}
    options |= {name: value for name, value in _columns(task).items() if value is not None}
    del options["dataset"]
    train_files, val_files = (None if files is None else list(files) for files in (task.train_files, task.val_files))
    return train(task.model, train_files, val_files, output=task.output, progress=view, **options)


def _resume(task: TrainTask, minutes: float | None, view: RunView) -> Run:
    """Continue a run. Workers, device and time limit may differ from its own settings, and there may be more epochs."""
    names = ("lr", "batch_size", "start_from", "replicas", "output", "strategy", "listen")
    spelled = {"start_from": "from", "batch_size": "batch-size"}
    refused = [f"--{spelled.get(name, name)}" for name in names if getattr(task, name) is not None]
    refused += [f"--set {setting}" for setting in task.settings]
    if refused:
        allowed = "only --dataset, --epochs, --workers, --device and --time-limit can be added"
        raise ConfigError(f"{', '.join(refused)}: --resume uses the run's own settings; {allowed}")
    from clew.storage import models
    from clew.training.api import resume

    options: dict[str, Any] = {"workers": task.workers, "time_limit_minutes": minutes}
    options |= {"epochs": task.epochs, "device": task.device, "dataset": task.dataset}
    settings = {name: value for name, value in options.items() if value is not None}
    lease = None if task.lease is None else Lease(Path(task.lease))
    name = str(task.resume)
    run, code = models.open_run(name), task.current_code
    return resume(run, progress=view, lease=lease, again=task.continues, current_code=code, **settings)


def _has_checkpoint(path: Path) -> bool:
    """Whether a job that is started again can continue; a run without a checkpoint is removed."""
    from clew.runs import Run

    run = Run(path)
    if run.states():
        return True
    if current_rank().rank == 0 and run.path.exists():
        shutil.rmtree(run.path)
    return False


class _PathView(RunView):
    """Prints the path of the run only."""

    def started(self, run: Run) -> None:
        console.print(f"run {bold(run.path)}")


def _print_ensemble(run: Run) -> None:
    """Print mean and spread of every metric."""
    from clew.cli.options import table
    from clew.training.packs.replicas import metric_spread

    spreads = metric_spread(run)
    rows = [(name, f"{mean:.5g}", f"{width:.2g}") for name, (mean, width, _) in spreads.items()]
    console.print(table(("metric", "mean", "spread"), rows, right=(1, 2)))
    members = max(count for _, _, count in spreads.values())
    end = (run.end() or {}).get("message")
    console.print(f"{bold(run.path)} finished: {members} models{f'; {end}' if end else ''}")
    console.print(f"Next: {program()} predict {bold(run.path)} --output FILE.h5   (mean and spread of every event)")
