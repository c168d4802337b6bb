"""Makes tasks of PanDA from what a user names: a recipe, a study, or a script. Own code travels with them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from clew.client.submission import code_files, portable_settings
from clew.core.config import to_yaml
from clew.errors import ConfigError
from clew.jobs.task import GridSearch, GridTask
from clew.settings import Settings, load_settings
from clew.tuning.panda import to_panda

_TRAINING = ("python3", "-m", "clew.cli.training.panda_job")
"""The entry point of a training on the grid: settings, files separated by commas, then changes of settings."""
_SCRIPT = ("python3", "-m", "clew.cli.jobs.panda_script")
"""The entry point of a script on the grid: the number of processes, the file, then its arguments."""
TRAINING_OUTPUTS = ("model.safetensors", "metrics.json", "metrics.tgz")
"""What a training returns, besides `userJobMetadata.json`, which PanDA keeps with the task."""
SCRIPT_OUTPUTS = ("run.tgz",)
"""What a script returns: the run that it wrote."""


def training_task(recipe: str, settings: Sequence[str] = ()) -> GridTask:
    """Make a task of one job that prepares the files of datasets and trains on them.

    Args:
        recipe: A recipe's name or file, a YAML file, or a run's folder. Files travel with the task, with the modules of
            the recipe's folder that it imports.
        settings: Changes of settings, such as `train.epochs=10`.

    Raises:
        ConfigError: The settings do not fit, or cannot be used on the grid.
        RecipeError: There is no such recipe.

    Example:
        >>> task = training_task("tracking", ["train.epochs=5", "prepare.input=rucio:user.me:events"])
        >>> task.inputs, task.outputs
        (('user.me:events',), ('model.safetensors', 'metrics.json', 'metrics.tgz'))
    """
    loaded = load_settings(recipe, settings)
    name, files = _settings_files(recipe, loaded)
    inputs = _datasets(loaded)
    words = [*_TRAINING, name, "%IN" if inputs else "", *settings]
    return GridTask(command=shlex.join(words), inputs=inputs, outputs=TRAINING_OUTPUTS, files=files)


def study_task(source: str, settings: Sequence[str] = ()) -> GridTask:
    """Make a task whose jobs evaluate the points that clew proposes.

    Args:
        source: A YAML file or recipe with a section `tune`.
        settings: Changes of settings.

    Raises:
        ConfigError: There is no space to search, or PanDA does not support it.
    """
    loaded = load_settings(source, settings)
    config = loaded.tune
    if config is None or not config.space:
        raise ConfigError(f"{source}: no section `tune` with a space to search")
    name, files = _settings_files(source, loaded)
    space = json.dumps({key: to_panda(each) for key, each in config.space.items()}, indent=1)
    options = [word for setting in settings for word in ("--set", setting)]
    return GridTask(
        command=shlex.join(["clew", "tune", "evaluate", name, *options]),
        inputs=_datasets(loaded),
        files=files,
        search=GridSearch(space=space, points=config.trials, parallel=config.parallel or 4),
    )


def script_task(script: str | Path, arguments: Sequence[str] = (), *, workers: int = 1) -> GridTask:
    """Make a task of one job that runs a script.

    Args:
        script: A Python or shell file. It travels with the task, with the modules of its folder that it imports.
        arguments: Arguments of the script.
        workers: Number of processes.

    Raises:
        ConfigError: There is no such file, or it cannot be sent.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("hello.py").write_text("print('hello')")
        >>> script_task("hello.py", ["--lr", "0.1"]).command
        'python3 -m clew.cli.jobs.panda_script 1 hello.py --lr 0.1'
    """
    path = Path(script)
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; name a Python or shell script")
    words = [*_SCRIPT, str(workers), path.name, *arguments]
    return GridTask(command=shlex.join(words), outputs=SCRIPT_OUTPUTS, files=code_files(path))


def _settings_files(source: str, loaded: Settings) -> tuple[str, dict[str, str]]:
    """The name of settings on the grid and the files they need; a recipe of the image needs no file."""
    data, files = portable_settings(loaded, "train")
    if not files and not Path(source).exists():
        return source, {}
    name = f"{Path(source.partition('.py:')[0]).stem}.yaml"
    return name, {name: to_yaml(data), **files}


def _datasets(loaded: Settings) -> tuple[str, ...]:
    """The inputs as PanDA knows them: names of datasets, with or without `rucio:`."""
    inputs = loaded.prepare.input
    if isinstance(inputs, dict):
        raise ConfigError("PanDA gives a job the files of its datasets as one list: prepare.input cannot name splits")
    return tuple(each.removeprefix("rucio:") for each in inputs)
