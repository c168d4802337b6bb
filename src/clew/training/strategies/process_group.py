"""Ranks in a process group of torch: what all strategies over collectives have in common."""

from __future__ import annotations

import datetime
import socket
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import Store

from clew import metrics
from clew.metrics import Metric
from clew.training.strategies.base import Strategy

_PATIENCE = datetime.timedelta(minutes=30)
SIGNALS = 4
"""Numbers sent beside gradients: rank 0's order, ranks that must stop, the loss's total and its weight."""


def _shared(store: Store, rank: int, ranks: int, device: torch.device) -> bool:
    """Whether two ranks of a host have the same device, as where there are more workers than devices."""
    store.set(f"device-{rank}", f"{socket.gethostname()} {device}")
    return len({store.get(f"device-{each}") for each in range(ranks)}) < ranks


class ProcessGroupStrategy(Strategy):
    """Broadcast, gather, average: gloo for tensors in memory, the device's own library for those on a device."""

    def __init__(self, *, rank: int, ranks: int, store: Store, device: torch.device) -> None:
        super().__init__(rank=rank, ranks=ranks)
        self.device, self.crowded = device, False
        """`crowded`: some ranks have one device together."""
        backend = "gloo"
        if device.type != "cpu":
            torch.accelerator.set_device_index(device)
            self.crowded = _shared(store, rank, ranks, device)
            if not self.crowded:  # the device's own library wants one for each rank
                backend = f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=_PATIENCE)
        self._told: Tensor = torch.zeros(SIGNALS)

    def place(self, model: nn.Module) -> nn.Module:
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)
        return model

    def heard(self) -> tuple[int, bool]:
        order, alarms = self._told[:2].tolist()
        return int(order), alarms > 0

    def agree(self, model: nn.Module) -> None:
        for tensor in (buffer for _, buffer in sorted(model.named_buffers())):
            if tensor.is_floating_point():
                dist.all_reduce(tensor)
                tensor /= self.ranks
            else:
                dist.broadcast(tensor, 0)

    def behind(self) -> int:
        """Nanoseconds by which rank 0's clock is ahead of this one's; clocks of one host are one."""
        dist.barrier()
        seen = self.gather((socket.gethostname(), time.time_ns()))
        return 0 if seen[self.rank][0] == seen[0][0] else seen[0][1] - seen[self.rank][1]

    def gather(self, item: Any) -> list[Any]:
        everyone: list[Any] = [None] * self.ranks
        dist.all_gather_object(everyone, item, group=None)
        return everyone

    def add(self, tallies: Mapping[str, Metric]) -> dict[str, Metric]:
        return metrics.add_metrics(self.gather(dict(tallies)))  # in the order of ranks: the same bits everywhere

    def close(self) -> None:
        dist.barrier()
        dist.destroy_process_group()

    def tell(self, tail: Tensor) -> None:
        """Write this rank's order and alarm into the numbers that travel with a loss."""
        tail[0], tail[1] = float(self.order if self.rank == 0 else 0), float(self.alarm)

    def timed(self, work: Any) -> None:
        """Wait for a collective, on the clock."""
        begun = time.perf_counter()
        work.wait()
        self.waited += time.perf_counter() - begun
