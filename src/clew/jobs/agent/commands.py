"""From a job's order to the task that is run for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from clew.client.datasets import DATASET_KEY
from clew.client.job import JobOrder
from clew.data.prepare.reuse import REGISTERED, find_dataset
from clew.errors import ConfigError, RunError
from clew.jobs.agent.folder import AgentFolder, JobFolder
from clew.jobs.task import ScriptTask, Task, TrainTask, TrialsTask, command_task
from clew.runs import Run
from clew.storage import is_url

_WITHOUT_RECIPE = (("--model",), ("--estimator",))
"""How the arguments of a training without a recipe start."""


def _train(order: JobOrder, root: AgentFolder) -> Task:
    folder = root.job(order.key)
    run = Run(folder.output(order.name))
    if run.config_file.exists() and run.states():
        return TrainTask(resume=str(run.path), continues=True)
    if run.path.exists():
        shutil.rmtree(run.path)  # started, but nothing was saved
    if order.arguments[:1] in _WITHOUT_RECIPE:
        return command_task(["train", *_local_arguments(order, folder), "--output", str(run.path)])
    if order.arguments:
        dataset = _option("--dataset", _dataset(order, root))
        return command_task(["train", str(folder.spec_file), *dataset, "--output", str(run.path), *order.arguments])
    return TrainTask(recipe=str(folder.spec_file), dataset=_dataset(order, root), output=str(run.path))


def _local_arguments(order: JobOrder, folder: JobFolder) -> list[str]:
    """The arguments of a training without a recipe; those that name files of the job (`net.py:build`) by full path."""
    return [str(folder.code / word) if word.partition(":")[0] in order.files else word for word in order.arguments]


def _dataset(order: JobOrder, root: AgentFolder) -> str | None:
    """The dataset: a path or URL as it is; a key as a place that this machine has, else as its URL in a store."""
    if order.dataset is None or not DATASET_KEY.fullmatch(order.dataset):
        return order.dataset
    stored = [place for place in order.locations if is_url(place)]
    folders = [place for place in order.locations if not is_url(place)]
    location = find_dataset(order.dataset, [*folders, root.datasets, *stored])
    if location is None and order.locations:
        raise RunError(f"the dataset {order.dataset} is not at {' or '.join(order.locations)}, as seen from this agent")
    if location is None:
        raise RunError(
            f"no dataset has the key {order.dataset}, on the server or in the agent's folder; the page Datasets of the "
            "dashboard lists keys, and `clew submit --kind prepare` makes a dataset"
        )
    return location


def _option(name: str, value: str | None) -> list[str]:
    return [] if value is None else [name, value]


def _tune(order: JobOrder, root: AgentFolder) -> Task:
    folder = root.job(order.key)
    study = folder.output(order.name)
    if (study / "config.yaml").exists():
        return command_task(["tune", "run", "--resume", str(study)])
    dataset = _option("--dataset", _dataset(order, root))
    return command_task(["tune", "run", str(folder.spec_file), *dataset, "--output", str(study), *order.arguments])


def _trial(order: JobOrder, root: AgentFolder) -> Task:
    folder = root.job(order.key)
    return TrialsTask(
        settings=str(folder.spec_file),
        dataset=_dataset(order, root),
        study=order.study or 0,
        trials=order.trials,
        output=str(folder.output(order.name)),
        folds=str(root.folds(order.target_key or order.key)),
    )


def _prepare(order: JobOrder, root: AgentFolder) -> Task:
    folder = root.job(order.key)
    places = [root.datasets, REGISTERED, *([order.store] if order.store else [])]
    reuse = [word for place in places for word in ("--reuse", place)]
    output = str(folder.output(order.name))
    return command_task(["prepare", str(folder.spec_file), "--output", output, *reuse, *order.arguments])


def _evaluate(order: JobOrder, root: AgentFolder) -> Task:
    trained = root.job(str(order.target_key)).order()
    if trained is None:
        raise RunError(f"the run of job {order.target_key} is not on this agent")
    run = str(root.job(trained.key).output(trained.name))
    return command_task(["evaluate", run, *_option("--dataset", _dataset(order, root)), *order.arguments])


def _bench(order: JobOrder, root: AgentFolder) -> Task:
    return command_task(["bench", *order.arguments, "--output", str(root.job(order.key).output(order.name))])


def _script(order: JobOrder, root: AgentFolder) -> Task:
    folder = root.job(order.key)
    script, *arguments = order.arguments
    return ScriptTask(
        script=str(folder.code / script),
        arguments=tuple(arguments),
        workers=order.resources.workers,
        output=str(folder.output(order.name)),
    )


_KINDS: dict[str, Callable[[JobOrder, AgentFolder], Task]] = {
    "train": _train,
    "tune": _tune,
    "trial": _trial,
    "prepare": _prepare,
    "evaluate": _evaluate,
    "bench": _bench,
    "script": _script,
}


def named_paths(order: JobOrder) -> list[str]:
    """The texts of a job that may be paths: its dataset, arguments and settings."""
    dataset = [] if order.dataset is None else [order.dataset]
    return [*dataset, *order.locations, *order.arguments, *_texts(order.spec)]


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [text for each in inner for text in _texts(each)]


def order_task(order: JobOrder, root: AgentFolder) -> Task:
    """The task of a job: it continues where an earlier attempt stopped, if it can.

    Raises:
        RunError, ConfigError: what it needs is not on this machine.
    """
    if order.kind not in _KINDS:
        raise ConfigError(f"this agent does not know jobs of kind '{order.kind}'; is it older than the server?")
    return _KINDS[order.kind](order, root)
