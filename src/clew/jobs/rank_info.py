"""Where a process stands among those that were started with it, and how they find each other.

`torchrun`, `mpiexec` (MPICH, Intel MPI, Open MPI) and `srun` start the same command many times and say in the
environment who is who; nobody has to tell clew which of them it was.
"""

from __future__ import annotations

import itertools
import os
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from clew.core.files import write_text
from clew.errors import RunError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_PATIENCE = 120.0
"""Seconds to wait for the others to come to the meeting place."""
_DAEMONS = ("hydra_pmi_proxy", "hydra_bstrap_proxy", "prted", "orted", "prterun", "mpiexec", "mpirun", "slurmstepd")
"""Processes that start the ranks of one host, by name."""
_NAMES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    "mpiexec (Open MPI)": tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    "mpiexec (hydra)": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
}
"""Rank, ranks, and the same on this host. torchrun comes first: it may itself be started by the others."""


_meetings = itertools.count()


@dataclass(frozen=True)
class RankInfo:
    """A process among its peers; alone unless a launcher says otherwise."""

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    local_ranks: int = 1
    launcher: str = ""


def current_rank(environment: Mapping[str, str] | None = None) -> RankInfo:
    """The place that the environment tells of."""
    told = os.environ if environment is None else environment
    for launcher, (rank, ranks, local_rank, local_ranks) in _NAMES.items():
        if rank in told and ranks in told and (launcher != "srun" or "SLURM_STEP_ID" in told):
            local = told.get(local_ranks, told[ranks]).split("(")[0].split(",")[0]  # Slurm writes 2(x3),1
            return RankInfo(int(told[rank]), int(told[ranks]), int(told.get(local_rank, 0)), int(local), launcher)
    return RankInfo()


def meet(place: RankInfo, folder: Path) -> Store:
    """Where all ranks can leave each other notes; `folder` is one that all of them see.

    Raises:
        RunError: the others did not come.
    """
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    if place.launcher == "torchrun":
        store, _, _ = next(iter(rendezvous("env://", place.rank, place.ranks)))
        return PrefixStore(f"clew-{next(_meetings)}", store)  # the launcher's store outlives a training
    alone = place.local_ranks == place.ranks  # on one host
    file = (Path(tempfile.gettempdir()) if alone else folder) / f".clew-meeting-{os.getuid()}-{_key(place, alone)}"
    return meet_at(file, place.rank, place.ranks, "127.0.0.1" if alone else os.uname().nodename)


def meet_at(file: Path, rank: int, ranks: int, host: str = "127.0.0.1") -> Store:
    """The same at a file that is not there yet, with rank 0 on `host`.

    The notes are not left in the file itself, as torch's FileStore would: who waits for a note there takes the lock so
    often that who has it may never get to write it (seen with two ranks on a busy machine).

    Raises:
        RunError: rank 0 did not come.
    """
    from torch._C._distributed_c10d import TCPStore

    if rank:
        where, port = _read(file)
        joined = TCPStore(where, int(port), ranks, is_master=False)
        joined.add("arrived", 1)
        return joined
    with socket.create_server((host, 0)) as heard:  # torch by itself would listen to all the world
        port = heard.getsockname()[1]
        listens = heard.detach()
    served = TCPStore(host, port, ranks, is_master=True, wait_for_workers=False, master_listen_fd=listens)
    write_text(file, f"{host} {served.port}")
    _gather(served, ranks)
    file.unlink(missing_ok=True)
    return served


def _gather(store: Store, ranks: int) -> None:
    """The meeting file may go once everybody has read it; who is late is waited for elsewhere."""
    end = time.monotonic() + _PATIENCE
    while store.add("arrived", 0) < ranks - 1 and time.monotonic() < end:
        time.sleep(0.02)


def _read(file: Path) -> list[str]:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        if file.exists():
            return file.read_text().split()
        time.sleep(0.02)
    raise RunError(f"rank 0 did not come to the meeting place {file} in {_PATIENCE:.0f} s")


def _key(place: RankInfo, alone: bool) -> str:
    """What all ranks of one job, and of no other, have in common.

    Raises:
        RunError: there is nothing.
    """
    told = os.environ
    if alone:
        parents = psutil.Process().parents()
        starter = next((each for each in parents if each.name() in _DAEMONS), parents[0])
        return f"{starter.pid}-{starter.create_time():.0f}"
    for name in ("PMIX_NAMESPACE", "SLURM_JOB_ID"):
        if name in told:
            # a job that was requeued has its old number
            part = f"{told.get('SLURM_STEP_ID', '')}-{told.get('SLURM_RESTART_COUNT', '0')}"
            return f"{told[name]}-{part}".replace("/", "_")
    raise RunError(
        f"{place.launcher} over several hosts gives its ranks no common name; start them by srun or torchrun"
    )
