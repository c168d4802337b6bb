"""Requests to stop a training: signals and deadlines set a flag, and the loop ends at the next safe point."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from clew.errors import InterruptError, StoppedError
from clew.jobs.lease import Lease
from clew.jobs.worker_process import FORWARDED_INTERRUPT, announce_interrupt

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_GRACE = 60.0
"""Seconds before the end of a batch job at which a run stops by itself; at most a quarter of the remaining time."""


class StopSignal:
    """Watches for SIGTERM, SIGUSR1, Ctrl-C, the end of the allowed time and, if there is one, requests made through a
    lease.

    The first Ctrl-C asks the run to stop at the next step, with a checkpoint; the second one interrupts at once. Before
    the first step there is nothing to save, and Ctrl-C interrupts at once. Use it as a context manager. Signals are
    handled only in the main thread.
    """

    def __init__(self, limit: float | None, lease: Lease | None = None) -> None:
        """Compute the deadline.

        Args:
            limit: Seconds from now until the run must stop, or None. The end of a Slurm job is respected as well.
            lease: The lease under which the run was assigned to this process, if any.
        """
        self._lease = lease
        self._requested = False
        self.interrupted = False
        """Whether Ctrl-C was pressed."""
        self.can_save = False
        """Whether steps are being made, so that a checkpoint can be written. The training sets it."""
        self._previous_handlers: dict[int, Any] = {}
        now = time.time()
        deadlines = [now + limit] if limit is not None else []
        if os.environ.get("SLURM_JOB_END_TIME"):
            job_end = float(os.environ["SLURM_JOB_END_TIME"])
            deadlines.append(job_end - min(_GRACE, (job_end - now) / 4))
        self._deadline = min(deadlines, default=float("inf"))

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            self._previous_handlers = {number: signal.signal(number, self._handle) for number in SIGNALS}
            # a worker ignores SIGINT, which a terminal sends to all processes: its parent forwards another signal
            interrupts = [FORWARDED_INTERRUPT]
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                interrupts.append(signal.SIGINT)
            self._previous_handlers |= {number: signal.signal(number, self._interrupt) for number in interrupts}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._requested = True

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted or not self.can_save:
            raise KeyboardInterrupt
        self.interrupted = self._requested = True
        if number == signal.SIGINT:
            announce_interrupt()

    def request(self) -> None:
        """Ask the run to stop."""
        self._requested = True

    @property
    def requested(self) -> bool:
        """Whether the run must stop."""
        return self._requested or time.time() >= self._deadline or bool(self.reason)

    @property
    def reason(self) -> str:
        """Why the run must stop: Ctrl-C, or the reason that the owner of the lease gave; empty if it gave none."""
        if self.interrupted:
            return "Ctrl-C"
        return self._lease.stop_reason if self._lease is not None else ""

    def stopped_error(self, step: int, run: Path) -> StoppedError:
        """Return the error that ends a training which was asked to stop.

        Args:
            step: The step of the checkpoint.
            run: The folder of the run.
        """
        resume = f"resume with: clew train --resume {run}"
        if self.interrupted:
            return InterruptError(f"interrupted (Ctrl-C) at step {step}; {resume}")
        reason = f" ({self.reason})" if self.reason else ""
        return StoppedError(f"stopped at step {step}{reason}; {resume}")

    @property
    def lease_lost(self) -> bool:
        """Whether the run belongs to another process now. Then nothing may be written any more."""
        return self._lease is not None and self._lease.lost

    def renew_lease(self, *, now: bool = False) -> None:
        """Show that this process is alive, and read what the owner of the lease has written.

        Args:
            now: Do it even if it was done a moment ago.
        """
        if self._lease is not None:
            self._lease.beat(now=now)
