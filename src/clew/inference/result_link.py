"""Sends results of all ranks to rank 0."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroupGloo

from clew.jobs.rank_info import RankInfo
from clew.training.message_codec import decode, encode

_PATIENCE = datetime.timedelta(minutes=60)
"""How long another rank may need for one unit."""


class ResultLink:
    """Messages between ranks. Nothing is pickled.

    It uses a separate process group, so that it does not interfere with one of the user.
    """

    def __init__(self, place: RankInfo, store: Store | None) -> None:
        self.rank, self.ranks = place.rank, place.ranks
        if store is not None:
            self._group: Any = ProcessGroupGloo(store, place.rank, place.ranks, _PATIENCE)

    def collect(self, results: Iterator[tuple[int, int, Any]]) -> Iterator[tuple[int, Any]]:
        """Yield the results of all ranks in the order of units, on rank 0.

        Other ranks send their results, each while the next one is computed.
        """
        pending: Callable[[], None] | None = None
        for number, count, result in results:
            holder = number % self.ranks
            if not self.rank:
                yield (count, result) if holder == 0 else self.receive(holder)
                continue
            if pending is not None:
                pending()
            pending = self.send((count, result), 0)
        if pending is not None:
            pending()

    def share(self, item: Any) -> Any:
        """Return the item of rank 0 on every rank."""
        if self.rank:
            return self.receive(0)
        for rank in range(1, self.ranks):
            self.send(item, rank)()
        return item

    def send(self, item: Any, rank: int) -> Callable[[], None]:
        """Start to send an item. The returned function waits until it has been received."""
        data = torch.frombuffer(encode(item), dtype=torch.uint8)
        parts = [torch.tensor([len(data)]), data]
        pending = [(self._group.send([part], rank, 0), part) for part in parts]  # a part must exist until it is sent

        def wait() -> None:
            for transfer, _ in pending:
                transfer.wait()

        return wait

    def receive(self, rank: int) -> Any:
        """Wait for an item of another rank."""
        length = torch.zeros(1, dtype=torch.int64)
        self._group.recv([length], rank, 0).wait()
        data = torch.empty(int(length), dtype=torch.uint8)
        self._group.recv([data], rank, 0).wait()
        return decode(data.numpy().data)
