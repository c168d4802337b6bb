"""What is run for a job."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from clew.client.job import JobOrder
from clew.errors import ConfigError, RunError
from clew.jobs.agent.folder import AgentFolder, JobFolder
from clew.runs import Run

CLEW = (sys.executable, "-c", "from clew.cli.main import run; run()")


def _train(order: JobOrder, root: AgentFolder) -> list[str]:
    folder = root.job(order.key)
    run = Run(folder.output(order.name))
    if run.config_file.exists() and run.states():
        return ["train", "--again", "--resume", str(run.path)]
    if run.path.exists():
        shutil.rmtree(run.path)  # begun, and nothing kept
    if order.arguments[:1] == ("--model",):
        return ["train", *_here(order, folder), "--output", str(run.path)]
    data = _data("--dataset", order)
    return ["train", str(folder.spec_file), *data, "--output", str(run.path), *order.arguments]


def _here(order: JobOrder, folder: JobFolder) -> list[str]:
    """The arguments, with places (`net.py:build`) in files that travelled as places here."""
    return [str(folder.path / each) if each.partition(":")[0] in order.files else each for each in order.arguments]


def _data(option: str, order: JobOrder) -> list[str]:
    """The dataset: a path as it is, a key as the first place it is said to lie at that this machine has."""
    if order.dataset is None:
        return []
    here = [place for place in order.locations if (Path(place) / "manifest.json").is_file()]
    if order.locations and not here:
        raise RunError(
            f"the dataset {order.dataset} is at {' and '.join(order.locations)}, and not on this agent's machine"
        )
    return [option, (here or [order.dataset])[0]]


def _tune(order: JobOrder, root: AgentFolder) -> list[str]:
    folder = root.job(order.key)
    study = folder.output(order.name)
    if (study / "config.yaml").exists():
        return ["tune", "run", "--resume", str(study)]
    data = _data("--dataset", order)
    return ["tune", "run", str(folder.spec_file), *data, "--output", str(study), *order.arguments]


def _prepare(order: JobOrder, root: AgentFolder) -> list[str]:
    folder = root.job(order.key)
    return ["prepare", str(folder.spec_file), "--output", str(folder.output(order.name)), *order.arguments]


def _evaluate(order: JobOrder, root: AgentFolder) -> list[str]:
    known = root.job(str(order.target_key)).order()
    if known is None:
        raise RunError(f"the run of job {order.target_key} is not on this agent")
    data = _data("--data", order)
    return ["evaluate", str(root.job(known.key).output(known.name)), *data, *order.arguments]


def _bench(order: JobOrder, root: AgentFolder) -> list[str]:
    return ["bench", *order.arguments, "--output", str(root.job(order.key).output(order.name))]


_KINDS: dict[str, Callable[[JobOrder, AgentFolder], list[str]]] = {
    "train": _train,
    "tune": _tune,
    "prepare": _prepare,
    "evaluate": _evaluate,
    "bench": _bench,
}


def ranks(order: JobOrder) -> int:
    """Processes that a scheduler has to start for a job of several nodes; on one, clew starts its own."""
    needs = order.resources
    if needs.nodes == 1:
        return 1
    if order.kind != "train":
        return max(needs.cpus, needs.nodes)
    from clew.core.config import Document, validate
    from clew.training.config import TrainConfig

    asked = validate(TrainConfig, Document(order.spec.get("train") or {}, source="train")).processes
    return asked if asked > 1 else needs.nodes * max(1, needs.gpus // needs.nodes)


def command(order: JobOrder, root: AgentFolder) -> tuple[str, ...]:
    """The command of a job: from where an earlier attempt stopped, where it can be.

    Raises:
        RunError, ConfigError: what it needs is not here.
    """
    if order.kind not in _KINDS:
        raise ConfigError(f"this agent does not know jobs of kind '{order.kind}'; is it older than the server?")
    return (*CLEW, *_KINDS[order.kind](order, root))
