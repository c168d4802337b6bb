"""Which worker trains on which batches, so that each batch is used once per epoch although workers come and go."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class BatchLease:
    """Batches `first` to `stop` of an epoch, assigned to one worker; `first` advances as they are done."""

    number: int
    worker: int
    epoch: int
    first: int
    stop: int
    deadline: float


class BatchLeases:
    """The batches that wait, are leased, and are done. Leases get smaller towards the end of an epoch, so that all
    workers finish at about the same time."""

    def __init__(
        self,
        batches: Callable[[int], int],
        epochs: int,
        *,
        max_batches: int | None = None,
        min_lease: int = 1,
        timeout: float,
    ) -> None:
        """Make the leases of a training.

        Args:
            batches: Returns the number of batches of an epoch.
            epochs: Number of epochs.
            max_batches: Batches after which the training ends before its last epoch.
            min_lease: Fewest batches in a lease, while enough are left.
            timeout: Seconds without progress after which a lease expires.
        """
        self._batches, self._epochs, self._max_batches = batches, epochs, max_batches
        self._min_lease, self._timeout = min_lease, timeout
        self._waiting: list[tuple[int, int, int]] = []
        self._started_epochs = 0
        self._leased: dict[int, BatchLease] = {}
        self._done: dict[int, int] = {}
        self._last_number = 0
        self.returned = 0
        """Batches that were returned because their worker was lost or its update was refused."""

    def take(self, worker: int, workers: int) -> BatchLease | None:
        """Lease the next batches to one of `workers` workers, or return None while there are none."""
        available = self._available()
        if not available:
            return None
        epoch, first, stop = self._waiting.pop(0)
        in_epoch = stop - first + sum(b - a for e, a, b in self._waiting if e == epoch)
        size = min(max(-(-in_epoch // (3 * workers)), self._min_lease), stop - first, available)
        if first + size < stop:
            self._waiting.insert(0, (epoch, first + size, stop))
        self._last_number += 1
        lease = BatchLease(self._last_number, worker, epoch, first, first + size, time.monotonic() + self._timeout)
        self._leased[lease.number] = lease
        return lease

    def belongs_to(self, number: int, worker: int) -> bool:
        """Return whether a lease is still assigned to this worker."""
        return number in self._leased and self._leased[number].worker == worker

    def finish(self, number: int, count: int) -> None:
        """Mark the next `count` batches of a lease as done."""
        lease = self._leased[number]
        lease.first += count
        lease.deadline = time.monotonic() + self._timeout
        self._done[lease.epoch] = self._done.get(lease.epoch, 0) + count
        if lease.first == lease.stop:
            del self._leased[number]

    def give_back(self, worker: int) -> int:
        """Return the unfinished batches of a worker to the queue, and return how many they are."""
        return self._return([lease for lease in self._leased.values() if lease.worker == worker])

    def expired(self) -> list[int]:
        """Return the workers that hold a lease and made no progress for too long."""
        now = time.monotonic()
        return sorted({lease.worker for lease in self._leased.values() if lease.deadline < now})

    @property
    def done(self) -> int:
        """Batches done in total."""
        return sum(self._done.values())

    @property
    def epochs_done(self) -> int:
        """Epochs of which all batches are done."""
        count = 0
        while self._done.get(count, 0) == self._batches(count) and count < self._epochs:
            count += 1
        return count

    @property
    def finished(self) -> bool:
        """Whether all batches are done."""
        return not self._leased and not self._available()

    def state(self) -> dict[str, Any]:
        """Return what a resumed training needs. Batches that are leased now will wait again then."""
        leased = [(lease.epoch, lease.first, lease.stop) for lease in self._leased.values()]
        return {
            "waiting": sorted([*leased, *self._waiting]),
            "started_epochs": self._started_epochs,
            "done": list(self._done.items()),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._waiting = [(int(e), int(a), int(b)) for e, a, b in state["waiting"]]
        self._started_epochs = int(state["started_epochs"])
        self._done, self._leased = {int(e): int(n) for e, n in state["done"]}, {}

    def _available(self) -> int:
        """Batches that may be leased now. An epoch starts when all batches of the previous one are leased."""
        leased = sum(lease.stop - lease.first for lease in self._leased.values())
        limit = 1 << 62 if self._max_batches is None else self._max_batches - self.done - leased
        if not self._waiting and self._started_epochs < self._epochs and limit > 0:
            self._waiting.append((self._started_epochs, 0, self._batches(self._started_epochs)))
            self._started_epochs += 1
        return min(limit, sum(b - a for _, a, b in self._waiting))

    def _return(self, leases: list[BatchLease]) -> int:
        count = 0
        for lease in leases:
            del self._leased[lease.number]
            self._waiting.append((lease.epoch, lease.first, lease.stop))
            count += lease.stop - lease.first
        self._waiting.sort()
        self.returned += count
        return count
