"""Rank 0 and 1 of `mpiexec`: blocks of bare flat ping-pongs and of exchanges through clew's post, in turns."""

import json
import sys
import time

import numpy as np
import torch
from mpi4py import MPI

from clew.training.asynchronous.messaging.mpi import Mpi, library

SIZE, BLOCK = 1_244_060, 10
rounds = int(sys.argv[1])
world, apart, near = MPI.COMM_WORLD, Mpi(share=False), Mpi()
mine, theirs = torch.ones(SIZE), torch.ones(SIZE)
sent, room = mine.numpy(), theirs.numpy()


def bare() -> None:
    if world.rank:
        world.Send(sent, 0)
        world.Recv(room, 0)
    else:
        world.Recv(room, 1)
        world.Send(sent, 1)


def clew(post: Mpi, mine: torch.Tensor, land: torch.Tensor | None = None) -> None:
    if world.rank:
        post.landing = {} if land is None else {0: land}
        post.send(0, "push", {"done": [[1, 1]], "version": 3}, mine, lent=True)
        post.receive()
    else:
        message = post.receive()
        assert message is not None
        post.send(1, "weights", {"version": 4, "step": 5}, theirs)


lent, land = (near.room((torch.float32, SIZE)) for _ in range(2))
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
    print(json.dumps({"times": times, "library": library()}))
