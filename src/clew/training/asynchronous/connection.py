"""How the processes that a launcher started reach each other: over MPI or over TCP."""

from __future__ import annotations

import os
import socket
from typing import Any

from clew.errors import ConfigError
from clew.jobs.rank_info import RankInfo
from clew.training.asynchronous.layout import COORDINATOR, Roles
from clew.training.asynchronous.messaging import Transport
from clew.training.asynchronous.messaging.tcp import JoinToken, TcpClient, TcpServer, TcpServerAndClient
from clew.training.config import TrainConfig


def connect_rank(config: TrainConfig, place: RankInfo, roles: Roles, store: Any) -> Transport:
    """Connect this rank to the others.

    Args:
        config: The settings; `asynchronous.comm` chooses MPI or TCP.
        place: The rank of this process.
        roles: Which rank has which role.
        store: Where masters publish their addresses and tokens (TCP).

    Raises:
        ConfigError: MPI is required and does not connect all ranks.
    """
    if _uses_mpi(config, place):
        from clew.training.asynchronous.messaging.mpi import MpiTransport

        return MpiTransport()
    one_host = place.local_ranks == place.ranks
    host = "127.0.0.1" if one_host else socket.gethostname()
    masters = [*roles.masters, *roles.group_masters]
    server: TcpServer | None = None
    if place.rank in masters:
        token = JoinToken.new(encrypted=not one_host)
        server = TcpServer(f"{host}:0", token=token, number=place.rank)
        store.set(f"master-{place.rank}", f"{server.address} {token}")
        if place.rank == COORDINATOR:
            return server
    client = TcpClient(number=place.rank)
    for master in masters if server is None else [COORDINATOR]:
        address, text = store.get(f"master-{master}").decode().split()
        client.connect(master, address, JoinToken.parse(text))
        if master == COORDINATOR and server is None:
            client.start_heartbeat(address, JoinToken.parse(text))
    return client if server is None else TcpServerAndClient(server, client)


def _uses_mpi(config: TrainConfig, place: RankInfo) -> bool:
    comm = config.asynchronous.comm
    if comm == "tcp":
        return False
    if comm == "auto" and not _started_with_mpi(place):
        return False
    try:
        from mpi4py import MPI
    except ImportError:
        if comm == "mpi":
            raise
        return False
    connected = int(MPI.COMM_WORLD.size)
    if comm == "mpi" and connected != place.ranks:
        hint = "start them with mpiexec, or with srun and the PMI of the site (`mpi` in its profile)"
        count = f"{connected} of {place.ranks} ranks"
        raise ConfigError(f"train.asynchronous.comm is mpi, but MPI connects {count}; {hint}")
    return connected == place.ranks


def _started_with_mpi(place: RankInfo) -> bool:
    """Return whether the launcher prepared MPI. Without that, some MPI libraries end the process."""
    if place.launcher == "srun":
        return any(name in os.environ for name in ("PMIX_RANK", "PMI_RANK", "PMI_FD"))
    return place.launcher.startswith("mpiexec")
