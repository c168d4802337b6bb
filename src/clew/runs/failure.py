"""How a run that did not end well came to its end, from what its ranks wrote last."""

from __future__ import annotations

import heapq
import itertools
import json
from dataclasses import dataclass
from typing import Any

from clew.runs.folder import Run
from clew.runs.records import Record

_LAST = 20
_LONGEST = 300
_SILENT = "it ended without a word: killed, out of memory, or the machine went down"


@dataclass(frozen=True)
class Line:
    """One record in words; `seconds` since the run was last begun."""

    seconds: float
    rank: int
    kind: str
    words: str


@dataclass(frozen=True)
class Story:
    """What is known of an unhappy end: facts by name, and the last records of all ranks, oldest first."""

    message: str
    facts: dict[str, str]
    last: list[Line]


def story(run: Run) -> Story | None:
    """That of a run which failed or was interrupted; None for any other."""
    state, end = run.state, run.end()
    if state not in ("failed", "interrupted"):
        return None
    lines = last_records(run)
    return Story(str(end["message"]) if end and end["message"] else _SILENT, _facts(run), lines)


def last_records(run: Run, count: int = _LAST) -> list[Line]:
    """The newest records of all ranks in words, oldest first."""
    start = run.last("start", run.main_stream)
    begun = float(start["time"]) if start else 0.0
    newest = [
        (float(record["time"]), int(stream[5:]), record["seq"], record)
        for stream in run.streams()
        for record in itertools.islice(run.reversed_records(stream), count)
    ]
    chosen = sorted(heapq.nlargest(count, newest, key=lambda each: each[:3]), key=lambda each: each[:3])
    return [Line(time - begun, rank, record["kind"], words(record)) for time, rank, _, record in chosen]


def _facts(run: Run) -> dict[str, str]:
    failures, step = run.failures(), run.last("step", run.main_stream)
    silent = [stream[5:] for stream in run.streams() if _is_silent(run, stream)]
    kept = [path.name for path in sorted(run.path.glob("bad-batch-*.h5"))]
    states = run.states()
    found = {
        "failed first": f"rank {failures[0]['rank']}" if failures else "",
        "ended without a word": ", ".join(f"rank {number}" for number in silent),
        "no records of": ", ".join(f"rank {number}" for number in run.missing_ranks()),
        "last step recorded": words(step) if step else "none",
        "samples of the bad step": ", ".join(kept),
        "go on from": f"{states[-1].name}, with: clew train --resume {run.path}" if states else "",
        "log of its job": str(run.job_folder) if run.job_folder.is_dir() else "",
    }
    return {name: value for name, value in found.items() if value}


def _is_silent(run: Run, stream: str) -> bool:
    newest = next(run.reversed_records(stream, ("start", "end")), None)
    return newest is not None and newest["kind"] == "start"


def words(record: Record) -> str:
    """A record for people. Kinds that are not known here are shown as they are."""
    tell = _WORDS.get(record["kind"])
    text = tell(record) if tell else json.dumps({k: v for k, v in record.items() if k not in ("seq", "time", "kind")})
    line = " ".join(str(text).split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _numbers(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {'–' if value is None else format(value, '.4g')}" for name, value in values.items())


_WORDS: dict[str, Any] = {
    "start": lambda r: f"process {r['pid']} on {r['host']}, rank {r['rank']} of {r['ranks']}",
    "plan": lambda r: f"{r['epochs']} epochs, {r['steps']:,} steps, {r['samples']:,} samples, on {r['device']}",
    "step": lambda r: f"step {r['step']}, epoch {r['epoch'] + 1}: {_numbers(r['loss'])} ({r['seconds']:.3g} s)",
    "validation": lambda r: f"step {r['step']}, epoch {r['epoch'] + 1}: {_numbers(r['metrics'])}",
    "workers": lambda r: f"step {r['step']}, epoch {r['epoch'] + 1}: {len(r['workers'])} workers, {r['bytes']:,} bytes",
    "note": lambda r: r["message"],
    "resume": lambda r: f"from step {r['step']} ({r['file']})",
    "checkpoint": lambda r: f"step {r['step']}: {r['file']}",
    "end": lambda r: f"{r['status']}: {r['message']}",
}
