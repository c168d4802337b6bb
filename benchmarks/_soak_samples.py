"""Samples of processes and of the machine during a soak, and the slopes of what must not grow."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

MEGABYTE = 1e6
Sample = dict[str, float]


class Sampler(threading.Thread):
    """Takes a sample every few seconds: `samples` has one row per sample, with the time in `seconds`."""

    def __init__(self, groups: Callable[[], dict[str, list[int]]], database_size: Callable[[], float]) -> None:
        """Take a function that returns process ids by name, and one that returns the size of the database in bytes."""
        super().__init__(daemon=True)
        self.samples: list[Sample] = []
        self.over = threading.Event()
        self._groups, self._database_size = groups, database_size
        self.begin = time.time()

    def run(self) -> None:
        while not self.over.wait(1.0):
            self.samples.append(self.sample())

    def sample(self) -> Sample:
        """Return one sample."""
        row: Sample = {"seconds": time.time() - self.begin, **machine_times()}
        row["database MB"] = self._database_size() / MEGABYTE
        for name, pids in self._groups().items():
            row |= {f"{name} {key}": value for key, value in usage(pids).items()}
        return row


def usage(pids: Iterable[int]) -> dict[str, float]:
    """Return memory, handles, threads, CPU time and time waited for a core, of processes and their children.

    Handles are counted twice: all of them, and `sockets`, which follow the clients and the connections to PostgreSQL.
    """
    total = dict.fromkeys(("processes", "MB", "handles", "sockets", "threads", "cpu s", "core wait s"), 0.0)
    for process in _with_children(pids):
        with contextlib.suppress(psutil.Error, OSError):
            times, wait = process.cpu_times(), core_wait(process.pid)
            values = {"processes": 1, "MB": process.memory_info().rss / MEGABYTE, **handles(process.pid)}
            values |= {"threads": process.num_threads(), "cpu s": times.user + times.system, "core wait s": wait}
            for key, value in values.items():
                total[key] += value
    return total


def handles(pid: int) -> dict[str, float]:
    """Return the open handles of a process, and how many of them are sockets."""
    kinds = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            kinds.append(str(path.readlink()))
    return {"handles": len(kinds), "sockets": sum(kind.startswith("socket:") for kind in kinds)}


def core_wait(pid: int) -> float:
    """Return for how many seconds all threads of a process were ready and waited for a core."""
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            total += int(path.read_text().split()[1])
    return total / 1e9


def machine_times() -> Sample:
    """Return the busy, waiting and stolen seconds of all cores since the machine started, and the load average."""
    times: Any = psutil.cpu_times()
    busy = sum(times) - times.idle - times.iowait
    steal, disk = getattr(times, "steal", 0.0), getattr(times, "iowait", 0.0)
    return {"busy s": busy, "steal s": steal, "disk wait s": disk, "load": os.getloadavg()[0]}


def growth(samples: list[Sample], key: str) -> tuple[float, float]:
    """Return the mean of a value and its growth, both over the last two thirds: a straight line through the samples."""
    rows = [(row["seconds"], row[key]) for row in samples[len(samples) // 3 :] if key in row]
    if len(rows) < 2:
        return (rows[0][1] if rows else 0.0), 0.0
    seconds, values = np.array(rows).T
    slope = float(np.polyfit(seconds, values, 1)[0])
    return float(values.mean()), slope * float(seconds[-1] - seconds[0])


def _with_children(pids: Iterable[int]) -> dict[psutil.Process, None]:
    processes: dict[psutil.Process, None] = {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            processes |= dict.fromkeys([process, *process.children(recursive=True)])
    return processes
