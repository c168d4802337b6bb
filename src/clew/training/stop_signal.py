"""Being told to stop: signals and deadlines only raise a flag; the loop ends at the next safe point."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from clew.jobs.lease import Lease

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_GRACE = 60.0
"""Seconds before a batch system's end of the job at which a run stops by itself; a quarter of a short job."""


class StopSignal:
    """Watches for SIGTERM, SIGUSR1, the end of the time granted and, where the work is on lease, what is said there.

    Use as a context; signals only in a main thread.
    """

    def __init__(self, limit: float | None, lease: Lease | None = None) -> None:
        """`limit`: seconds from now, or None; Slurm's end of the job counts too."""
        self._lease = lease
        self._asked = False
        self._before: dict[int, Any] = {}
        now = time.time()
        ends = [now + limit] if limit is not None else []
        if os.environ.get("SLURM_JOB_END_TIME"):
            end = float(os.environ["SLURM_JOB_END_TIME"])
            ends.append(end - min(_GRACE, (end - now) / 4))
        self._end = min(ends, default=float("inf"))

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

    def ask(self) -> None:
        """Raise the flag."""
        self._asked = True

    @property
    def wanted(self) -> bool:
        """Whether it is time to stop."""
        return self._asked or time.time() >= self._end or bool(self.why)

    @property
    def why(self) -> str:
        """What the one who handed out the work says about it."""
        return self._lease.told if self._lease is not None else ""

    @property
    def lost(self) -> bool:
        """Whether the work belongs to another now: nothing may be written any more."""
        return self._lease is not None and self._lease.lost

    def beat(self) -> None:
        """Give a sign of life, and listen."""
        if self._lease is not None:
            self._lease.beat()
