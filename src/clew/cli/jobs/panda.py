"""`--on SITE` for PanDA: a training, a study or a script as one task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clew.cli.jobs.on_site import SiteOptions, SiteWork
from clew.errors import ConfigError
from clew.jobs.task import TrainTask

_UNSUPPORTED_OPTIONS = {
    "dataset": "the job prepares the files that prepare.input names (rucio:SCOPE:NAME)",
    "start_from": "runs of this machine do not travel, set train.start_from to a URL",
    "listen": "workers cannot reach a job of the grid",
    "time_limit": "use --wall-time",
}
"""Options of `clew train`, and what to do instead."""


def training_work(task: TrainTask) -> SiteWork:
    """A task of prun: one job prepares the files of a dataset and trains on them.

    Raises:
        ConfigError: An option of the training cannot be honoured there.
    """
    from clew.cli.training.train_task import all_settings
    from clew.client.grid_tasks import training_task
    from clew.settings import load_settings

    recipe = task.recipe
    if recipe is None:
        raise ConfigError("PanDA trains a recipe or a YAML, by name or file; not --resume or --model")
    for name, remedy in _UNSUPPORTED_OPTIONS.items():
        if getattr(task, name) is not None:
            option = "--from" if name == "start_from" else f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option}: a training on PanDA cannot honour it; {remedy}")
    settings = all_settings(task)
    output = Path(task.output or Path(recipe).stem)
    workers = load_settings(recipe, settings).train.processes
    return SiteWork("train", output, training_task(recipe, settings), workers=workers)


def study_work(source: str, settings: Sequence[str]) -> SiteWork:
    """A task of phpo: iDDS calls clew to propose points, and jobs evaluate them."""
    from clew.client.grid_tasks import study_task

    return SiteWork("tune", Path(Path(source).stem), study_task(source, settings))


def submit_script(site: SiteOptions, script: str, arguments: Sequence[str], *, workers: int, name: str | None) -> None:
    """Submit a script as a task of prun."""
    from clew.cli.jobs.submitted import submit_work
    from clew.client.grid_tasks import script_task

    task = script_task(script, arguments, workers=workers)
    submit_work(site, SiteWork("script", Path(name or Path(script).stem), task, workers=workers))
