"""A barrier for the processes of one host, which sleep while they wait.

Each process has a counter in shared memory that only it changes. A process waits for another one by a futex on the
other's counter: the kernel wakes it when the counter changes, so waiting takes no processor time even if there are many
more processes than cores. There are no locks. A process that is killed therefore leaves nothing behind that would block
the others, which notice its end and raise an error.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from clew.errors import WorkerError

_WORDS = 16
"""Numbers (int32) between two counters: each has a cache line of its own."""
_FUTEX_SYSCALL, _WAIT, _WAKE, _ALL = 202, 0, 1, 2**31 - 1
"""The futex call of Linux on x86-64, and its operations."""
_SPIN_SECONDS, _CHECK_SECONDS, _LIMIT_SECONDS = 50e-6, 0.5, 1800.0
"""How long to look at a counter before sleeping, to sleep before checking that the other process lives, and in all."""


def barrier_available() -> bool:
    """Return whether this system has the futex call, and a processor on which writes become visible in their order."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and sys.maxsize > 2**32


def counter_words(processes: int) -> int:
    """Return how many numbers (int32) of shared memory a barrier needs."""
    return _WORDS * processes


class HostBarrier:
    """Makes the processes of one host wait for each other.

    Args:
        words: Shared memory of `counter_words(len(processes))` numbers (int32), which are 0 at first.
        position: Position of this process in `processes`.
        processes: The process numbers.
        ranks: The rank of each process, for messages.
        spin: Whether to look at a counter for a moment before sleeping. Only sensible if each process has a core.
    """

    def __init__(
        self, words: Tensor, position: int, processes: Sequence[int], ranks: Sequence[int], *, spin: bool
    ) -> None:
        self._counters = words.numpy()[::_WORDS]
        self._words, self._position = words, position
        self._processes, self._ranks = list(processes), list(ranks)
        self._others = [(position + step) % len(processes) for step in range(1, len(processes))]
        self._spin_seconds = _SPIN_SECONDS if spin else 0.0
        self._count = 0
        self._futex = ctypes.CDLL(None, use_errno=True).syscall
        self._pause = _Timespec(0, int(_CHECK_SECONDS * 1e9))

    def wait(self) -> None:
        """Return when every process has called this as often as this one.

        Raises:
            WorkerError: A process has ended, or did not come within half an hour.
        """
        self._count += 1
        self._counters[self._position] = self._count
        self._call(self._position, _WAKE, _ALL)
        for other in self._others:
            if self._counters[other] < self._count:
                self._wait_for(other)

    def _wait_for(self, other: int) -> None:
        start = time.perf_counter()
        while (count := int(self._counters[other])) < self._count:
            waited = time.perf_counter() - start
            if waited < self._spin_seconds:
                continue
            self._call(other, _WAIT, count)
            if waited > _CHECK_SECONDS and not _is_alive(self._processes[other]):
                if self._counters[other] >= self._count:  # it came here before it ended
                    return
                raise WorkerError(f"rank {self._ranks[other]} has ended while other ranks wait for it")
            if waited > _LIMIT_SECONDS:
                raise WorkerError(f"rank {self._ranks[other]} did not answer for {_LIMIT_SECONDS / 60:g} minutes")

    def _call(self, position: int, operation: int, value: int) -> None:
        """Wake the processes that wait for a counter, or sleep until it is no longer `value`."""
        address = self._words.data_ptr() + 4 * _WORDS * position
        pause = ctypes.byref(self._pause) if operation == _WAIT else None
        self._futex(_FUTEX_SYSCALL, ctypes.c_void_p(address), operation, ctypes.c_int(value), pause, None, 0)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _is_alive(process: int) -> bool:
    """Whether a process exists and is more than an entry that its parent has not removed yet."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return False
    return state not in ("Z", "X")
