"""The contract of launchers. A launcher starts a task and supervises it while no process waits for it.

Launchers of this machine and the schedulers of sites are named in two tables. Other packages add schedulers by entry
points of the group `clew.launchers`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from clew.core.entry_points import installed_entry_points
from clew.errors import ConfigError, RunError, nearest
from clew.jobs.supervisor import GRACE, STOPPED, JobEnd, log_file, read_ends
from clew.jobs.task import Task

JobState: TypeAlias = Literal["waiting", "running", "finished", "stopped", "failed", "lost", "cancelled"]
"""`stopped` can be resumed; `lost` ended without a record of how; `cancelled` was removed at the scheduler."""
END_STATES: tuple[JobState, ...] = ("finished", "stopped", "failed", "lost", "cancelled")
LOCAL_LAUNCHERS = {
    "local": "clew.jobs.launchers.local:LocalLauncher",
    "warm": "clew.jobs.launchers.warm:WarmLauncher",
    "ranks": "clew.jobs.launchers.ranks:RanksLauncher",
    "packs": "clew.jobs.launchers.batching:PackLauncher",
}
"""Launchers of this machine: names, and the classes they stand for."""
SCHEDULERS = {
    "slurm": "clew.jobs.launchers.slurm:SlurmLauncher",
    "condor": "clew.jobs.launchers.condor:CondorLauncher",
    "panda": "clew.jobs.launchers.panda:PandaLauncher",
}
"""Schedulers of sites that come with clew. Their jobs can be supervised from every host of a site."""
ENTRY_POINTS = "clew.launchers"


class SchedulerBusyError(RunError):
    """A scheduler does not take the job now: its queue is full, or it does not answer. A later attempt may work."""


@dataclass(frozen=True)
class Slot:
    """The part of a machine that a job may use. Schedulers use the numbers as amounts."""

    cores: tuple[int, ...] = ()
    """Numbers of cores; empty: all."""
    devices: tuple[int, ...] | None = None
    """Numbers of accelerators; None: all."""


@dataclass(frozen=True)
class Supervision:
    """What a job gets and must respect, beyond the task itself."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """More variables. They may hold secrets: they are on no command line and in no script."""
    working_folder: str | None = None
    """None: the folder of the process that starts the job."""
    wall_time: float | None = None
    """Seconds."""
    memory: int | None = None
    """Bytes, of all its processes together."""
    grace: float | None = GRACE
    """Seconds between a request to stop and a kill; None: it is not killed."""
    folders: Sequence[str] = ()
    """Folders and files that the job reads or writes, for a job in a container."""


@dataclass(frozen=True)
class LaunchedJob:
    """A task that a launcher has started. It is plain data: another process can continue to supervise it."""

    launcher: str
    id: str
    """What the launcher calls it."""
    folder: str
    """The folder of its output and of the record of its end."""

    @property
    def log(self) -> Path:
        """What it prints."""
        return log_file(Path(self.folder))


class Launcher(Protocol):
    """Starts tasks and supervises them.

    A launcher keeps nothing between calls: all it needs to know is in the `LaunchedJob` and its folder. `start` may be
    called again for a folder by a process that does not know whether an earlier one got to it: the task of a folder
    starts once.
    """

    @property
    def name(self) -> str:
        """Its name in the tables of launchers."""

    def start(
        self, task: Task, *, folder: Path, slot: Slot | None = None, supervision: Supervision | None = None
    ) -> LaunchedJob:
        """Start a task, unless this folder's task was started before.

        Args:
            task: What to run.
            folder: The job's folder; it is created.
            slot: The part of the machine it may use.
            supervision: Environment and limits.

        Raises:
            SchedulerBusyError: it may be possible later.
            RunError: it cannot be started. A launcher may raise it also for a folder whose task was started before.
        """

    def state(self, job: LaunchedJob) -> JobState:
        """The state of the job now."""

    def end(self, job: LaunchedJob) -> JobEnd | None:
        """How a job ended, for a job in a state of `END_STATES`; None where that is not known."""

    def explain(self, job: LaunchedJob) -> str:
        """What is known about a job beyond its state, in a few words; '' where there is nothing to say."""

    def stop(self, job: LaunchedJob) -> None:
        """Ask the job to write a checkpoint and end. Repeated calls and calls after its end have no effect."""

    def kill(self, job: LaunchedJob) -> None:
        """End the job with all its processes now. Nothing happens where it cannot be reached."""


def state_of_end(code: int) -> JobState:
    """The state that an exit code stands for."""
    if code == 0:
        return "finished"
    return "stopped" if code == STOPPED else "failed"


def recorded_state(folder: Path) -> JobState | None:
    """How a job ended by the records in its folder; for an array the worst of them; None without any."""
    states = {state_of_end(end.code) for end in read_ends(folder)}
    return next((state for state in ("failed", "stopped", "finished") if state in states), None)


def core_share(cores: Sequence[int], position: int, slots: int) -> tuple[int, ...]:
    """The neighbouring cores for one of several slots. All cores are distributed; slots share if there are too few."""
    if slots > len(cores):
        return (cores[position % len(cores)],)
    return tuple(cores[len(cores) * position // slots : len(cores) * (position + 1) // slots])


def scheduler_names() -> list[str]:
    """The names of all schedulers: those that come with clew and those of entry points."""
    return sorted({*SCHEDULERS, *installed_entry_points(ENTRY_POINTS)})


def launcher_class(name: str) -> Any:
    """The class of a launcher, or of a scheduler.

    Raises:
        ConfigError: there is none of that name.
    """
    location = {**LOCAL_LAUNCHERS, **SCHEDULERS}.get(name) or installed_entry_points(ENTRY_POINTS).get(name)
    if location is None:
        raise ConfigError(f"no launcher '{name}'{nearest(name, [*LOCAL_LAUNCHERS, *scheduler_names()])}")
    module, _, attribute = location.partition(":")
    return getattr(importlib.import_module(module), attribute)


def find_launcher(name: str) -> Launcher:
    """The launcher of that name.

    Raises:
        ConfigError: there is none.
    """
    launcher: Launcher = launcher_class(name)()
    return launcher


def watch(launcher: Launcher, job: LaunchedJob, *, pause: float = 0.2) -> Iterator[JobState]:
    """Every state that a job goes through from now on, until it ends; `pause` is in seconds."""
    before: JobState | None = None
    while before not in END_STATES:
        state = launcher.state(job)
        if state != before:
            yield state
            before = state
        else:
            time.sleep(pause)
