"""`--on SITE` where the site is PanDA: a training or a study as one task."""

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

if TYPE_CHECKING:
    from clew.data.prepare.config import PrepareConfig
    from clew.tuning.space import Template


def hand_in_training(asked: SiteOptions, recipe: str | None, settings: Sequence[str]) -> None:
    """One job of prun's that prepares the files of a dataset and trains on them."""
    from clew.jobs.launchers import panda
    from clew.settings import load_settings

    if recipe is None:
        raise ConfigError("PanDA trains a recipe or a YAML, by name or file: --resume and --model stay here")
    loaded = load_settings(recipe, settings)
    needs = asked.needs(SiteWork("train", Path(Path(recipe).stem), loaded.train.processes))
    _hand_in(asked, "prun", panda.training(asked.site, needs, recipe, settings, _datasets(loaded.prepare)))


def hand_in_study(asked: SiteOptions, template: Template, source: str, settings: Sequence[str]) -> None:
    """phpo: iDDS has clew propose points, and jobs judge them."""
    from clew.core.files import write_text
    from clew.jobs.launchers import panda
    from clew.tuning.panda import to_panda

    config = template.tune
    if config is None or not config.space:
        raise ConfigError(f"{source}: no section `tune` with a space to search")
    space = Path(f"{Path(source).stem}.space.json")
    write_text(space, json.dumps({key: to_panda(each) for key, each in config.space.items()}, indent=1))
    needs = asked.needs(SiteWork("tune", Path(Path(source).stem)))
    inputs, size = _datasets(template.prepare), {"points": config.trials, "parallel": config.parallel or 4}
    _hand_in(asked, "phpo", panda.study(asked.site, needs, source, settings, inputs, space=space, **size))


def _datasets(config: PrepareConfig) -> list[str]:
    """The inputs as PanDA knows them: names of datasets, `rucio:` in front or not."""
    given = config.input
    if isinstance(given, dict):
        raise ConfigError("PanDA gives a job the files of its datasets as one list: prepare.input cannot name splits")
    return [each.removeprefix("rucio:") for each in given]


def _hand_in(asked: SiteOptions, tool: str, words: list[str]) -> None:
    from clew.jobs.launchers import panda

    if asked.given["dry_run"]:
        console.print(f"[dim]{tool}[/] {shlex.join(words)}", markup=True)
        typer.echo(json.dumps(panda.dry(tool, words, os.environ), indent=1))
        return
    panda.submit(tool, words)
