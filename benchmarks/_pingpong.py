"""Rank 0 and 1 of `mpiexec`: blocks of bare flat ping-pongs and of exchanges through clew's transport, in turns."""

import json
import sys
import time

import numpy as np
import torch
from mpi4py import MPI

from clew.training.asynchronous.messaging.mpi import MpiTransport, mpi_library

SIZE, BLOCK = 1_244_060, 10
rounds = int(sys.argv[1])
world, apart, near = MPI.COMM_WORLD, MpiTransport(share_memory=False), MpiTransport()
mine, theirs = torch.ones(SIZE), torch.ones(SIZE)
sent, room = mine.numpy(), theirs.numpy()


def bare() -> None:
    if world.rank:
        world.Send(sent, 0)
        world.Recv(room, 0)
    else:
        world.Recv(room, 1)
        world.Send(sent, 1)


def clew(transport: MpiTransport, mine: torch.Tensor, land: torch.Tensor | None = None) -> None:
    if world.rank:
        transport.receive_buffers = {} if land is None else {0: land}
        transport.send(0, "push", {"done": [[1, 1]], "version": 3}, mine, stable=True)
        transport.receive()
    else:
        message = transport.receive()
        assert message is not None
        transport.send(1, "weights", {"version": 4, "step": 5}, theirs)


lent, land = (near.allocate((torch.float32, SIZE)) for _ in range(2))
times: dict[str, list[float]] = {"bare": [], "clew": [], "seen": [], "again": []}
works = {
    "bare": bare,
    "clew": lambda: clew(apart, mine),
    "seen": lambda: clew(near, lent, land),
    "again": bare,
}
order = np.random.default_rng(1)
for _ in range(rounds):
    for name in order.permutation(list(works)).tolist():
        world.Barrier()
        begun = time.perf_counter()
        for _ in range(BLOCK):
            works[name]()
        times[name].append((time.perf_counter() - begun) / BLOCK)
if world.rank == 0:
    print(json.dumps({"times": times, "library": mpi_library()}))
