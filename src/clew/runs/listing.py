"""One line about a run, from the first and the last records of its main stream.

Thousands of runs can be listed because their whole records are not read.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from clew.errors import RunError
from clew.runs import records
from clew.runs.folder import Run
from clew.runs.progress import progress_of
from clew.runs.records import Record
from clew.runs.untrained import never_trained

_RECENT = 12
"""Number of records for the speed."""
_MARKS = ("start", "end")
_EPOCHS = re.compile(r"^train:\n(?:[ \t]+.*\n)*?[ \t]+epochs: (\d+)$", re.MULTILINE)
_RECIPE = re.compile(r"^recipe:(?= |$).*(?:\n[ \t]+.*)*", re.MULTILINE)


@dataclass(frozen=True)
class RunListing:
    """Facts about a run in a list."""

    name: str
    path: str
    state: str
    """One of `folder.STATES`, or `damaged`: its records cannot be read, and `message` says why."""
    recipe: str = ""
    workers: int = 0
    """Number of processes at the first start."""
    epochs: int = 0
    epochs_done: int = 0
    started: float = 0.0
    """Seconds since 1970; 0 without records."""
    seconds: float = 0.0
    """From the first record to the last."""
    samples_per_second: float = 0.0
    """Of all ranks, from the newest records; `summarize` has the mean of the whole run."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    """Metrics of the newest validation."""
    message: str = ""
    """Why it failed or stopped."""
    trained: bool = True
    """False if it ended before its first step. The next run may use its folder."""


def list_run(run: Run) -> RunListing:
    """Read the first and the last records of a run's main stream.

    Nothing is cached, so the result is right for runs that still train, were killed or were copied.
    """
    try:
        return _read_listing(run)
    except FileNotFoundError as error:
        message = f"{Path(error.filename).name} is missing; copy it from a backup or a similar run"
        return RunListing(run.name, str(run.path), "damaged", message=message)
    except (RunError, OSError, yaml.YAMLError) as error:  # a damaged run must not hide the others
        return RunListing(run.name, str(run.path), "damaged", message=str(error))


def _read_listing(run: Run) -> RunListing:
    settings = run.config_file.read_text(encoding="utf-8")
    recipe, planned = _recipe(settings), _EPOCHS.search(settings)
    stream = run.records_folder / f"{run.main_stream}.jsonl"
    first_records = list(itertools.islice(records.read(stream), 4)) if stream.exists() else []
    if not first_records:
        return RunListing(run.path.name, str(run.path), "created", recipe)
    newest = list(itertools.islice(records.read_reversed(stream), _RECENT))
    validation = _validation(newest) or _validation(records.read_reversed(stream, ("resume", "validation")))
    state, end = run.state_and_end(_mark(newest) or _mark(records.read_reversed(stream, _MARKS)))
    progress = progress_of([*(record for record in first_records if record["kind"] in ("start", "plan")), *validation])
    return RunListing(
        name=run.path.name,
        path=str(run.path),
        state=state,
        recipe=recipe,
        workers=progress.workers,
        epochs=int(planned[1]) if planned and progress.epochs else progress.epochs,  # more if it was trained longer
        epochs_done=progress.epochs_done,
        started=float(first_records[0]["time"]),
        seconds=newest[0]["time"] - first_records[0]["time"],
        samples_per_second=_speed(newest),
        metrics=progress.metrics,
        message=str(end["message"]) if end else "",
        trained=not never_trained(run),
    )


def _mark(newest: Iterable[Record]) -> Record | None:
    return next((record for record in newest if record["kind"] in _MARKS), None)


def _speed(newest: list[Record]) -> float:
    """Samples per second between the oldest and the newest of these steps, since the last start."""
    steps: list[Record] = []
    for record in newest:
        if record["kind"] == "step":
            steps.append(record)
        elif record["kind"] in ("start", "resume"):
            steps += (
                [{"samples": 0}] if record["kind"] == "start" else []
            )  # a resumed run starts with the samples it had
            break
    seconds = sum(step["seconds"] for step in steps[:-1])
    return float((steps[0]["samples"] - steps[-1]["samples"]) / seconds) if seconds else 0.0


def _validation(newest: Iterable[Record]) -> list[Record]:
    """The newest validation that counts: one that a resumed run repeats does not count, as in `Run.history`."""
    limit = float("inf")
    for record in newest:
        if record["kind"] == "validation" and record["step"] <= limit:
            return [record]
        limit = min(limit, record["step"]) if record["kind"] == "resume" else limit
    return []


def _recipe(text: str) -> str:
    """The recipe in a config.yaml. The rest of the file is not parsed, because that is slow."""
    line = _RECIPE.search(text)
    return _value(line[0]) if line else ""


@functools.lru_cache
def _value(line: str) -> str:
    return str(yaml.safe_load(line)["recipe"] or "")
