"""One line about a run, from the first and the last records of its main stream.

Thousands of runs can be listed because their whole records are not read.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from clew.errors import RunError
from clew.runs import records
from clew.runs.folder import Run
from clew.runs.progress import progress_of
from clew.runs.records import Record
from clew.runs.times import TIMED_KINDS, RunTimes, time_totals
from clew.runs.untrained import never_trained

_RECENT = 6
"""Number of records that are read first."""
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
    times: RunTimes = field(default_factory=RunTimes)
    """Speed, time per epoch, load time and data wait."""
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
    validation = _newest(newest, "validation") or _newest(_reversed(stream, "validation"), "validation")
    timed = _newest(newest, *TIMED_KINDS) or _newest(_reversed(stream, *TIMED_KINDS), *TIMED_KINDS)
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
        times=_times(run, timed),
        metrics=progress.metrics,
        message=str(end["message"]) if end else "",
        trained=bool(timed) or not never_trained(run),
    )


def _mark(newest: Iterable[Record]) -> Record | None:
    return next((record for record in newest if record["kind"] in _MARKS), None)


def _times(run: Run, timed: Sequence[Record]) -> RunTimes:
    """The times in the newest step or validation. Records of older versions have none: all records are added up."""
    if not timed:
        return RunTimes()
    return RunTimes.read(timed[0]) or time_totals(run.history(run.main_stream)).times()


def _reversed(stream: Path, *kinds: str) -> Iterable[Record]:
    return records.read_reversed(stream, ("resume", *kinds))


def _newest(newest: Iterable[Record], *kinds: str) -> Sequence[Record]:
    """The newest record of these kinds that counts: one that a resumed run repeats does not, as in `Run.history`."""
    limit = float("inf")
    for record in newest:
        if record["kind"] in kinds and record["step"] <= limit:
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
