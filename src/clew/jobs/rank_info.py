"""The rank of this process among the processes that were started together, and how these ranks find each other.

`torchrun`, `mpiexec` (MPICH, Intel MPI, Open MPI) and `srun` start the same command several times and set the ranks in
the environment. clew recognises which of them it was.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from clew.core.private_files import private_folder, read_private, write_private
from clew.errors import RunError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_PATIENCE = 120.0
"""Seconds to wait for the other ranks."""
_DAEMONS = ("hydra_pmi_proxy", "hydra_bstrap_proxy", "prted", "orted", "prterun", "mpiexec", "mpirun", "slurmstepd")
"""Processes that start the ranks of one host, by name."""
_NAMES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    "mpiexec (Open MPI)": tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    "mpiexec (hydra)": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
}
"""Variables of rank and ranks, and of the same on this host. torchrun is first: the others may have started it."""
_stores = itertools.count()


@dataclass(frozen=True)
class RankInfo:
    """The rank of a process; a single process is rank 0 of 1."""

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    local_ranks: int = 1
    launcher: str = ""


def current_rank(environment: Mapping[str, str] | None = None) -> RankInfo:
    """The rank of this process by the variables of its launcher.

    Args:
        environment: The variables; None: those of this process.
    """
    variables = os.environ if environment is None else environment
    places = []
    for launcher, (rank, ranks, local_rank, local_ranks) in _NAMES.items():
        if rank in variables and ranks in variables and (launcher != "srun" or "SLURM_STEP_ID" in variables):
            local = variables.get(local_ranks, variables[ranks]).split("(")[0].split(",")[0]  # Slurm writes 2(x3),1
            local_number = int(variables.get(local_rank, 0))
            places.append(RankInfo(int(variables[rank]), int(variables[ranks]), local_number, int(local), launcher))
    if len(places) > 1 and _is_copy(places[0], places[1], variables):
        return places[1]
    return places[0] if places else RankInfo()


def _is_copy(first: RankInfo, second: RankInfo, variables: Mapping[str, str]) -> bool:
    """Whether the variables of torchrun are those that clew gave a script (`script_ranks`), not torchrun itself.

    Ranks of another launcher meet by a file of the user. The store of torchrun is open to all users.
    """
    same = (first.rank, first.ranks) == (second.rank, second.ranks)
    return first.launcher == "torchrun" and "TORCHELASTIC_RUN_ID" not in variables and same


def open_rank_store(place: RankInfo, folder: Path) -> Store:
    """A store through which all ranks exchange messages; `folder` is one that all of them see.

    Raises:
        RunError: the other ranks did not come, or another user has made a file in their place.
    """
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    if place.launcher == "torchrun":
        store, _, _ = next(iter(rendezvous("env://", place.rank, place.ranks)))
        return PrefixStore(f"clew-{next(_stores)}", store)  # the launcher's store outlives a training
    one_host = place.local_ranks == place.ranks
    file = (private_folder() if one_host else folder) / f".clew-meeting-{os.getuid()}-{_key(place, one_host)}"
    return open_store_at(file, place.rank, place.ranks, "127.0.0.1" if one_host else os.uname().nodename)


def meeting_address(place: RankInfo, folder: Path) -> tuple[str, int]:
    """A host and a port of rank 0, which all ranks agree on; `folder` is one that all of them see.

    Returns:
        The name or address of the host, and a port of it that is free now.

    Raises:
        RunError: rank 0 did not come, or another user has made a file in its place.
    """
    one_host = place.local_ranks == place.ranks
    file = (private_folder() if one_host else folder) / f".clew-address-{os.getuid()}-{_key(place, one_host)}"
    if place.rank:
        host, port = _read(file)
        return host, int(port)
    host = "127.0.0.1" if one_host else os.uname().nodename
    with socket.create_server((host, 0)) as probe:
        address = host, int(probe.getsockname()[1])
    write_private(file, f"{address[0]} {address[1]}")
    return address


def open_store_at(file: Path, rank: int, ranks: int, host: str = "127.0.0.1") -> Store:
    """The same by a file that does not exist yet, with rank 0 on `host`.

    A file of another user is refused: its address would be that of a process of that user.

    The messages are not in the file itself, as in torch's FileStore: there a rank that waits takes the lock so often
    that the writing rank may never get it (observed with two ranks on a busy machine).

    Raises:
        RunError: rank 0 did not come, or the file belongs to another user.
    """
    from torch._C._distributed_c10d import TCPStore

    if rank:
        address, port = _read(file)
        client = TCPStore(address, int(port), ranks, is_master=False)
        client.add("arrived", 1)
        return client
    with socket.create_server((host, 0)) as listener:  # torch itself would listen on all interfaces
        port = listener.getsockname()[1]
        descriptor = listener.detach()
    served = TCPStore(host, port, ranks, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)
    write_private(file, f"{host} {served.port}")
    _gather(served, ranks)
    file.unlink(missing_ok=True)
    return served


def _gather(store: Store, ranks: int) -> None:
    """Wait until all ranks have read the file, so that it can be removed; torch waits for late ranks."""
    end = time.monotonic() + _PATIENCE
    while store.add("arrived", 0) < ranks - 1 and time.monotonic() < end:
        time.sleep(0.02)


def _read(file: Path) -> list[str]:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError):
            return read_private(file).split()
        time.sleep(0.02)
    raise RunError(f"rank 0 did not write {file} in {_PATIENCE:.0f} s")


def _key(place: RankInfo, one_host: bool) -> str:
    """A text that all ranks of one job, and of no other, have in common.

    Raises:
        RunError: there is none.
    """
    variables = os.environ
    if one_host:
        parents = psutil.Process().parents()
        starter = next((each for each in parents if each.name() in _DAEMONS), parents[0])
        return f"{starter.pid}-{starter.create_time():.0f}"
    for name in ("PMIX_NAMESPACE", "SLURM_JOB_ID"):
        if name in variables:
            # a requeued job has its old number
            part = f"{variables.get('SLURM_STEP_ID', '')}-{variables.get('SLURM_RESTART_COUNT', '0')}"
            return f"{variables[name]}-{part}".replace("/", "_")
    raise RunError(
        f"{place.launcher} over several hosts gives its ranks no common name; start them by srun or torchrun"
    )
