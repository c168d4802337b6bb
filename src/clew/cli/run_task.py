"""The private entry point of jobs: `python -m clew.cli.run_task TASK.json [INDEX]` runs the task of a job.

Launchers start it; users do not. `INDEX` is the job's number in its array.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clew.cli import main as command_line
from clew.errors import ConfigError
from clew.jobs.task import (
    CommandTask,
    DoctorTask,
    FillCacheTask,
    GridTask,
    PackTask,
    ProgramTask,
    ScriptTask,
    Task,
    TrainTask,
    TrialsTask,
    read_task,
)

_PRELOADED = (
    "torch",
    "torch.distributed",
    "torch.fx.experimental.symbolic_shapes",
    "torch.utils.serialization.config",
    "numpy.ctypeslib",
    "numpy.ma",
    "pydantic.type_adapter",
)
"""Modules of other packages that a training imports while it runs."""
_HANDLERS: dict[type[Task], str] = {
    CommandTask: "clew.cli.run_task:_run_command",
    ProgramTask: "clew.cli.run_task:_run_program",
    ScriptTask: "clew.jobs.script_ranks:run",
    TrainTask: "clew.cli.training.train_task:run",
    PackTask: "clew.cli.training.pack_task:run",
    TrialsTask: "clew.cli.tuning.trials_task:run",
    FillCacheTask: "clew.cli.data.prepare:fill_cache",
    DoctorTask: "clew.cli.jobs.doctor:check_node",
    GridTask: "clew.cli.run_task:_refuse_grid_task",
}
"""What runs a task of each kind, as `module:function`; every function takes the task and its index."""


def run(task: Task, index: int | None = None) -> None:
    """Run a task in this process. Errors are printed as the command line prints them; it may exit."""
    sys.argv = ["clew", task.kind]
    command_line.report_errors(lambda: _handler(type(task))(task, index))


def preload() -> None:
    """Import what tasks need, so that processes forked from this one start at once."""
    for name in _PRELOADED:
        importlib.import_module(name)
    for kind in (TrainTask, PackTask):
        importlib.import_module(_handler(kind).__module__).preload()
    command_line.command()


def _handler(kind: type[Task]) -> Callable[[Any, int | None], None]:
    module, _, name = _HANDLERS[kind].partition(":")
    handler: Callable[[Any, int | None], None] = getattr(importlib.import_module(module), name)
    return handler


def _run_command(task: CommandTask, index: int | None) -> None:
    sys.argv = ["clew", *task.arguments]
    command_line.run()


def _refuse_grid_task(task: GridTask, index: int | None) -> None:
    raise ConfigError("a task of PanDA cannot run here; submit it to a site whose scheduler is panda")


def _run_program(task: ProgramTask, index: int | None) -> None:
    os.execvp(task.command[0], task.command)


def _main() -> None:
    file, *index = sys.argv[1:]
    command_line.report_errors(lambda: run(read_task(Path(file)), int(index[0]) if index else None))


if __name__ == "__main__":
    _main()
