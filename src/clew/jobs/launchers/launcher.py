"""The contract of a launcher: something that starts a clew command and looks after it while nobody waits."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from clew.errors import ConfigError, nearest

JobState: TypeAlias = Literal["waiting", "running", "finished", "stopped", "failed", "lost", "cancelled"]
"""`stopped` can be resumed; `lost` ended without leaving an exit code; `cancelled` was taken away at the scheduler."""
END_STATES: tuple[JobState, ...] = ("finished", "stopped", "failed", "lost", "cancelled")
LAUNCHERS = {
    "local": "clew.jobs.launchers.local:LocalLauncher",
    "warm": "clew.jobs.launchers.warm:WarmLauncher",
    "ranks": "clew.jobs.launchers.ranks:RanksLauncher",
    "packs": "clew.jobs.launchers.batching:PackLauncher",
    "slurm": "clew.jobs.launchers.slurm:SlurmLauncher",
    "condor": "clew.jobs.launchers.condor:CondorLauncher",
}
"""Names and where they lead."""
ANYWHERE = ("slurm", "condor")
"""Those whose jobs can be looked after from every host of a site."""


@dataclass(frozen=True)
class Slot:
    """The part of a machine that a job may use. Launchers of other machines take the numbers for how much it needs."""

    cores: tuple[int, ...] = ()
    """Numbers of cores; none: wherever there is time."""
    devices: tuple[int, ...] | None = None
    """Numbers of accelerators; None: all."""


def core_share(cores: Sequence[int], place: int, slots: int) -> tuple[int, ...]:
    """Neighbouring cores for one of several slots, all of them dealt out; some share where there are too few."""
    if slots > len(cores):
        return (cores[place % len(cores)],)
    return tuple(cores[len(cores) * place // slots : len(cores) * (place + 1) // slots])


@dataclass(frozen=True)
class LaunchedJob:
    """A command that a launcher has started. It can be written down and taken up by another process."""

    launcher: str
    id: str
    folder: str
    """Where its output and exit code go."""

    @property
    def log(self) -> Path:
        """What it prints."""
        return Path(self.folder) / "log.txt"


class Launcher(Protocol):
    """Starts a clew command (a spec and a verb, as the command line takes them), watches and stops it.

    It holds nothing between calls: all it needs to know of a job is in the `LaunchedJob`.
    """

    def start(self, arguments: Sequence[str], *, folder: Path, room: Slot | None = None) -> LaunchedJob:
        """Begin `clew ARGUMENTS`, bound to `room`; `folder`, which is made, takes its output.

        Raises:
            RunError: it cannot be started.
        """

    def state(self, job: LaunchedJob) -> JobState:
        """How it is now."""

    def stop(self, job: LaunchedJob) -> None:
        """Ask it to write a checkpoint and end; nothing happens where it has ended already."""

    def kill(self, job: LaunchedJob) -> None:
        """End it with all its processes, whatever it does; nothing happens where it cannot be reached."""


def find_launcher(name: str) -> Launcher:
    """The launcher of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in LAUNCHERS:
        raise ConfigError(f"no launcher '{name}'{nearest(name, LAUNCHERS)}")
    module, _, kind = LAUNCHERS[name].partition(":")
    made: Launcher = getattr(importlib.import_module(module), kind)()
    return made


def watch(launcher: Launcher, job: LaunchedJob, *, pause: float = 0.2) -> Iterator[JobState]:
    """Every state a job goes through from now on, until it ends."""
    before: JobState | None = None
    while before not in END_STATES:
        now = launcher.state(job)
        if now != before:
            yield now
            before = now
        else:
            time.sleep(pause)
