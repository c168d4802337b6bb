"""`--on SITE` for PanDA: a training or a study as one task."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clew.cli.jobs.on_site import SiteOptions, SiteWork
from clew.cli.options import console
from clew.errors import ConfigError
from clew.jobs.task import TrainTask, command_task

if TYPE_CHECKING:
    from clew.data.prepare.config import PrepareConfig
    from clew.tuning.space import Template


_UNSUPPORTED_OPTIONS = {
    "dataset": "the job prepares the files that prepare.input names (rucio:SCOPE:NAME)",
    "start_from": "runs of this machine do not travel, set train.start_from to a URL",
    "listen": "workers cannot reach a job of the grid",
    "time_limit": "use --wall-time",
}
"""Options of `clew train`, and what to do instead."""


def submit_training(site: SiteOptions, task: TrainTask) -> None:
    """Submit a task of prun: one job prepares the files of a dataset and trains on them.

    Raises:
        ConfigError: An option of the training cannot be honoured there.
    """
    from clew.cli.training.train_task import all_settings
    from clew.jobs.launchers import panda
    from clew.settings import load_settings

    recipe = task.recipe
    if recipe is None:
        raise ConfigError("PanDA trains a recipe or a YAML, by name or file; not --resume or --model")
    for name, remedy in _UNSUPPORTED_OPTIONS.items():
        if getattr(task, name) is not None:
            option = "--from" if name == "start_from" else f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option}: a training on PanDA cannot honour it; {remedy}")
    settings = all_settings(task)
    loaded = load_settings(recipe, settings)
    output = Path(task.output or Path(recipe).stem)
    request = site.request(SiteWork("train", output, task, workers=loaded.train.processes))
    inputs = _datasets(loaded.prepare)
    _submit(site, "prun", panda.training_arguments(site.profile, request, recipe, settings, inputs))


def submit_study(site: SiteOptions, template: Template, source: str, settings: Sequence[str]) -> None:
    """Submit a task of phpo: iDDS calls clew to propose points, and jobs evaluate them."""
    from clew.core.files import write_text
    from clew.jobs.launchers import panda
    from clew.tuning.panda import to_panda

    config = template.tune
    if config is None or not config.space:
        raise ConfigError(f"{source}: no section `tune` with a space to search")
    space = Path(f"{Path(source).stem}.space.json")
    write_text(space, json.dumps({key: to_panda(each) for key, each in config.space.items()}, indent=1))
    request = site.request(SiteWork("tune", Path(Path(source).stem), command_task(["tune", "run", source])))
    inputs, size = _datasets(template.prepare), panda.StudySize(space, config.trials, config.parallel or 4)
    _submit(site, "phpo", panda.study_arguments(site.profile, request, source, settings, inputs, size))


def _datasets(config: PrepareConfig) -> list[str]:
    """The inputs as PanDA knows them: names of datasets, with or without `rucio:`."""
    inputs = config.input
    if isinstance(inputs, dict):
        raise ConfigError("PanDA gives a job the files of its datasets as one list: prepare.input cannot name splits")
    return [each.removeprefix("rucio:") for each in inputs]


def _submit(site: SiteOptions, tool: str, arguments: list[str]) -> None:
    from clew.jobs.launchers import panda

    if site.values["follow"]:
        raise ConfigError("--follow: clew cannot watch tasks of PanDA; its monitor and `pbook` show them")
    if site.values["dry_run"]:
        console.print(f"[dim]{tool}[/] {shlex.join(arguments)}", markup=True)
        typer.echo(json.dumps(panda.dry_run(tool, arguments, os.environ), indent=1))
        return
    panda.submit(tool, arguments)
