"""Timelines of ranks: reading the spans that training recorded, their shares, and export to a viewer or a plot."""

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


def read_trace(path: Path) -> NDArray[Any]:
    """The spans of one rank. An incomplete span at the end is ignored.

    Raises:
        RunError: The file is not a trace.
    """
    return parse_trace(path.read_bytes(), path)


def parse_trace(data: bytes, name: object) -> NDArray[Any]:
    """Like `read_trace`, from the content of a file called `name`."""
    if not data.startswith(MAGIC):
        raise RunError(f"{name}: not a trace of clew")
    count = (len(data) - len(MAGIC)) // SPAN.itemsize
    return np.frombuffer(data, dtype=SPAN, count=count, offset=len(MAGIC))


def traces(run: Run) -> dict[int, NDArray[Any]]:
    """The spans by rank.

    Raises:
        RunError: No rank has recorded spans.
    """
    files = sorted(run.trace_folder.glob("rank-*.trace"), key=lambda path: int(path.stem.split("-")[1]))
    spans_by_rank = {int(path.stem.split("-")[1]): read_trace(path) for path in files}
    if not any(len(spans) for spans in spans_by_rank.values()):
        raise RunError(f"{run.path}: no trace; it was trained with train.trace=false, or ended before its first step")
    return spans_by_rank


def phase_shares(spans: NDArray[Any]) -> dict[str, float]:
    """The fraction of the recorded steps' time that each phase took on the main thread; `other` is the rest."""
    main = spans[spans["thread"] == 0]
    ends = main["start"] + main["length"].astype(np.uint64) * np.uint64(100)
    # only recorded steps count, each from its first span to its last
    covered = _step_seconds(main, ends)
    seconds = {name: float(main["length"][main["phase"] == i].sum()) / 1e7 for i, name in enumerate(PHASES)}
    total = max(covered, sum(seconds.values()), 1e-9)
    shares = {name: value / total for name, value in seconds.items() if value}
    return {**shares, "other": max(0.0, 1 - sum(shares.values()))}


def _step_seconds(main: NDArray[Any], ends: NDArray[np.uint64]) -> float:
    """Total seconds of the recorded steps."""
    if not len(main):
        return 0.0
    order = np.argsort(main["step"], kind="stable")
    step, start, end = main["step"][order], main["start"][order], ends[order]
    first = np.flatnonzero(np.concatenate([[True], step[1:] != step[:-1]]))
    lengths = np.maximum.reduceat(end, first) - np.minimum.reduceat(start, first)
    return float(lengths.sum()) / 1e9


def write_chrome(run: Run, path: Path) -> int:
    """Write a file for chrome://tracing or ui.perfetto.dev with all ranks on one clock. Returns the number of spans."""
    ranks = traces(run)
    zero = min(int(spans["start"].min()) for spans in ranks.values() if len(spans))
    count = 0
    with path.open("w") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        file.write(json.dumps({"name": "run", "ph": "M", "pid": 0, "args": {"name": run.name}}))
        for rank, spans in ranks.items():
            for thread, title in enumerate(("loop", "loader")):
                thread_entry = {"name": "thread_name", "ph": "M", "pid": rank, "tid": thread, "args": {"name": title}}
                file.write(",\n" + json.dumps(thread_entry))
            name = {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}}
            file.write(",\n" + json.dumps(name))
            for phase, thread, step, start, length in spans.tolist():
                start_us = (start - zero) / 1e3
                file.write(
                    f',\n{{"name":"{PHASES[phase]}","cat":"clew","ph":"X","pid":{rank},"tid":{thread},"ts":{start_us:.1f},'
                    f'"dur":{length / 10:.1f},"args":{{"step":{step}}}}}'
                )
            count += len(spans)
        file.write("\n]}\n")
    return count


def plot(run: Run, *, steps: int = 12) -> Figure:
    """The timeline of a few recorded steps in the middle of the run, one row per rank."""
    return timeline_figure(traces(run), steps=steps)


def timeline_figure(ranks: Mapping[int, NDArray[Any]], *, steps: int = 12) -> Figure:
    """Like `plot`, for spans by rank; at least one rank must have spans."""
    steps_recorded = np.unique(next(iter(ranks.values()))["step"])
    first = int(steps_recorded[min(len(steps_recorded) // 2, max(len(steps_recorded) - steps, 0))])
    chosen = {r: s[(s["step"] >= first) & (s["step"] < first + steps) & (s["thread"] == 0)] for r, s in ranks.items()}
    zero = min((int(spans["start"].min()) for spans in chosen.values() if len(spans)), default=0)
    bars = []
    for number, name in enumerate(PHASES):
        phase_spans = [
            (rank, span) for rank, spans in chosen.items() for span in spans[spans["phase"] == number].tolist()
        ]
        if phase_spans:
            bars.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": name,
                    "y": [f"rank {rank}" for rank, _ in phase_spans],
                    "base": [(span[3] - zero) / 1e6 for _, span in phase_spans],
                    "x": [span[4] / 1e4 for _, span in phase_spans],
                    "marker": {"color": COLOURS[number % len(COLOURS)]},
                    "hovertemplate": f"{name}, step %{{customdata}}: %{{x:.3f}} ms",
                    "customdata": [span[2] for _, span in phase_spans],
                }
            )
    title = f"Timeline of steps {first} to {first + steps - 1}"
    return figure(bars, title=title, x="milliseconds", barmode="overlay", bargap=0.3, yaxis={"autorange": "reversed"})
