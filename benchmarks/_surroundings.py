"""What else the machine does during a benchmark: other work, tasks that wait for a core, time stolen by a host."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

_STAT = Path("/proc/stat")
_EVERY = 0.5
"""Seconds between two samples of the run queue."""
QUIET = 0.25
"""Cores of other work above which a figure that needs a quiet machine says little."""


class Surroundings:
    """Samples the machine within a `with` block. On systems without /proc/stat nothing is reported.

    Example:
        with Surroundings() as around:
            work()
        print(around.report())
    """

    def __enter__(self) -> Surroundings:
        self._over, self._queue = threading.Event(), list[int]()
        self._before, self._start = _counters(), time.monotonic()
        self._own = _own_seconds()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self._seconds = time.monotonic() - self._start
        after, own = _counters(), _own_seconds() - self._own
        passed = {key: value - self._before[key] for key, value in after.items()}
        self._stolen = passed.get("steal", 0.0)
        self._others = max(0.0, passed.get("busy", 0.0) - own) / self._seconds

    def report(self) -> dict[str, Any]:
        """Cores busy with other work, runnable tasks (median and 90th percentile), share of stolen time, samples."""
        if not self._queue:
            return {}
        middle, high = np.percentile(self._queue, [50, 90])
        return {
            "other_work_cores": round(self._others, 2),
            "runnable_tasks": {"median": float(middle), "p90": float(high)},
            "steal": round(self._stolen / self._seconds / (os.cpu_count() or 1), 4),
            "samples": len(self._queue),
            "quiet": self._others < QUIET,
        }

    def text(self) -> str:
        """The report as one line."""
        facts = self.report()
        if not facts:
            return "other work on this machine: not known"
        queue, word = facts["runnable_tasks"], "quiet" if facts["quiet"] else "BUSY"
        return (
            f"machine {word}: other work {facts['other_work_cores']:.2f} cores, runnable tasks {queue['median']:.0f} "
            f"(90%: {queue['p90']:.0f}), stolen {facts['steal']:.1%}"
        )

    def _sample(self) -> None:
        while not self._over.wait(_EVERY):
            if _STAT.exists():
                self._queue.append(_runnable())


def _runnable() -> int:
    lines = _STAT.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("procs_running"))


def _counters() -> dict[str, float]:
    """Seconds of all cores since the start: busy, and stolen by the host of a virtual machine."""
    if not _STAT.exists():
        return {}
    user, nice, system, _, _, irq, soft, steal, *_ = map(int, _STAT.read_text().split("\n", 1)[0].split()[1:])
    hertz = os.sysconf("SC_CLK_TCK")
    return {"busy": (user + nice + system + irq + soft) / hertz, "steal": steal / hertz}


def _own_seconds() -> float:
    """Processor seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
