"""Runs written record by record, for states that a training would take long to reach."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from clew.runs import RecordWriter, Run
from clew.runs.records import SCHEMA

CONFIG = {"recipe": "tracking", "train": {"epochs": 3, "workers": 1}}


def fresh(path: Path) -> Run:
    """A run folder without records."""
    return Run.create(path, config=CONFIG, environment={"host": "here"})


def begin(writer: RecordWriter, *, pid: int | None = None, host: str | None = None) -> None:
    """Write the start of a process; by default of this one on this machine."""
    pid, host = pid or os.getpid(), host or socket.gethostname()
    writer.write("start", schema=SCHEMA, host=host, pid=pid, rank=0, ranks=1)


def start(*, rank: int = 0, ranks: int = 1, pid: int | None = None) -> dict[str, Any]:
    """The first record of a rank; by default its process is dead."""
    return {
        "kind": "start",
        "schema": SCHEMA,
        "host": socket.gethostname(),
        "pid": pid or 2**22 - 7,
        "rank": rank,
        "ranks": ranks,
    }


def training(epochs: int = 3, each: int = 4, *, first: int = 0, **more: Any) -> list[dict[str, Any]]:
    """The records of a rank in some epochs of `each` steps: 64 samples and a tenth of a second per record, `more` in
    every step record.
    """
    facts: list[dict[str, Any]] = []
    for epoch in range(first, first + epochs):
        for number in range(epoch * each + 1, (epoch + 1) * each + 1):
            at = {"epoch": epoch, "step": number}
            times = {"seconds": 0.1, "wait": 0.01, "communicate": 0.02}
            facts.append({"kind": "step", **at, "samples": 64 * number, "loss": {"loss": 1 / number}, **times, **more})
        metrics = {"loss": 1 / (epoch + 1), "f1": 1 - 1 / (epoch + 2)}
        facts.append({"kind": "validation", **at, "metrics": metrics, "seconds": 0.05})
        facts.append({"kind": "checkpoint", **at, "file": "checkpoints/last.safetensors"})
    return facts


def plan(epochs: int = 3, each: int = 4) -> dict[str, Any]:
    """The record of the plan of a rank."""
    return {"kind": "plan", "epochs": epochs, "steps": epochs * each, "samples": 256, "parameters": 9, "device": "cpu"}


def end(status: str = "finished", message: str = "") -> dict[str, Any]:
    """The last record of a rank."""
    return {"kind": "end", "status": status, "message": message}


def lines(facts: Iterable[dict[str, Any]], *, start: float = 1e9, first: int = 0) -> str:
    """Records as lines of a stream, a tenth of a second apart."""
    numbered = enumerate(facts, start=first)
    return "".join(json.dumps({"seq": n, "time": start + 0.1 * (n - first), **each}) + "\n" for n, each in numbered)


def written(path: Path, *facts: dict[str, Any], **config: Any) -> Run:
    """A run folder with these records of rank 0."""
    run = Run.create(path, config={**CONFIG, **config}, environment={"host": "here"})
    (run.records_folder / "rank-0.jsonl").write_text(lines(facts))
    return run
