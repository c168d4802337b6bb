"""Tasks of several ranks on this machine. Each rank is forked from the warm server, as torchrun would start it."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from clew.jobs.launchers.launcher import JobState, LaunchedJob, Slot, Supervision, core_share, state_of_end
from clew.jobs.launchers.local import visible_devices
from clew.jobs.launchers.warm import WarmLauncher, fork
from clew.jobs.supervisor import STOPPED, JobEnd, read_end
from clew.jobs.task import Task

_RANK_LAUNCHER = WarmLauncher()


class RanksLauncher:
    """Starts each job as `ranks` processes. A job's id is the list of its supervisors."""

    name = "ranks"

    def __init__(self, ranks: int = 1) -> None:
        self._ranks = ranks

    def start(
        self, task: Task, *, folder: Path, slot: Slot | None = None, supervision: Supervision | None = None
    ) -> LaunchedJob:
        chosen, port, extra = slot or Slot(), free_port(), (supervision or Supervision()).environment
        group = RankGroup(self._ranks, "127.0.0.1", port)
        jobs = [
            fork(
                task,
                folder=rank_folder(folder, rank),
                cores=core_share(chosen.cores, rank, self._ranks) if chosen.cores else (),
                environment={**visible_devices(chosen), **group.environment(rank, rank, self._ranks), **extra},
            )
            for rank in range(self._ranks)
        ]
        return LaunchedJob(self.name, ",".join(job.id for job in jobs), str(folder))

    def state(self, job: LaunchedJob) -> JobState:
        ranks = _rank_jobs(job)
        end = ranks_end(Path(job.folder), len(ranks))
        if end is None:
            if "running" in {_RANK_LAUNCHER.state(rank) for rank in ranks}:
                return "running"
            end = ranks_end(Path(job.folder), len(ranks))
        return "lost" if end is None else state_of_end(end.code)

    def end(self, job: LaunchedJob) -> JobEnd | None:
        return ranks_end(Path(job.folder), len(_rank_jobs(job)))

    def explain(self, job: LaunchedJob) -> str:
        return ""

    def stop(self, job: LaunchedJob) -> None:
        for rank in _rank_jobs(job):
            _RANK_LAUNCHER.stop(rank)

    def kill(self, job: LaunchedJob) -> None:
        for rank in _rank_jobs(job):
            _RANK_LAUNCHER.kill(rank)


def _rank_jobs(job: LaunchedJob) -> list[LaunchedJob]:
    folder = Path(job.folder)
    return [
        LaunchedJob(WarmLauncher.name, name, str(rank_folder(folder, rank)))
        for rank, name in enumerate(job.id.split(","))
    ]


def rank_folder(folder: Path, rank: int) -> Path:
    """The folder of a rank's output."""
    return folder / f"rank-{rank}"


def ranks_end(folder: Path, ranks: int) -> JobEnd | None:
    """How a job of several ranks ended; None while a rank has no record of its end."""
    ends = [read_end(rank_folder(folder, rank)) for rank in range(ranks)]
    codes = [end.code for end in ends if end is not None]
    if len(codes) < ranks:
        return None
    failures = [code for code in codes if code not in (0, STOPPED)]
    return JobEnd(failures[0] if failures else max(codes))


@dataclass(frozen=True)
class RankGroup:
    """The ranks of one job and the address where they meet."""

    ranks: int
    address: str
    port: int

    def environment(self, rank: int, local_rank: int, local_ranks: int) -> dict[str, str]:
        """The variables that torchrun gives a rank."""
        values = {
            "RANK": rank,
            "WORLD_SIZE": self.ranks,
            "LOCAL_RANK": local_rank,
            "LOCAL_WORLD_SIZE": local_ranks,
            "MASTER_ADDR": self.address,
            "MASTER_PORT": self.port,
        }
        return {name: str(value) for name, value in values.items()}


def free_port() -> int:
    """A TCP port that no process listens on now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
