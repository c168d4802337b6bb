"""Sums tensors over ranks through memory that the ranks of one host share, instead of sending them.

Every rank writes its tensors into its own part of the memory. Then each rank of a host adds up one piece of all parts,
in the order of ranks, and copies the sums of all pieces back. With several hosts, the ranks at the same place of every
host add their pieces over the network before that, so each host sends every number once.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from clew.runs.environment import allowed_cores
from clew.training.asynchronous.messaging.shared_memory import (
    MemoryProbe,
    SharedLocation,
    SharedMemory,
    shared_memory_available,
)
from clew.training.strategies.host_barrier import HostBarrier, barrier_available, counter_words

Gather = Callable[[Any], list[Any]]
"""Returns the items of all ranks, on every rank."""
_PIECE = 16384
"""Numbers that are added together: few enough to stay in the cache of a core."""
_ALIGNMENT = 64
"""Bytes between which parts start, so that no two ranks write to one cache line."""


def host_name() -> str:
    """Return a name that is equal for processes that share memory and network: host, process and network namespaces."""
    return " ".join([socket.gethostname(), *(str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("pid", "net"))])


@dataclass(frozen=True)
class _Buffer:
    """One tensor per rank of this host, and their sum, in shared memory."""

    own: Tensor
    result: Tensor
    piece: Tensor
    """The piece of `result` that this rank computes. Empty if it computes none."""
    terms: list[tuple[Tensor, list[Tensor]]]
    """Parts of `piece`, with the tensors that are added up in each."""


class HostSum:
    """Sums over all ranks through shared memory. Every rank makes the same calls in the same order."""

    def __init__(self, rank: int, gather: Gather, host: str) -> None:
        """Connect to the ranks of the same host. `open_host_sum` calls this."""
        self._gather, self._shared = gather, SharedMemory()
        self._probe = MemoryProbe(self._shared)
        facts = gather([host, os.getpid(), self._probe.file, self._probe.pattern])
        hosts: dict[str, list[int]] = {}
        for number, (name, *_) in enumerate(facts):
            hosts.setdefault(name, []).append(number)
        self._members, self._processes = hosts[host], [fact[1] for fact in facts]
        self._place, self._leader = self._members.index(rank), self._members[0]
        self._owners = min(map(len, hosts.values()))
        """Ranks of each host that compute a piece, the same number on every host."""
        process, file, pattern = facts[self._leader][1:]
        visible = self._place == 0 or MemoryProbe.is_visible(self._shared, process, file, pattern)
        self.available = all(gather(visible)) and len(hosts) < len(facts)
        """Whether all ranks can open the memory, and some host has several ranks."""
        self._groups: list[Any] = []
        if self.available and len(hosts) > 1:
            self._groups = [dist.new_group([ranks[place] for ranks in hosts.values()]) for place in range(self._owners)]
        if self.available:
            self._barrier = self._make_barrier()

    def allocate(self, sizes: Sequence[tuple[torch.dtype, int]]) -> list[_Buffer]:
        """Allocate shared tensors of zeros. Every rank must call this with the same sizes."""
        steps = [_aligned(dtype.itemsize * size) for dtype, size in sizes]
        count = len(self._members)
        memory = self._open_segment((count + 1) * sum(steps))
        buffers, offset = [], 0
        for (dtype, size), step in zip(sizes, steps, strict=True):
            tensors = [memory[offset + n * step :][: dtype.itemsize * size].view(dtype) for n in range(count + 1)]
            buffers.append(self._buffer(tensors[:count], tensors[count]))
            offset += (count + 1) * step
        return buffers

    def sum(self, buffers: Sequence[_Buffer]) -> None:
        """Replace `own` of each buffer by its sum over all ranks.

        Nothing but the owner's calls change `own` until all ranks have read it, and `result` is not changed again
        before all ranks have copied it and called this for the next time. So two barriers are enough.

        Raises:
            WorkerError: Another rank has ended.
        """
        self._barrier.wait()
        for buffer in buffers:
            for target, (first, *others) in buffer.terms:
                target.copy_(first)
                for term in others:
                    target.add_(term)
        if self._groups and self._place < self._owners:
            group = self._groups[self._place]
            for work in [dist.all_reduce(b.piece, group=group, async_op=True) for b in buffers if b.piece.numel()]:
                work.wait()
        self._barrier.wait()
        for buffer in buffers:
            buffer.own.copy_(buffer.result)

    def _buffer(self, tensors: list[Tensor], result: Tensor) -> _Buffer:
        size, unit = len(result), _ALIGNMENT // result.element_size()
        bounds = [min(size, -(-size * place // self._owners // unit) * unit) for place in range(self._owners)] + [size]
        start, stop = bounds[self._place : self._place + 2] if self._place < self._owners else (size, size)
        terms = [
            (result[first:last], [tensor[first:last] for tensor in tensors])
            for first in range(start, stop, _PIECE)
            for last in [min(first + _PIECE, stop)]
        ]
        return _Buffer(tensors[self._place], result, result[start:stop], terms)

    def _make_barrier(self) -> HostBarrier:
        words = self._open_segment(4 * counter_words(len(self._members))).view(torch.int32)
        spin = len(self._members) * torch.get_num_threads() <= allowed_cores()
        processes = [self._processes[member] for member in self._members]
        return HostBarrier(words, self._place, processes, self._members, spin=spin)

    def _open_segment(self, size: int) -> Tensor:
        """Return memory that the ranks of this host share. The first of them allocates it."""
        shape, memory = (torch.uint8, max(size, 1)), None
        if self._place == 0:
            memory = self._shared.allocate(shape)
        location = self._gather(None if memory is None else self._shared.locate(memory))[self._leader]
        if memory is None:
            memory = self._shared.open(self._processes[self._leader], SharedLocation(*location), shape)
        self._gather(None)  # the memory of a rank that has ended cannot be opened
        return memory


def open_host_sum(rank: int, gather: Gather) -> HostSum | None:
    """Connect to the ranks of the same host.

    Args:
        rank: The rank of this process.
        gather: Returns the items of all ranks, on every rank.

    Returns:
        None if sums must be computed over the network: a rank cannot share memory, or every rank has its own host.
    """
    if not all(gather(shared_memory_available() and barrier_available())):
        return None
    host_sum = HostSum(rank, gather, host_name())
    return host_sum if host_sum.available else None


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
