"""Tasks on the processes of one allocation (`mpiexec -n 9`, `srun -n 9`): rank 0 assigns, the others form blocks.

Every rank of a block starts a process of its own that takes part in the job as it would under torchrun, so a job that
dies ends no rank. Assignments go through the store where all ranks met; ends are files in the job's folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clew.jobs.launchers.launcher import JobState, LaunchedJob, Slot, Supervision, core_share, state_of_end
from clew.jobs.launchers.ranks import RankGroup, free_port, rank_folder, ranks_end
from clew.jobs.launchers.warm import WarmLauncher, fork, prepare_server
from clew.jobs.rank_info import RankInfo
from clew.jobs.supervisor import JobEnd, end_file, write_end
from clew.jobs.task import Task, parse_task

_PAUSE = 0.05
_FINISHED = "finished"
"""The key of the store that ends the other ranks."""


class BlockLauncher:
    """The side of rank 0: jobs go to blocks of `size` ranks. There are never more jobs at a time than blocks."""

    name = "blocks"

    def __init__(self, store: Any, ranks: int, size: int) -> None:
        self._store, self.size, self.count = store, size, (ranks - 1) // size
        self._jobs: list[LaunchedJob | None] = [None] * self.count
        self._assigned = [0] * self.count
        """The number of jobs that each block has had."""

    def start(
        self, task: Task, *, folder: Path, slot: Slot | None = None, supervision: Supervision | None = None
    ) -> LaunchedJob:
        block = next(
            n for n, job in enumerate(self._jobs) if job is None or self.state(job) not in ("running", "waiting")
        )
        folder.mkdir(parents=True)
        assignment = {"task": task.model_dump_json(), "folder": str(folder.absolute())}
        name = f"{block}:{self._assigned[block]}"
        self._store.set(f"work-{name}", json.dumps(assignment))
        self._assigned[block] += 1
        self._jobs[block] = job = LaunchedJob(self.name, name, str(folder))
        return job

    def state(self, job: LaunchedJob) -> JobState:
        end = self.end(job)
        return "running" if end is None else state_of_end(end.code)

    def end(self, job: LaunchedJob) -> JobEnd | None:
        return ranks_end(Path(job.folder), self.size)

    def explain(self, job: LaunchedJob) -> str:
        return ""

    def stop(self, job: LaunchedJob) -> None:
        self._store.set(f"stop-{job.id}", "")

    def kill(self, job: LaunchedJob) -> None:
        self._store.set(f"kill-{job.id}", "")

    def dismiss_ranks(self) -> None:
        """End the other ranks."""
        self._store.set(_FINISHED, "")


def run_block_rank(info: RankInfo, store: Any, size: int, recipe: str) -> None:
    """The side of every other rank: run the jobs of its block until rank 0 has finished or is gone."""
    block, rank = divmod(info.rank - 1, size)
    if block >= (info.ranks - 1) // size:
        return  # the ranks do not fill this block
    prepare_server(recipe)
    member = _BlockRank(info, store, block, rank, size)
    number = 0
    with contextlib.suppress(RuntimeError):  # rank 0, which holds the store, is gone
        while not store.check([_FINISHED]):
            if store.check([f"work-{block}:{number}"]):
                member.run_job(f"{block}:{number}")
                number += 1
            time.sleep(_PAUSE)


class _BlockRank:
    """One rank of a block."""

    def __init__(self, info: RankInfo, store: Any, block: int, rank: int, size: int) -> None:
        self.store, self.block, self.rank, self.size = store, block, rank, size
        self._launcher = WarmLauncher()
        self._cores = _rank_cores(info)
        store.set(f"host-{block}-{rank}", socket.gethostname())

    def run_job(self, name: str) -> None:
        """Take part in a job until it ends."""
        assignment = json.loads(self.store.get(f"work-{name}"))
        job = fork(
            parse_task(assignment["task"]),
            folder=rank_folder(Path(assignment["folder"]), self.rank),
            cores=self._cores,
            environment=self._environment(name),
        )
        done = set[str]()
        while self._launcher.state(job) == "running":
            for order, act in (("stop", self._launcher.stop), ("kill", self._launcher.kill)):
                if order not in done and self.store.check([f"{order}-{name}"]):
                    done.add(order)
                    act(job)
            time.sleep(_PAUSE)
        if not end_file(Path(job.folder)).exists():
            write_end(Path(job.folder), JobEnd(-9))  # its supervisor was killed too

    def _hosts(self) -> list[str]:
        return [self.store.get(f"host-{self.block}-{rank}").decode() for rank in range(self.size)]

    def _environment(self, name: str) -> dict[str, str]:
        """The variables that torchrun would set."""
        if self.size == 1:
            return {}
        if self.rank == 0:
            self.store.set(f"port-{name}", f"{_address(self._hosts())} {free_port()}")
        address, port = self.store.get(f"port-{name}").decode().split()
        hosts = self._hosts()
        same_host = [rank for rank, host in enumerate(hosts) if host == hosts[self.rank]]
        group = RankGroup(self.size, address, int(port))
        return group.environment(self.rank, same_host.index(self.rank), len(same_host))


def _address(hosts: Sequence[str]) -> str:
    return "127.0.0.1" if len(set(hosts)) == 1 else hosts[0]


def _rank_cores(info: RankInfo) -> tuple[int, ...]:
    """This rank's share of its host, unless the process that started it has bound it already."""
    if not hasattr(os, "sched_getaffinity"):
        return ()
    cores = sorted(os.sched_getaffinity(0))
    bound = len(cores) < (os.cpu_count() or 1)
    return tuple(cores) if bound else core_share(cores, info.local_rank, info.local_ranks)
