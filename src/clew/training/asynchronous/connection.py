"""How the processes that a launcher started reach each other: over MPI or over TCP."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from clew.errors import ConfigError
from clew.jobs.rank_info import RankInfo
from clew.training.asynchronous.layout import COORDINATOR, Roles
from clew.training.asynchronous.messaging import MessageTransport
from clew.training.asynchronous.messaging.join_token import load_or_make_token, read_token
from clew.training.asynchronous.messaging.tcp import TcpClient, TcpServer, TcpServerAndClient
from clew.training.config import TrainConfig


def connect_rank(
    config: TrainConfig, rank_info: RankInfo, roles: Roles, store: Any, token_file: Path, max_bytes: int
) -> MessageTransport:
    """Connect this rank to the others.

    Args:
        config: The settings; `asynchronous.comm` chooses MPI or TCP.
        rank_info: The rank of this process.
        roles: Which rank has which role.
        store: Where masters publish their addresses (TCP).
        token_file: Where the coordinator writes the keys of all ranks (TCP): other users may read the store.
        max_bytes: The largest message, in bytes.

    Raises:
        ConfigError: MPI is required and does not connect all ranks.
    """
    if _uses_mpi(config, rank_info):
        from clew.training.asynchronous.messaging.mpi import MpiTransport

        return MpiTransport()
    one_host = rank_info.local_ranks == rank_info.ranks
    host = "127.0.0.1" if one_host else socket.gethostname()
    masters = [*roles.masters, *roles.group_masters]
    server: TcpServer | None = None
    if rank_info.rank == COORDINATOR:
        load_or_make_token(token_file)
        store.set("token", "written")
    store.wait(["token"])
    token = read_token(token_file)
    if rank_info.rank in masters:
        server = TcpServer(f"{host}:0", token=token, number=rank_info.rank, max_bytes=max_bytes)
        store.set(f"master-{rank_info.rank}", server.address)
        if rank_info.rank == COORDINATOR:
            return server
    client = TcpClient(number=rank_info.rank)
    for master in masters if server is None else [COORDINATOR]:
        address = store.get(f"master-{master}").decode()
        client.connect(master, address, token)
        if master == COORDINATOR and server is None:
            client.start_heartbeat(address, token)
    return client if server is None else TcpServerAndClient(server, client)


def _uses_mpi(config: TrainConfig, rank_info: RankInfo) -> bool:
    comm = config.asynchronous.comm
    if comm == "tcp":
        return False
    if comm == "auto" and not _started_with_mpi(rank_info):
        return False
    try:
        from mpi4py import MPI
    except ImportError:
        if comm == "mpi":
            raise
        return False
    connected = int(MPI.COMM_WORLD.size)
    if comm == "mpi" and connected != rank_info.ranks:
        hint = "start them with mpiexec, or with srun and the PMI of the site (`mpi` in its profile)"
        count = f"{connected} of {rank_info.ranks} ranks"
        raise ConfigError(f"train.asynchronous.comm is mpi, but MPI connects {count}; {hint}")
    return connected == rank_info.ranks


def _started_with_mpi(rank_info: RankInfo) -> bool:
    """Return whether the launcher prepared MPI. Without that, some MPI libraries end the process."""
    if rank_info.launcher == "srun":
        return any(name in os.environ for name in ("PMIX_RANK", "PMI_RANK", "PMI_FD"))
    return rank_info.launcher.startswith("mpiexec")
