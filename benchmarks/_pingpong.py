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
worker_tensor, master_tensor = torch.ones(SIZE), torch.ones(SIZE)
send_buffer, receive_buffer = worker_tensor.numpy(), master_tensor.numpy()


def bare() -> None:
    if world.rank:
        world.Send(send_buffer, 0)
        world.Recv(receive_buffer, 0)
    else:
        world.Recv(receive_buffer, 1)
        world.Send(send_buffer, 1)


def clew(transport: MpiTransport, update: torch.Tensor, landing: torch.Tensor | None = None) -> None:
    if world.rank:
        transport.receive_buffers = {} if landing is None else {0: landing}
        transport.send(0, "push", {"done": [[1, 1]], "version": 3}, update, stable=True)
        transport.receive()
    else:
        message = transport.receive()
        assert message is not None
        transport.send(1, "weights", {"version": 4, "step": 5}, master_tensor)


shared_update, shared_landing = (near.allocate((torch.float32, SIZE)) for _ in range(2))
times: dict[str, list[float]] = {"bare": [], "clew": [], "seen": [], "again": []}
works = {
    "bare": bare,
    "clew": lambda: clew(apart, worker_tensor),
    "seen": lambda: clew(near, shared_update, shared_landing),
    "again": bare,
}
order = np.random.default_rng(1)
for _ in range(rounds):
    for name in order.permutation(list(works)).tolist():
        world.Barrier()
        start = time.perf_counter()
        for _ in range(BLOCK):
            works[name]()
        times[name].append((time.perf_counter() - start) / BLOCK)
if world.rank == 0:
    print(json.dumps({"times": times, "library": mpi_library()}))
