"""Which worker works on which batches, so that each is learned from once an epoch whoever comes and goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Lease:
    """Batches `first` to `stop` of an epoch, in the hands of a worker; `first` moves on as they are done."""

    number: int
    peer: int
    epoch: int
    first: int
    stop: int
    deadline: float


class Leases:
    """Batches waiting, leased and done. Sizes shrink towards the end, so that all workers end together."""

    def __init__(
        self, batches: Callable[[int], int], epochs: int, *, most: int | None = None, least: int = 1, patience: float
    ) -> None:
        """`batches`: how many an epoch has; `most`: in all; `least`: in a lease; `patience`: seconds without progress
        after which a lease goes to somebody else."""
        self._batches, self._epochs, self._most, self._least, self._patience = batches, epochs, most, least, patience
        self._waiting: list[tuple[int, int, int]] = []
        self._begun = 0
        self._leased: dict[int, Lease] = {}
        self._done: dict[int, int] = {}
        self._numbers = 0
        self.returned = 0
        """Batches that came back because their worker was lost."""

    def take(self, peer: int, workers: int) -> Lease | None:
        """The next batches for one of so many workers, or None while there are none to give."""
        left = self._left()
        if not left:
            return None
        epoch, first, stop = self._waiting.pop(0)
        here = stop - first + sum(b - a for e, a, b in self._waiting if e == epoch)
        size = min(max(-(-here // (3 * workers)), self._least), stop - first, left)
        if first + size < stop:
            self._waiting.insert(0, (epoch, first + size, stop))
        self._numbers += 1
        lease = Lease(self._numbers, peer, epoch, first, first + size, time.monotonic() + self._patience)
        self._leased[lease.number] = lease
        return lease

    def holds(self, number: int, peer: int) -> bool:
        """Whether a lease is still this worker's."""
        return number in self._leased and self._leased[number].peer == peer

    def finish(self, number: int, count: int) -> None:
        """The next `count` batches of a lease are done."""
        lease = self._leased[number]
        lease.first += count
        lease.deadline = time.monotonic() + self._patience
        self._done[lease.epoch] = self._done.get(lease.epoch, 0) + count
        if lease.first == lease.stop:
            del self._leased[number]

    def give_back(self, peer: int) -> int:
        """What a worker had not done waits again; how many batches that are."""
        return self._return([lease for lease in self._leased.values() if lease.peer == peer])

    def expired(self) -> list[int]:
        """Workers that hold a lease and made no progress for too long."""
        now = time.monotonic()
        return sorted({lease.peer for lease in self._leased.values() if lease.deadline < now})

    @property
    def done(self) -> int:
        """Batches done in all."""
        return sum(self._done.values())

    @property
    def epochs_done(self) -> int:
        """Epochs of which all batches are done."""
        count = 0
        while self._done.get(count, 0) == self._batches(count) and count < self._epochs:
            count += 1
        return count

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return not self._leased and not self._left()

    def state(self) -> dict[str, Any]:
        """What a resumed training needs: a lease that is out waits again then."""
        out = [(lease.epoch, lease.first, lease.stop) for lease in self._leased.values()]
        return {"waiting": sorted([*out, *self._waiting]), "begun": self._begun, "done": list(self._done.items())}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from it."""
        self._waiting = [(int(e), int(a), int(b)) for e, a, b in state["waiting"]]
        self._begun, self._done, self._leased = int(state["begun"]), {int(e): int(n) for e, n in state["done"]}, {}

    def _left(self) -> int:
        """Batches that may be handed out now; the next epoch begins when the one before is all handed out."""
        out = sum(lease.stop - lease.first for lease in self._leased.values())
        most = 1 << 62 if self._most is None else self._most - self.done - out
        if not self._waiting and self._begun < self._epochs and most > 0:
            self._waiting.append((self._begun, 0, self._batches(self._begun)))
            self._begun += 1
        return min(most, sum(b - a for _, a, b in self._waiting))

    def _return(self, lost: list[Lease]) -> int:
        count = 0
        for lease in lost:
            del self._leased[lease.number]
            self._waiting.append((lease.epoch, lease.first, lease.stop))
            count += lease.stop - lease.first
        self._waiting.sort()
        self.returned += count
        return count
