"""Reading what ranks did when: the spans that training left, as shares, as a file for a viewer, as a plot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.errors import RunError
from clew.figure import COLOURS, Figure, figure
from clew.runs.folder import Run

PHASES = ("load", "read", "forward", "backward", "communicate", "optimise", "validate", "checkpoint")
SPAN = np.dtype([("phase", "u1"), ("thread", "u1"), ("step", "<u4"), ("start", "<u8"), ("length", "<u4")])
"""Start in nanoseconds since 1970 by rank 0's clock, length in hundreds of nanoseconds."""
MAGIC = b"clewtrc1"


def read(path: Path) -> NDArray[Any]:
    """The spans of one rank; what a crash cut off at the end is left out.

    Raises:
        RunError: it is no trace.
    """
    return parsed(path.read_bytes(), path)


def parsed(data: bytes, name: object) -> NDArray[Any]:
    """The same of the content of a file of that name."""
    if not data.startswith(MAGIC):
        raise RunError(f"{name}: not a trace of clew's")
    whole = (len(data) - len(MAGIC)) // SPAN.itemsize
    return np.frombuffer(data, dtype=SPAN, count=whole, offset=len(MAGIC))


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


def plot(run: Run, *, steps: int = 12) -> Figure:
    """The timeline of a few steps in the middle of what was kept, a lane a rank."""
    return drawn(traces(run), steps=steps)


def drawn(ranks: Mapping[int, NDArray[Any]], *, steps: int = 12) -> Figure:
    """The same of spans that were read already; there must be some."""
    known = np.unique(next(iter(ranks.values()))["step"])
    first = int(known[min(len(known) // 2, max(len(known) - steps, 0))])
    chosen = {r: s[(s["step"] >= first) & (s["step"] < first + steps) & (s["thread"] == 0)] for r, s in ranks.items()}
    zero = min((int(spans["start"].min()) for spans in chosen.values() if len(spans)), default=0)
    bars = []
    for number, name in enumerate(PHASES):
        found = [(rank, span) for rank, spans in chosen.items() for span in spans[spans["phase"] == number].tolist()]
        if found:
            bars.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": name,
                    "y": [f"rank {rank}" for rank, _ in found],
                    "base": [(span[3] - zero) / 1e6 for _, span in found],
                    "x": [span[4] / 1e4 for _, span in found],
                    "marker": {"color": COLOURS[number % len(COLOURS)]},
                    "hovertemplate": f"{name}, step %{{customdata}}: %{{x:.3f}} ms",
                    "customdata": [span[2] for _, span in found],
                }
            )
    title = f"Timeline of steps {first} to {first + steps - 1}"
    return figure(bars, title=title, x="milliseconds", barmode="overlay", bargap=0.3, yaxis={"autorange": "reversed"})
