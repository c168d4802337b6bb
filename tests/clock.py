"""A clock for tests of time limits."""

from __future__ import annotations


class Clock:
    """Stands for the module `time`: the tests set the seconds."""

    seconds = 0.0

    def time(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def perf_counter(self) -> float:
        return self.seconds
