"""Jobs of several ranks on this machine, each forked from the warm server as torchrun would start it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from clew.jobs.launchers.launcher import JobState, LaunchedJob, Slot, core_share
from clew.jobs.launchers.local import LocalLauncher, exit_file, visible
from clew.jobs.launchers.warm import fork

_LOCAL = LocalLauncher()


class RanksLauncher:
    """A launcher of jobs of `ranks` processes; the numbers of all their keepers make a job's name."""

    def __init__(self, ranks: int = 1) -> None:
        self._ranks = ranks

    def start(self, arguments: Sequence[str], *, folder: Path, room: Slot | None = None) -> LaunchedJob:
        here, port = room or Slot(), free_port()
        each = [
            fork(
                arguments,
                folder=folder_of(folder, rank),
                cores=core_share(here.cores, rank, self._ranks) if here.cores else (),
                environment={**visible(here), **environment(rank, self._ranks, rank, self._ranks, "127.0.0.1", port)},
            )
            for rank in range(self._ranks)
        ]
        return LaunchedJob("ranks", ",".join(job.id for job in each), str(folder))

    def state(self, job: LaunchedJob) -> JobState:
        members = _members(job)
        known = ended(Path(job.folder), len(members))
        if known is not None:
            return known
        states = {_LOCAL.state(each) for each in members}
        return "running" if "running" in states else ended(Path(job.folder), len(members)) or "lost"

    def stop(self, job: LaunchedJob) -> None:
        for each in _members(job):
            _LOCAL.stop(each)

    def kill(self, job: LaunchedJob) -> None:
        for each in _members(job):
            _LOCAL.kill(each)


def _members(job: LaunchedJob) -> list[LaunchedJob]:
    return [LaunchedJob("warm", name, str(folder_of(Path(job.folder), n))) for n, name in enumerate(job.id.split(","))]


def folder_of(folder: Path, rank: int) -> Path:
    """Where the output of a rank goes."""
    return folder / f"rank-{rank}"


def ended(folder: Path, ranks: int) -> JobState | None:
    """How a job ended all of whose ranks have left an exit code; None where some have not."""
    ends = [exit_file(folder_of(folder, rank)) for rank in range(ranks)]
    if not all(end.exists() for end in ends):
        return None
    codes = {end.read_text().strip() for end in ends}
    return "finished" if codes == {"0"} else "stopped" if codes <= {"0", "75"} else "failed"


def environment(rank: int, ranks: int, local_rank: int, local_ranks: int, address: str, port: int) -> dict[str, str]:
    """What torchrun tells a rank."""
    told = {
        "RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_ranks,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }
    return {name: str(value) for name, value in told.items()}


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
