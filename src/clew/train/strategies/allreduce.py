"""Synchronous data parallelism: gradients are summed over all ranks before every step.

Gradients live in one flat buffer per optimiser, with a signal, the loss's total and its weight at the end: a single
all-reduce gives every rank the exact gradient of the global mean, however unevenly the batch was shared.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore

from clew import tally
from clew.recipe import Loss
from clew.tally import Tally

_PATIENCE = datetime.timedelta(minutes=30)


class AllReduce:
    """All-reduce over gloo."""

    def __init__(self, *, rank: int, ranks: int, meeting: str) -> None:
        self.rank, self.ranks, self.waited = rank, ranks, 0.0
        self.signal = self.heard = 0
        store = FileStore(meeting, ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=_PATIENCE)
        self._buffers: dict[str, Tensor] = {}

    def start(self, model: nn.Module) -> None:
        """Broadcast parameters and buffers from rank 0."""
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)

    def backward(self, losses: Mapping[str, Loss], parameters: Mapping[str, Sequence[nn.Parameter]]) -> Tensor:
        """Backward of each total into its flat buffer, one all-reduce each, one division."""
        sums = []
        for name, own in parameters.items():
            flat = self._buffer(name, own)
            flat.zero_()
            total, weight = losses[name]
            torch.autograd.backward(total, inputs=list(own), retain_graph=len(parameters) > 1)
            flat[-3], flat[-2], flat[-1] = self.signal, total.detach(), weight
            sums.append(self._reduce(flat))
        return torch.stack(sums)

    def gather(self, item: Any) -> list[Any]:
        """Everybody's, to everybody."""
        everyone: list[Any] = [None] * self.ranks
        dist.all_gather_object(everyone, item)
        return everyone

    def add(self, tallies: Mapping[str, Tally]) -> dict[str, Tally]:
        """Added in the order of ranks: the same bits everywhere."""
        return tally.add(self.gather(dict(tallies)))

    def close(self) -> None:
        """Leave together."""
        dist.barrier()
        dist.destroy_process_group()

    def _reduce(self, flat: Tensor) -> Tensor:
        begun = time.perf_counter()
        dist.all_reduce(flat)
        self.waited += time.perf_counter() - begun
        sums = flat[-2:].double()
        self.heard = int(flat[-3])
        flat[:-3].div_(torch.where(flat[-1] == 0, 1.0, flat[-1]))
        return sums

    def _buffer(self, name: str, own: Sequence[nn.Parameter]) -> Tensor:
        """The flat buffer whose pieces are these parameters' gradients."""
        if name not in self._buffers:
            first = own[0]
            size = sum(parameter.numel() for parameter in own)
            self._buffers[name] = torch.zeros(size + 3, dtype=first.dtype, device=first.device)
        flat, place = self._buffers[name], 0
        for parameter in own:
            piece = flat[place : place + parameter.numel()].view_as(parameter)
            if parameter.grad is None or parameter.grad.data_ptr() != piece.data_ptr():
                parameter.grad = piece
            place += parameter.numel()
        return flat
