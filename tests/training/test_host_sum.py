"""Sums through the memory of a host: right, in a fixed order, also between hosts, and no rank waits for a dead one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from clew.errors import WorkerError
from clew.jobs.local_workers import run_local
from clew.jobs.rank_info import open_store_at
from clew.training.strategies import ProcessGroupStrategy
from clew.training.strategies.allreduce import GradientBuckets
from clew.training.strategies.host_barrier import HostBarrier, counter_words
from clew.training.strategies.host_sum import HostSum, open_host_sum

pytestmark = pytest.mark.timeout(120)

PRELOAD = ["torch._dynamo", "torch.distributed", "clew.training.loop"]
SIZES = (1, 63, 40_000)


def connect(folder: Path, rank: int, ranks: int) -> ProcessGroupStrategy:
    store = open_store_at(folder / "meeting", rank, ranks)
    return ProcessGroupStrategy(rank=rank, ranks=ranks, store=store, device=torch.device("cpu"))


def values(rank: int, size: int, step: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(1000 * step + 10 * rank + size))


def sum_repeatedly(folder: Path, hosts: str, rank: int, ranks: int) -> None:
    """Save the sums of two steps, and of the first step again."""
    strategy = connect(folder, rank, ranks)
    host_sum = HostSum(rank, strategy.gather, hosts[rank])
    assert host_sum.available
    buffers = host_sum.allocate([(torch.float32, size) for size in SIZES] + [(torch.float64, 3)])
    sums: dict[str, Any] = {}
    for number, step in enumerate((0, 1, 0)):
        for buffer, size in zip(buffers, SIZES, strict=False):
            buffer.own.copy_(values(rank, size, step))
        buffers[-1].own.fill_(rank)
        host_sum.sum(buffers)
        sums |= {f"{number}-{place}": buffer.own.numpy().copy() for place, buffer in enumerate(buffers)}
    np.savez(folder / f"{rank}.npz", **sums)
    strategy.close()


@pytest.mark.parametrize("hosts", ["aa", "aaaaa", "aabb", "abaab"])
def test_every_rank_gets_the_same_sum(tmp_path: Path, hosts: str) -> None:
    run_local(sum_repeatedly, (tmp_path, hosts), len(hosts), preload=PRELOAD)
    of_rank = [dict(np.load(tmp_path / f"{rank}.npz")) for rank in range(len(hosts))]
    for sums in of_rank:
        assert all((sums[name] == of_rank[0][name]).all() for name in sums), "ranks differ"
        assert all((sums[f"0-{place}"] == sums[f"2-{place}"]).all() for place in range(4)), "a repetition differs"
        assert (sums["0-3"] == sum(range(len(hosts)))).all()
    for place, size in enumerate(SIZES):
        exact = sum(values(rank, size, 1).double() for rank in range(len(hosts)))
        np.testing.assert_allclose(of_rank[0][f"1-{place}"], exact, rtol=1e-5, atol=1e-5)


def test_one_host_adds_in_the_order_of_ranks(tmp_path: Path) -> None:
    run_local(sum_repeatedly, (tmp_path, "aaa"), 3, preload=PRELOAD)
    in_order = (values(0, 40_000, 0) + values(1, 40_000, 0)) + values(2, 40_000, 0)
    assert (np.load(tmp_path / "1.npz")["0-2"] == in_order.numpy()).all()


def average_gradients(folder: Path, rank: int, ranks: int) -> None:
    """Save the gradients of a model of several buckets and two types, summed in memory and over the network."""
    strategy = connect(folder, rank, ranks)
    torch.manual_seed(0)
    model = nn.ParameterList([torch.randn(n) for n in (5, 600_000, 7)] + [torch.randn(9, dtype=torch.float64)])
    for name, host_sum in (("memory", open_host_sum(rank, strategy.gather)), ("network", None)):
        assert (host_sum is None) == (name == "network")
        buckets = GradientBuckets(list(model), None, host_sum)
        for last in (False, True):
            total = sum(((rank + 1) * parameter.square()).sum() for parameter in model)
            assert isinstance(total, torch.Tensor)
            buckets.begin(total.detach(), 2.0 * rank, last=last)
            torch.autograd.backward(total)
        signals = buckets.finish(3)
        gradients = {str(n): parameter.grad.numpy() for n, parameter in enumerate(model) if parameter.grad is not None}
        np.savez(folder / f"{name}-{rank}.npz", **gradients, signals=signals.numpy())
    strategy.close()


def test_gradients_are_those_of_a_sum_over_the_network(tmp_path: Path) -> None:
    run_local(average_gradients, (tmp_path,), 2, preload=PRELOAD)
    for rank in range(2):
        memory, network = (dict(np.load(tmp_path / f"{name}-{rank}.npz")) for name in ("memory", "network"))
        assert memory.keys() == network.keys() and len(memory) == 5
        for name, array in memory.items():
            np.testing.assert_allclose(array, network[name], rtol=1e-6)


@pytest.mark.parametrize("reaped", [True, False])
def test_no_rank_waits_for_a_killed_one(reaped: bool) -> None:
    """Also if its parent has not asked for its exit code yet."""
    with subprocess.Popen(["sleep", "1000"]) as other:
        other.kill()
        if reaped:
            other.wait()
        words = torch.zeros(counter_words(2), dtype=torch.int32)
        barrier = HostBarrier(words, 0, [os.getpid(), other.pid], [4, 7], spin=False)
        with pytest.raises(WorkerError, match=r"^rank 7 has ended while other ranks wait for it$"):
            barrier.wait()


def test_a_rank_that_has_arrived_may_end() -> None:
    with subprocess.Popen(["true"]) as other:
        other.wait()
    words = torch.zeros(counter_words(2), dtype=torch.int32)
    words.view(2, -1)[0, 0] = 1
    HostBarrier(words, 1, [other.pid, os.getpid()], [0, 1], spin=True).wait()
    assert words.view(2, -1)[:, 0].tolist() == [1, 1]
