"""Ranks in a process group of torch: what all strategies that use collectives have in common."""

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
from clew.training.message_codec import decode, encode
from clew.training.strategies.base import Strategy

_TIMEOUT = datetime.timedelta(minutes=30)
SIGNALS = 4
"""Numbers that are sent with the gradients: the command of rank 0, the number of ranks that must stop, the total of the
loss and its weight."""


def _device_is_shared(store: Store, rank: int, ranks: int, device: torch.device) -> bool:
    """Whether two ranks of one host use the same device: there are more workers than devices."""
    store.set(f"device-{rank}", f"{socket.gethostname()} {device}")
    return len({store.get(f"device-{other}") for other in range(ranks)}) < ranks


def gather_items(item: Any) -> list[Any]:
    """Return the items of all ranks of the process group, in the order of ranks, on every rank. Nothing is pickled."""
    data, ranks = torch.frombuffer(encode(item), dtype=torch.uint8), dist.get_world_size()
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks)]
    dist.all_gather(sizes, torch.tensor([len(data)]))
    longest = max(int(size) for size in sizes)
    parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(ranks)]
    dist.all_gather(parts, nn.functional.pad(data, (0, longest - len(data))))
    return [decode(part.numpy()[: int(size)].data) for part, size in zip(parts, sizes, strict=True)]


class ProcessGroupStrategy(Strategy):
    """Broadcast, gather and average. It uses gloo for tensors in memory, and the library of the device otherwise."""

    def __init__(self, *, rank: int, ranks: int, store: Store, device: torch.device) -> None:
        super().__init__(rank=rank, ranks=ranks)
        self.device = device
        self.shares_device = False
        """Whether several ranks use one device."""
        backend = "gloo"
        if device.type != "cpu":
            torch.accelerator.set_device_index(device)
            self.shares_device = _device_is_shared(store, rank, ranks, device)
            if not self.shares_device:  # the library of the device needs one device per rank
                backend = f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=_TIMEOUT)
        self._signals: Tensor = torch.zeros(SIGNALS)

    def distribute(self, model: nn.Module) -> nn.Module:
        """Copy the weights of rank 0 to all ranks."""
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)
        return model

    def received_signals(self) -> tuple[int, bool]:
        command, stopping = self._signals[:2].tolist()
        return int(command), stopping > 0

    def average_buffers(self, model: nn.Module) -> None:
        for tensor in (buffer for _, buffer in sorted(model.named_buffers())):
            if tensor.is_floating_point():
                dist.all_reduce(tensor)
                tensor /= self.ranks
            else:
                dist.broadcast(tensor, 0)

    def clock_offset(self) -> int:
        """Compare the clocks after a barrier. Ranks of one host have the same clock."""
        dist.barrier()
        clocks = self.gather((socket.gethostname(), time.time_ns()))
        return 0 if clocks[self.rank][0] == clocks[0][0] else clocks[0][1] - clocks[self.rank][1]

    def gather(self, item: Any) -> list[Any]:
        return gather_items(item)

    def sum_metrics(self, metrics_of_rank: Mapping[str, Metric]) -> dict[str, Metric]:
        return metrics.add_metrics(
            self.gather(dict(metrics_of_rank))
        )  # in the order of ranks: the same bits everywhere

    def close(self) -> None:
        dist.barrier()
        dist.destroy_process_group()

    def write_signals(self, signals: Tensor) -> None:
        """Write the command and the stop request of this rank into the numbers that are sent with a loss."""
        signals[0], signals[1] = float(self.command if self.rank == 0 else 0), float(self.stop_requested)
