"""What a job does, as typed data.

A launcher writes a task as JSON into the job's folder; the job's process reads it back (`clew.cli.run_task`). Only
commands that a user could type travel as command lines (`CommandTask`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from clew.core.config import Section
from clew.core.files import write_text
from clew.core.process import safe_path
from clew.errors import RunError

_RUN_TASK = "clew.cli.run_task"
"""The module that runs a task file; given by name because the command line stands above this package."""


class CommandTask(Section):
    """A clew command, as a user types it."""

    kind: Literal["command"] = "command"
    arguments: tuple[str, ...]
    """The words after `clew`."""


class ProgramTask(Section):
    """Any program."""

    kind: Literal["program"] = "program"
    command: Annotated[tuple[str, ...], Field(min_length=1)]


class ScriptTask(Section):
    """A user's own script, on one or several ranks. The process's working folder is the job's folder."""

    kind: Literal["script"] = "script"
    script: str
    """A Python file; any other file is run by its first line (`#!`), or by bash."""
    arguments: tuple[str, ...] = ()
    workers: Annotated[int, Field(ge=1)] = 1
    """Ranks to start on this machine, unless the scheduler has started them already."""
    output: str
    """The run that `clew.distributed` writes."""


class TrainTask(Section):
    """One training: the options of `clew train`, and how it continues when it is started a second time."""

    kind: Literal["train"] = "train"
    recipe: str | None = None
    """A recipe's name or file, a YAML with settings, or a run's folder."""
    dataset: str | None = None
    workers: int | None = None
    epochs: int | None = None
    lr: float | None = None
    batch_size: str | None = None
    """Samples per step, `auto` or `largest`."""
    device: str | None = None
    start_from: str | None = None
    """Weights to start from: a run, a model in a store, or a file."""
    replicas: int | None = None
    strategy: str | None = None
    listen: str | None = None
    output: str | None = None
    model: str | None = None
    """Training without a recipe; the fields down to `scale` belong to it."""
    estimator: str | None = None
    """The same with an estimator."""
    train_files: tuple[str, ...] | None = None
    val_files: tuple[str, ...] | None = None
    features: str | None = None
    labels: str | None = None
    loss: str | None = None
    weight: str | None = None
    select: str | None = None
    scale: str | None = None
    settings: tuple[str, ...] = ()
    """Settings as `KEY=VALUE`."""
    resume: str | None = None
    """The run to continue."""
    current_code: bool = False
    """Continue it with today's code of the recipe."""
    time_limit: str | None = None
    lease: str | None = None
    """The lease file by which a study assigns a trial; the study watches the records."""
    continues: bool = False
    """Continue the run at `output` if it has a checkpoint; a run that has finished is no error."""


class PackedTraining(Section):
    """One training of a pack."""

    folder: str
    """The folder of the job that this member counts as: its log and its end go there."""
    task: TrainTask


class PackTask(Section):
    """Several trainings in one process."""

    kind: Literal["pack"] = "pack"
    members: tuple[PackedTraining, ...]


class TrialSettings(Section):
    """A trial of a study: its number and what distinguishes its settings from those of the study."""

    trial: Annotated[int, Field(ge=0)]
    settings: dict[str, Any]
    """Values by key of the settings."""


class TrialsTask(Section):
    """Trials of a study on a server, as one job: one trial, or several that are trained together in a pack."""

    kind: Literal["trials"] = "trials"
    settings: str
    """The YAML file with the settings of the study."""
    dataset: str | None = None
    study: int
    """The number of the study on the server."""
    trials: Annotated[tuple[TrialSettings, ...], Field(min_length=1)]
    output: str
    """The folder of the runs."""
    folds: str
    """The folder for the datasets of folds, which jobs of the same study share."""


class FillCacheTask(Section):
    """One part of a preparation: it fills the shared cache. The job's number in its array is the part's number."""

    kind: Literal["fill_cache"] = "fill_cache"
    recipe: str
    settings: tuple[str, ...] = ()
    parts: Annotated[int, Field(ge=1)]


class DoctorTask(Section):
    """The checks of `clew doctor` on a node of a site."""

    kind: Literal["doctor"] = "doctor"
    site: str
    folder: str
    """Where each rank writes what it found."""


class GridSearch(Section):
    """A search over settings that PanDA steers."""

    space: str
    """The space to search, as the JSON text of phpo."""
    points: Annotated[int, Field(ge=1)]
    parallel: Annotated[int, Field(ge=1)]


class GridTask(Section):
    """A whole task of PanDA: what its jobs run on the grid, and the files that travel with it."""

    kind: Literal["grid"] = "grid"
    command: str
    """The command of a job; `%IN` stands for its input files."""
    inputs: tuple[str, ...] = ()
    """The datasets whose files the jobs read."""
    outputs: tuple[str, ...] = ()
    """The files that a job returns."""
    files: dict[str, str] = {}
    """Names and texts of the files in the working folder of a job."""
    search: GridSearch | None = None
    """None: one job; otherwise one job per point."""


Task: TypeAlias = (
    CommandTask | ProgramTask | ScriptTask | TrainTask | PackTask | TrialsTask | FillCacheTask | DoctorTask | GridTask
)
_ADAPTER: TypeAdapter[Task] = TypeAdapter(Annotated[Task, Field(discriminator="kind")])


def task_file(folder: Path) -> Path:
    """The file in a job's folder that holds its task."""
    return folder / "task.json"


def write_task(task: Task, folder: Path) -> None:
    """Write a task into a job's folder, readable by its owner only."""
    file = task_file(folder)
    write_text(file, task.model_dump_json(exclude_defaults=False, indent=1))
    file.chmod(0o600)


def read_task(file: Path) -> Task:
    """Read and validate a task.

    Raises:
        RunError: the file is not there or does not hold a task.
    """
    try:
        return parse_task(file.read_text())
    except (OSError, ValidationError) as error:
        raise RunError(f"{file}: not a task of this version of clew ({error})") from error


def parse_task(text: str) -> Task:
    """A task from its JSON text."""
    return _ADAPTER.validate_json(text)


def process_command(task: Task, file: Path | str, *, python: str, index: str | None = None) -> list[str]:
    """The words of the process that runs a task.

    Args:
        task: What to run.
        file: The task's JSON file, for tasks that are not command lines.
        python: The Python interpreter of the machine that runs it.
        index: A shell variable with the job's number in its array, for jobs of an array.
    """
    if isinstance(task, CommandTask):
        return [python, *safe_path(), "-m", "clew", *task.arguments]
    if isinstance(task, ProgramTask):
        return list(task.command)
    return [python, *safe_path(), "-m", _RUN_TASK, str(file), *([] if index is None else [index])]


def command_task(arguments: Sequence[str]) -> CommandTask:
    """A task that runs `clew ARGUMENTS`."""
    return CommandTask(arguments=tuple(arguments))
