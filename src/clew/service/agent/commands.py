"""What is run for a job."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable

from clew.errors import ConfigError, RunError
from clew.ledger import Run
from clew.service.agent.folder import AgentFolder
from clew.service.job import Order

CLEW = (sys.executable, "-c", "from clew.cli.main import run; run()")


def _train(order: Order, root: AgentFolder) -> list[str]:
    folder = root.job(order.job)
    run = Run(folder.output(order.name))
    if run.config_file.exists() and run.states():
        return ["train", "--resume", str(run.path)]
    if run.path.exists():
        shutil.rmtree(run.path)  # begun, and nothing kept
    data = [] if order.dataset is None else ["--dataset", order.dataset]
    return ["train", str(folder.spec_file), *data, "--output", str(run.path), *order.arguments]


def _tune(order: Order, root: AgentFolder) -> list[str]:
    folder = root.job(order.job)
    study = folder.output(order.name)
    if (study / "config.yaml").exists():
        return ["tune", "run", "--resume", str(study)]
    data = [] if order.dataset is None else ["--dataset", order.dataset]
    return ["tune", "run", str(folder.spec_file), *data, "--output", str(study), *order.arguments]


def _prepare(order: Order, root: AgentFolder) -> list[str]:
    folder = root.job(order.job)
    return ["prepare", str(folder.spec_file), "--output", str(folder.output(order.name)), *order.arguments]


def _evaluate(order: Order, root: AgentFolder) -> list[str]:
    known = root.job(str(order.of)).order()
    if known is None:
        raise RunError(f"the run of job {order.of} is not on this agent")
    data = [] if order.dataset is None else ["--data", order.dataset]
    return ["evaluate", str(root.job(known.job).output(known.name)), *data, *order.arguments]


_KINDS: dict[str, Callable[[Order, AgentFolder], list[str]]] = {
    "train": _train,
    "tune": _tune,
    "prepare": _prepare,
    "evaluate": _evaluate,
}


def command(order: Order, root: AgentFolder) -> tuple[str, ...]:
    """The command of a job: from where an earlier attempt stopped, where it can be.

    Raises:
        RunError, ConfigError: what it needs is not here.
    """
    if order.kind not in _KINDS:
        raise ConfigError(f"this agent does not know jobs of kind '{order.kind}'; is it older than the server?")
    return (*CLEW, *_KINDS[order.kind](order, root))
