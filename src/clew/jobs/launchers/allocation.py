"""Jobs on the processes of one allocation (`mpiexec -n 9`, `srun -n 9`): rank 0 hands out, the others form blocks.

Every rank of a block starts a process of its own that takes part in the job as it would under torchrun: a job that dies
takes no rank with it. Notes are left in the store where all ranks met; ends are files in the job's folder.
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

from clew.jobs.launchers.launcher import JobState, LaunchedJob, Slot, core_share
from clew.jobs.launchers.local import LocalLauncher, exit_file
from clew.jobs.launchers.ranks import ended, environment, folder_of, free_port
from clew.jobs.launchers.warm import fork, ready
from clew.jobs.rank_info import RankInfo

_PAUSE = 0.05
_PATIENCE = 120.0
"""Seconds to wait for the other ranks of a block."""
_OVER = "over"


class BlockLauncher:
    """The side of rank 0: a launcher whose jobs go to blocks of `size` ranks. Not more jobs at a time than blocks."""

    def __init__(self, store: Any, ranks: int, size: int) -> None:
        self._store, self.size, self.count = store, size, (ranks - 1) // size
        self._jobs: list[LaunchedJob | None] = [None] * self.count
        self._given = [0] * self.count

    def start(self, arguments: Sequence[str], *, folder: Path, room: Slot | None = None) -> LaunchedJob:
        block = next(
            n for n, job in enumerate(self._jobs) if job is None or self.state(job) not in ("running", "waiting")
        )
        folder.mkdir(parents=True)
        note = {"arguments": list(arguments), "folder": str(folder.absolute())}
        name = f"{block}:{self._given[block]}"
        self._store.set(f"work-{name}", json.dumps(note))
        self._given[block] += 1
        self._jobs[block] = job = LaunchedJob("blocks", name, str(folder))
        return job

    def state(self, job: LaunchedJob) -> JobState:
        return ended(Path(job.folder), self.size) or "running"

    def stop(self, job: LaunchedJob) -> None:
        self._store.set(f"stop-{job.id}", "")

    def kill(self, job: LaunchedJob) -> None:
        self._store.set(f"kill-{job.id}", "")

    def dismiss(self) -> None:
        """Let the other ranks go home."""
        self._store.set(_OVER, "")


def serve(place: RankInfo, store: Any, size: int, recipe: str) -> None:
    """The side of every other rank: do the jobs of one's block until rank 0 says that it is over, or is gone."""
    block, rank = divmod(place.rank - 1, size)
    if block >= (place.ranks - 1) // size:
        return  # left over
    ready(recipe)
    member = _Member(place, store, block, rank, size)
    number = 0
    with contextlib.suppress(RuntimeError):  # rank 0, who kept the store, is gone
        while not store.check([_OVER]):
            if store.check([f"work-{block}:{number}"]):
                member.work(f"{block}:{number}")
                number += 1
            time.sleep(_PAUSE)


class _Member:
    """One rank of a block."""

    def __init__(self, place: RankInfo, store: Any, block: int, rank: int, size: int) -> None:
        self.store, self.rank, self.size = store, rank, size
        self._launcher = LocalLauncher()
        self._cores = _own_cores(place)
        store.set(f"host-{block}-{rank}", socket.gethostname())
        self.block = block

    def work(self, name: str) -> None:
        """Take part in a job, to its end."""
        note = json.loads(self.store.get(f"work-{name}"))
        job = fork(
            note["arguments"],
            folder=folder_of(Path(note["folder"]), self.rank),
            cores=self._cores,
            environment=self._environment(name),
        )
        told = set[str]()
        while self._launcher.state(job) == "running":
            for order, act in (("stop", self._launcher.stop), ("kill", self._launcher.kill)):
                if order not in told and self.store.check([f"{order}-{name}"]):
                    told.add(order)
                    act(job)
            time.sleep(_PAUSE)
        if not exit_file(Path(job.folder)).exists():
            exit_file(Path(job.folder)).write_text("-9")  # its keeper was killed too

    def _hosts(self) -> list[str]:
        return [self.store.get(f"host-{self.block}-{each}").decode() for each in range(self.size)]

    def _environment(self, name: str) -> dict[str, str]:
        """What torchrun would say."""
        if self.size == 1:
            return {}
        if self.rank == 0:
            self.store.set(f"port-{name}", f"{_address(self._hosts())} {free_port()}")
        address, port = self.store.get(f"port-{name}").decode().split()
        hosts = self._hosts()
        here = [each for each, host in enumerate(hosts) if host == hosts[self.rank]]
        return environment(self.rank, self.size, here.index(self.rank), len(here), address, int(port))


def _address(hosts: Sequence[str]) -> str:
    return "127.0.0.1" if len(set(hosts)) == 1 else hosts[0]


def _own_cores(place: RankInfo) -> tuple[int, ...]:
    """This rank's share of its host, unless whoever started it has bound it already."""
    if not hasattr(os, "sched_getaffinity"):
        return ()
    cores = sorted(os.sched_getaffinity(0))
    bound = len(cores) < (os.cpu_count() or 1)
    return tuple(cores) if bound else core_share(cores, place.local_rank, place.local_ranks)
