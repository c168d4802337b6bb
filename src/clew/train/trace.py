"""A timeline of what every rank does: spans of time in a small binary file a rank, merged for a viewer afterwards."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from clew.errors import RunError
from clew.ledger import Run

PHASES = ("load", "read", "forward", "backward", "communicate", "optimise", "validate", "checkpoint", "record")
LOAD, READ, FORWARD, BACKWARD, COMMUNICATE, OPTIMISE, VALIDATE, CHECKPOINT, RECORD = range(len(PHASES))
_SPAN = np.dtype([("phase", "u1"), ("thread", "u1"), ("step", "<u4"), ("start", "<u8"), ("length", "<u4")])
"""Start in nanoseconds since 1970 by rank 0's clock, length in hundreds of nanoseconds."""
_PACK = struct.Struct("<BBIQI")
_MAGIC = b"clewtrc1"
_ALL, _THEN = 2000, 10
"""Steps of which every one is kept, and of which one is after that: a long run's trace stays small."""
_FLUSH = 4096


class Trace:
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
                self._file.write(_MAGIC)
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


def read(path: Path) -> NDArray[Any]:
    """The spans of one rank; what a crash cut off at the end is left out.

    Raises:
        RunError: it is no trace.
    """
    data = path.read_bytes()
    if not data.startswith(_MAGIC):
        raise RunError(f"{path}: not a trace of clew's")
    whole = (len(data) - len(_MAGIC)) // _SPAN.itemsize
    return np.frombuffer(data, dtype=_SPAN, count=whole, offset=len(_MAGIC))


def traces(run: Run) -> dict[int, NDArray[Any]]:
    """The spans of every rank that left some.

    Raises:
        RunError: none did.
    """
    files = sorted(run.trace_folder.glob("rank-*.trace"), key=lambda path: int(path.stem.split("-")[1]))
    found = {int(path.stem.split("-")[1]): read(path) for path in files}
    if not any(len(spans) for spans in found.values()):
        raise RunError(f"{run.path}: no trace; it was trained with train.trace=false, or ended before its first step")
    return found


def shares(spans: NDArray[Any]) -> dict[str, float]:
    """Of the time from the first span to the last, the part each phase took on the main thread; `other` is the rest."""
    main = spans[spans["thread"] == 0]
    ends = main["start"] + main["length"].astype(np.uint64) * np.uint64(100)
    # only the steps that were kept count, each from its own first span to its last
    kept = _covered(main, ends)
    seconds = {name: float(main["length"][main["phase"] == i].sum()) / 1e7 for i, name in enumerate(PHASES)}
    total = max(kept, sum(seconds.values()), 1e-9)
    found = {name: value / total for name, value in seconds.items() if value}
    return {**found, "other": max(0.0, 1 - sum(found.values()))}


def _covered(main: NDArray[Any], ends: NDArray[np.uint64]) -> float:
    """Seconds of the steps that were kept."""
    if not len(main):
        return 0.0
    order = np.argsort(main["step"], kind="stable")
    step, start, end = main["step"][order], main["start"][order], ends[order]
    first = np.flatnonzero(np.concatenate([[True], step[1:] != step[:-1]]))
    lengths = np.maximum.reduceat(end, first) - np.minimum.reduceat(start, first)
    return float(lengths.sum()) / 1e9


def write_chrome(run: Run, path: Path) -> int:
    """One file for chrome://tracing or ui.perfetto.dev with all ranks on one clock; the number of spans in it."""
    ranks = traces(run)
    zero = min(int(spans["start"].min()) for spans in ranks.values() if len(spans))
    count = 0
    with path.open("w") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        file.write(json.dumps({"name": "run", "ph": "M", "pid": 0, "args": {"name": run.name}}))
        for rank, spans in ranks.items():
            for thread, title in enumerate(("loop", "loader")):
                lane = {"name": "thread_name", "ph": "M", "pid": rank, "tid": thread, "args": {"name": title}}
                file.write(",\n" + json.dumps(lane))
            name = {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}}
            file.write(",\n" + json.dumps(name))
            for phase, thread, step, start, length in spans.tolist():
                begun = (start - zero) / 1e3
                file.write(
                    f',\n{{"name":"{PHASES[phase]}","cat":"clew","ph":"X","pid":{rank},"tid":{thread},"ts":{begun:.1f},'
                    f'"dur":{length / 10:.1f},"args":{{"step":{step}}}}}'
                )
            count += len(spans)
        file.write("\n]}\n")
    return count
