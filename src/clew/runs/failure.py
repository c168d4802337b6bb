"""How a run failed or was interrupted, from the last records of its ranks."""

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
_SILENT = "it ended without a message: killed, out of memory, or the machine went down"


@dataclass(frozen=True)
class RecordLine:
    """One record as text; `seconds` since the last start of the run."""

    seconds: float
    rank: int
    kind: str
    text: str


@dataclass(frozen=True)
class FailureReport:
    """Facts about a failed run by name, and the last records of all ranks, oldest first."""

    message: str
    facts: dict[str, str]
    last: list[RecordLine]


def failure_report(run: Run) -> FailureReport | None:
    """Report on a run that failed or was interrupted; None for any other run."""
    state, end = run.state, run.end()
    if state not in ("failed", "interrupted"):
        return None
    lines = last_records(run)
    return FailureReport(str(end["message"]) if end and end["message"] else _SILENT, _facts(run), lines)


def last_records(run: Run, count: int = _LAST) -> list[RecordLine]:
    """The newest records of all ranks as text, oldest first."""
    start = run.last("start", run.main_stream)
    started = float(start["time"]) if start else 0.0
    newest = [
        (float(record["time"]), int(stream[5:]), record["seq"], record)
        for stream in run.streams()
        for record in itertools.islice(run.reversed_records(stream), count)
    ]
    chosen = sorted(heapq.nlargest(count, newest, key=lambda each: each[:3]), key=lambda each: each[:3])
    return [RecordLine(time - started, rank, record["kind"], record_text(record)) for time, rank, _, record in chosen]


def _facts(run: Run) -> dict[str, str]:
    failures, step = run.failures(), run.last("step", run.main_stream)
    silent = [stream[5:] for stream in run.streams() if _is_silent(run, stream)]
    bad_batches = [path.name for path in sorted(run.path.glob("bad-batch-*.h5"))]
    states = run.states()
    facts = {
        "failed first": f"rank {failures[0]['rank']}" if failures else "",
        "ended without a message": ", ".join(f"rank {number}" for number in silent),
        "no records of": ", ".join(f"rank {number}" for number in run.missing_ranks()),
        "last step recorded": record_text(step) if step else "none",
        "samples of the bad step": ", ".join(bad_batches),
        "resume from": f"{states[-1].name}, with: clew train --resume {run.path}" if states else "",
        "log of its job": str(run.job_folder) if run.job_folder.is_dir() else "",
    }
    return {name: value for name, value in facts.items() if value}


def _is_silent(run: Run, stream: str) -> bool:
    newest = next(run.reversed_records(stream, ("start", "end")), None)
    return newest is not None and newest["kind"] == "start"


def record_text(record: Record) -> str:
    """A record as text for people. Records of other kinds are shown as JSON."""
    to_text = _TEXTS.get(record["kind"])
    text = (
        to_text(record)
        if to_text
        else json.dumps({k: v for k, v in record.items() if k not in ("seq", "time", "kind")})
    )
    line = " ".join(str(text).split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _numbers(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {'–' if value is None else format(value, '.4g')}" for name, value in values.items())


_TEXTS: dict[str, Any] = {
    "start": lambda r: f"process {r['pid']} on {r['host']}, rank {r['rank']} of {r['ranks']}",
    "plan": lambda r: f"{r['epochs']} epochs, {r['steps']:,} steps, {r['samples']:,} samples, on {r['device']}",
    "load": lambda r: f"samples loaded in {r['seconds']:.3g} s",
    "step": lambda r: f"step {r['step']}, epoch {r['epoch'] + 1}: {_numbers(r['loss'])} ({r['seconds']:.3g} s)",
    "validation": lambda r: f"step {r['step']}, epoch {r['epoch'] + 1}: {_numbers(r['metrics'])}",
    "workers": lambda r: f"step {r['step']}, epoch {r['epoch'] + 1}: {len(r['workers'])} workers, {r['bytes']:,} bytes",
    "note": lambda r: r["message"],
    "resume": lambda r: f"from step {r['step']}{' (' + r['file'] + ')' if r['file'] else ''}",
    "checkpoint": lambda r: f"step {r['step']}: {r['file']}",
    "usage": lambda r: f"{r['cpu']:.2f} cores, {r['memory'] / 1e6:,.0f} MB",
    "evaluation": lambda r: (
        f"{r['name']}, {r['events']:,} events: {_numbers({n: each['value'] for n, each in r['metrics'].items()})}"
    ),
    "end": lambda r: f"{r['status']}: {r['message']}" if r["message"] else r["status"],
}
