"""Studies of a recipe that can fail, and of functions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from clew import Dataset, settings
from clew.core.config import Document, to_data
from clew.tuning.api import local_executor, tune
from clew.tuning.config import TuneConfig
from clew.tuning.study import Study

RECIPE = str(Path(__file__).parent / "recipes" / "slope.py")
LR = {"train.optimizer.lr": {"log": [1e-3, 1e-1]}}
SMALL = {"epochs": 3, "batch_size": 60, "threads": 1, "log_every": 1, "trace": False, "monitor_seconds": None}


def template(
    dataset: Dataset, *, tune: Mapping[str, Any], train: Mapping[str, Any] | None = None, **recipe_settings: Any
) -> settings.Settings:
    """The settings of a study of the recipe `slope`."""
    data = {
        "recipe": RECIPE,
        **recipe_settings,
        "train": {**SMALL, "dataset": str(dataset.path), **(train or {})},
        "tune": {"space": LR, "trials": 3, "parallel": 2, "sampler": {"name": "random", "seed": 1}, **tune},
    }
    return settings.settings_from_document(Document(data))


def tune_here(template: settings.Settings, path: Path, **options: Any) -> Study:
    """Run a study on this machine, with more trials at a time than cores if requested."""
    return tune(template, path, executor=partial(local_executor, template, oversubscribe=True), **options)


def study(path: Path, **tune: Any) -> Study:
    """A study of a function of x (0 to 1) and n (1 to 3)."""
    plain: dict[str, Any] = {"space": {"x": {"uniform": [0, 1]}, "n": {"choice": [1, 2, 3]}}, "trials": 12}
    config = TuneConfig.model_validate({**plain, "sampler": {"name": "random", "seed": 1}, **tune})
    return Study.create(path, {"tune": to_data(config)}, config)
