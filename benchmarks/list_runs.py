"""How fast `clew runs list` shows a folder of 1,000 and of 10,000 runs: the whole command.

Every run has 300 step records, a validation after every 30 of them, checkpoints, and the settings of a real one; one in
ten was killed, one in ten failed, one in fifty was resumed. The folders are written just before: the system holds them
in memory. The first list reads the records of all runs, later ones only those of runs that changed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from _contest import Sheet, main, options

from clew import settings
from clew.core.config import to_data
from clew.runs import Run
from clew.runs.environment import capture
from clew.runs.times import TIMED_KINDS, TimeTotals

STEPS, EPOCH = 300, 30


def step_lines(steps: int = STEPS, epoch: int = EPOCH) -> list[dict[str, Any]]:
    """The records of a rank in a training, without start and end."""
    facts: list[dict[str, Any]] = []
    plan = {"epochs": steps // epoch, "steps": steps * 10, "samples": epoch * 640, "parameters": 4321}
    facts.append({"kind": "plan", **plan, "device": "cpu", "loading": {}})
    for number in range(1, steps + 1):
        at = {"epoch": (number - 1) // epoch, "step": number * 10}
        loss = {"loss": 0.6931471805599453 / number}
        times = {"seconds": 0.123456789, "wait": 0.001234567890123, "communicate": 0.01234567890123}
        facts.append({"kind": "step", **at, "samples": number * 640, "loss": loss, "lr": 0.001, **times})
        if number % epoch == 0:
            names = ("loss", "efficiency", "purity", "ghost_rate", "event_ratio", "f1", "edge_auc")
            metrics = dict.fromkeys(names, 0.9123456789012345 - 1 / number)
            facts.append({"kind": "validation", **at, "metrics": metrics, "seconds": 0.2345678901234})
            facts.append({"kind": "checkpoint", **at, "file": "checkpoints/last.safetensors"})
            facts.append({"kind": "checkpoint", **at, "file": f"checkpoints/step-{number:09d}.pt"})
    totals = TimeTotals()
    for record in facts:
        totals.update(record)
        if record["kind"] in TIMED_KINDS:
            record["times"] = totals.facts(record)
    return facts


def make(root: Path, runs: int) -> None:
    """Write the run folders."""
    loaded = settings.load_settings("tracking")
    config = {"recipe": "tracking", **to_data(loaded.recipe.config), "train": to_data(loaded.train)}
    environment, facts = capture(), step_lines()
    for number in range(runs):
        run = Run.create(root / f"tracking-{number:04d}", config=config, environment=environment)
        start_time, end = 1.7e9 + 60 * number, [{"kind": "end", "status": "finished", "message": ""}]
        start = {"kind": "start", "schema": 1, "host": environment["host"], "pid": 2**22 - 7, "rank": 0, "ranks": 2}
        if number % 10 == 1:
            end = []
        elif number % 10 == 2:
            end = [{"kind": "end", "status": "failed", "message": "loss is nan at step 3000; lower the rate"}]
        middle = [*facts[:150], start, {"kind": "resume", "epoch": 3, "step": 900, "file": "x", "damaged": []}]
        body = [*middle, *facts[95:]] if number % 50 == 3 else facts
        lines = [
            json.dumps({"seq": seq, "time": start_time + 0.1234 * seq, **each})
            for seq, each in enumerate([start, *body, *end])
        ]
        for rank in range(2):
            (run.records_folder / f"rank-{rank}.jsonl").write_text("\n".join(lines) + "\n")


def listed(root: Path, *options: str) -> tuple[float, float]:
    """Wall and CPU seconds of the whole command."""
    command = [sys.executable, "-c", "from clew.cli.main import run; run()", "runs", "list", str(root), *options]
    start, before = time.perf_counter(), os.times()
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "COLUMNS": "80"})
    assert "tracking-0001" in done.stdout
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - start, spent


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    os.environ["CLEW_CACHE"] = str(folder / "cache")
    repeats = 5 if arguments.quick else 9
    for runs in (1000, 10_000):
        make(folder / str(runs), runs)
    for name, runs, first, command in (
        ("1,000 runs listed for the first time", 1000, True, ()),
        ("1,000 runs listed again", 1000, False, ()),
        ("1,000 runs listed again as JSON, by a metric", 1000, False, ("--json", "--sort", "f1")),
        ("10,000 runs listed for the first time", 10_000, True, ()),
        ("10,000 runs listed again", 10_000, False, ()),
    ):
        taken = []
        for _ in range(repeats):
            if first:
                shutil.rmtree(folder / "cache", ignore_errors=True)
            taken.append(listed(folder / str(runs), *command))
        wall, spent = (median(values) for values in zip(*taken, strict=True))
        if first and runs > 1000:
            sheet.state(name, wall, "s")
        else:
            sheet.bar(name, wall, 1, "s", lower=True)
        sheet.state(f"{name}: CPU", spent, "s")
    return {"step_records": STEPS}


if __name__ == "__main__":
    sys.exit(main(measure, options(__doc__, "fewer repetitions")))
