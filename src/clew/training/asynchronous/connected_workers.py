"""The workers that are connected to the coordinator, and what each has done."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass
class ConnectedWorker:
    """One worker as the coordinator sees it. Times are in seconds."""

    host: str = ""
    batches: int = 0
    samples: int = 0
    seconds: float = 0.0
    wait: float = 0.0
    communicate: float = 0.0
    idle: bool = True
    version: int = 0
    """The version of the central weights that it trains with."""
    state: Tensor | None = None
    """The last state it sent."""
    state_requested: bool = False
    """Whether it still has to send its state."""
    restore: Tensor | None = None
    """A state of an earlier worker that it should continue from."""
    bad_updates: int = 0
    """Updates that were not finite."""

    def add_report(self, report: Mapping[str, Any]) -> None:
        """Add what the worker reports to have done since its last report."""
        self.batches += sum(count for _, count in report["done"])
        self.samples += report["samples"]
        self.seconds += report["seconds"]
        self.wait += report["wait"]
        self.communicate += report["communicate"]

    def summary(self) -> dict[str, Any]:
        """Return the totals for the records."""
        times = {"seconds": self.seconds, "wait": self.wait, "communicate": self.communicate}
        return {"host": self.host, "batches": self.batches, "samples": self.samples} | {
            name: round(value, 3) for name, value in times.items()
        }


class ConnectedWorkers(dict[int, ConnectedWorker]):
    """The connected workers by number, and those that have left."""

    def __init__(self) -> None:
        super().__init__()
        self.departed: dict[int, ConnectedWorker] = {}

    def remove(self, number: int) -> ConnectedWorker | None:
        """Remove a worker that has left, and return it; None if it was not connected."""
        worker = self.pop(number, None)
        if worker is not None:
            self.departed[number] = worker
        return worker

    def busy(self) -> list[int]:
        """Return the workers that hold a lease."""
        return [number for number, worker in self.items() if not worker.idle]

    def silent(self, last_heartbeat: Mapping[int, float], seconds: float) -> list[int]:
        """Return the workers whose last heartbeat is longer ago than `seconds`."""
        now = time.monotonic()
        return [number for number in self if now - last_heartbeat.get(number, 0.0) > seconds]

    def request_states(self) -> None:
        """Mark every worker to be asked for its state."""
        for worker in self.values():
            worker.state_requested = True

    @property
    def all_states_sent(self) -> bool:
        """Whether no requested state is missing."""
        return not any(worker.state_requested for worker in self.values())

    def states(self) -> list[Tensor]:
        """Return the last state of each worker that has sent one."""
        return [worker.state for worker in self.values() if worker.state is not None]

    def summaries(self) -> dict[str, Any]:
        """Return the totals of all workers by number, departed ones included, for the records."""
        return {str(number): worker.summary() for number, worker in sorted({**self.departed, **self}.items())}
