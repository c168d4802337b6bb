"""A timeline of what every rank does: spans of time in a small binary file a rank, merged for a viewer afterwards."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from clew.runs.timeline import MAGIC, PHASES

LOAD, READ, FORWARD, BACKWARD, COMMUNICATE, OPTIMISE, VALIDATE, CHECKPOINT = range(len(PHASES))
_PACK = struct.Struct("<BBIQI")
"""A span as `clew.runs.timeline` reads it."""
_ALL, _THEN = 2000, 10
"""Steps of which every one is kept, and of which one is after that: a long run's trace stays small."""
_FLUSH = 4096


class TimelineWriter:
    """Collects spans. `add` is meant for every step of a training: it appends a tuple, and little else."""

    def __init__(self, path: Path | None, *, behind: int = 0) -> None:
        """`path` None collects nothing; `behind`: nanoseconds to add to this host's clock to get rank 0's."""
        self.live = path is not None
        self._step = 0
        self._spans: list[tuple[int, int, int, int, int]] = []
        self._main = threading.get_ident()
        self._offset = time.time_ns() - time.perf_counter_ns() + behind
        self._file: IO[bytes] | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
            if not self._file.tell():
                self._file.write(MAGIC)
                self._file.flush()

    def begin_step(self, step: int) -> None:
        """Which step the spans from now on belong to."""
        self._step = step
        self.live = self._file is not None and (step < _ALL or step % _THEN == 0)
        if len(self._spans) > _FLUSH:
            self.flush()

    def add(self, phase: int, start: int, end: int) -> None:
        """A span between two readings of `time.perf_counter_ns`."""
        if self.live:
            other = threading.get_ident() != self._main
            self._spans.append((phase, other, self._step, start, end - start))

    def step(self, times: tuple[int, int, int, int, int]) -> None:
        """A training step at once: when it began, and the ends of forward, backward, communicate and optimise."""
        begun, forward, backward, talked, ended = times
        step, spans = self._step, self._spans
        spans.append((FORWARD, 0, step, begun, forward - begun))
        spans.append((BACKWARD, 0, step, forward, backward - forward))
        if talked > backward:
            spans.append((COMMUNICATE, 0, step, backward, talked - backward))
        spans.append((OPTIMISE, 0, step, talked, ended - talked))

    @contextmanager
    def span(self, phase: int) -> Iterator[None]:
        """For what does not happen every step: always kept."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            if self._file is not None:
                other = threading.get_ident() != self._main
                self._spans.append((phase, other, self._step, start, time.perf_counter_ns() - start))

    def flush(self) -> None:
        """Write down what was collected."""
        if self._file is None:
            return
        spans, self._spans = self._spans, []
        pack, offset = _PACK.pack, self._offset
        self._file.write(
            b"".join(pack(p, t, s, begun + offset, min(n // 100, 2**32 - 1)) for p, t, s, begun, n in spans)
        )
        self._file.flush()

    def close(self) -> None:
        """Flush and give the file back."""
        if self._file is not None:
            self.flush()
            self._file.close()
            self._file = None
            self.live = False
