"""Writes a timeline of what a rank does. `clew.runs.timeline` merges the files of all ranks for a viewer."""

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
"""A span in the format that `clew.runs.timeline` reads."""
_ALL_STEPS, _LATER_INTERVAL = 2000, 10
"""The first steps are all written; after them one step in ten, so that the file of a long run stays small."""
_FLUSH_SPANS = 4096


class TimelineWriter:
    """Collects spans of time. `add` is called in every step of a training, so it only appends a tuple."""

    def __init__(self, path: Path | None, *, behind: int = 0) -> None:
        """Open the file.

        Args:
            path: The file; None to write nothing.
            behind: Nanoseconds to add to the clock of this host to get the clock of rank 0.
        """
        self.live = path is not None
        """Whether spans of the current step are written."""
        self._step = 0
        self._spans: list[tuple[int, int, int, int, int]] = []
        self._main_thread = threading.get_ident()
        self._offset = time.time_ns() - time.perf_counter_ns() + behind
        self._file: IO[bytes] | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
            if not self._file.tell():
                self._file.write(MAGIC)
                self._file.flush()

    def begin_step(self, step: int) -> None:
        """Set the step to which the following spans belong."""
        self._step = step
        self.live = self._file is not None and (step < _ALL_STEPS or step % _LATER_INTERVAL == 0)
        if len(self._spans) > _FLUSH_SPANS:
            self.flush()

    def add(self, phase: int, start: int, end: int) -> None:
        """Add a span between two values of `time.perf_counter_ns`."""
        if self.live:
            other = threading.get_ident() != self._main_thread
            self._spans.append((phase, other, self._step, start, end - start))

    def step(self, times: tuple[int, int, int, int, int]) -> None:
        """Add a whole training step.

        Args:
            times: Its start, and the ends of forward, backward, communicate and optimise, in nanoseconds.
        """
        start, forward, backward, communicated, end = times
        step, spans = self._step, self._spans
        spans.append((FORWARD, 0, step, start, forward - start))
        spans.append((BACKWARD, 0, step, forward, backward - forward))
        if communicated > backward:
            spans.append((COMMUNICATE, 0, step, backward, communicated - backward))
        spans.append((OPTIMISE, 0, step, communicated, end - communicated))

    @contextmanager
    def span(self, phase: int) -> Iterator[None]:
        """Time the block. This is for what does not happen in every step: it is always written."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            if self._file is not None:
                other = threading.get_ident() != self._main_thread
                self._spans.append((phase, other, self._step, start, time.perf_counter_ns() - start))

    def flush(self) -> None:
        """Write the collected spans to the file."""
        if self._file is None:
            return
        spans, self._spans = self._spans, []
        pack, offset = _PACK.pack, self._offset
        self._file.write(
            b"".join(pack(p, t, s, start + offset, min(n // 100, 2**32 - 1)) for p, t, s, start, n in spans)
        )
        self._file.flush()

    def close(self) -> None:
        """Flush, and close the file."""
        if self._file is not None:
            self.flush()
            self._file.close()
            self._file = None
            self.live = False
