"""Results on their way to rank 0."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroupGloo

from clew.jobs.rank_info import RankInfo

_PATIENCE = datetime.timedelta(minutes=60)
"""How long another rank may be at one unit."""


class ResultLink:
    """What ranks send each other: a process group of its own, beside any the user may have."""

    def __init__(self, place: RankInfo, store: Store | None) -> None:
        self.rank, self.ranks = place.rank, place.ranks
        if store is not None:
            self._group: Any = ProcessGroupGloo(store, place.rank, place.ranks, _PATIENCE)

    def collected(self, results: Iterator[tuple[int, int, Any]]) -> Iterator[tuple[int, Any]]:
        """On rank 0 the results of all ranks in the order of units; elsewhere they are sent there, each while the next
        is worked on."""
        under_way: Callable[[], None] | None = None
        for number, count, result in results:
            holder = number % self.ranks
            if not self.rank:
                yield (count, result) if holder == 0 else self.receive(holder)
                continue
            if under_way is not None:
                under_way()
            under_way = self.send((count, result), 0)
        if under_way is not None:
            under_way()

    def share(self, item: Any) -> Any:
        """What rank 0 has, on every rank."""
        if self.rank:
            return self.receive(0)
        for rank in range(1, self.ranks):
            self.send(item, rank)()
        return item

    def send(self, item: Any, rank: int) -> Callable[[], None]:
        """Begins to send; what it returns waits until the other has it."""
        data = torch.frombuffer(bytearray(pickle.dumps(item, pickle.HIGHEST_PROTOCOL)), dtype=torch.uint8)
        parts = [torch.tensor([len(data)]), data]
        under_way = [(self._group.send([part], rank, 0), part) for part in parts]  # a part must live until it is sent

        def wait() -> None:
            for each, _ in under_way:
                each.wait()

        return wait

    def receive(self, rank: int) -> Any:
        """Waits for it."""
        length = torch.zeros(1, dtype=torch.int64)
        self._group.recv([length], rank, 0).wait()
        data = torch.empty(int(length), dtype=torch.uint8)
        self._group.recv([data], rank, 0).wait()
        return pickle.loads(data.numpy().tobytes())
