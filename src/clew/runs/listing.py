"""A run in one line, from the two ends of its first stream: a thousand runs are listed without reading them."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import yaml

from clew.errors import RunError
from clew.runs import records
from clew.runs.folder import Run
from clew.runs.progress import progress_of
from clew.runs.records import Record

_RECENT = 12
"""Records that the speed is taken from."""
_MARKS = ("start", "end")
_RECIPE = re.compile(r"^recipe:(?= |$).*(?:\n[ \t]+.*)*", re.MULTILINE)


@dataclass(frozen=True)
class Glance:
    """What a list says of a run."""

    name: str
    path: str
    state: str
    """One of `folder.STATES`, or `damaged`: its records cannot be read, and `message` says why."""
    recipe: str = ""
    workers: int = 0
    """As it was first begun."""
    epochs: int = 0
    epochs_done: int = 0
    begun: float = 0.0
    """Seconds since 1970; 0 where nothing was recorded."""
    seconds: float = 0.0
    """From the first record to the last."""
    samples_per_second: float = 0.0
    """Over all ranks, of the newest records; `summarize` has that of the whole run."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    """The newest validation."""
    message: str = ""
    """Why it ended, where it did not end well."""


def glance(run: Run) -> Glance:
    """Read a few records at the beginning and at the end of a run's first stream. Nothing is written or remembered:
    it is right for runs that are being written, were killed or come from elsewhere.
    """
    try:
        return _glance(run)
    except (RunError, OSError, yaml.YAMLError) as error:  # one bad folder must not hide the others
        return Glance(run.name, str(run.path), "damaged", message=str(error))


def _glance(run: Run) -> Glance:
    recipe = _recipe(run.config_file.read_text(encoding="utf-8"))
    stream = run.records_folder / f"{run.main_stream}.jsonl"
    few = list(itertools.islice(records.read(stream), 4)) if stream.exists() else []
    if not few:
        return Glance(run.path.name, str(run.path), "created", recipe)
    newest = list(itertools.islice(records.read_reversed(stream), _RECENT))
    validation = _validation(newest) or _validation(records.read_reversed(stream, ("resume", "validation")))
    state, end = run.state_and_end(_mark(newest) or _mark(records.read_reversed(stream, _MARKS)))
    progress = progress_of([*(record for record in few if record["kind"] in ("start", "plan")), *validation])
    return Glance(
        name=run.path.name,
        path=str(run.path),
        state=state,
        recipe=recipe,
        workers=progress.workers,
        epochs=progress.epochs,
        epochs_done=progress.epochs_done,
        begun=float(few[0]["time"]),
        seconds=newest[0]["time"] - few[0]["time"],
        samples_per_second=_speed(newest),
        metrics=progress.metrics,
        message=str(end["message"]) if end else "",
    )


def _mark(newest: Iterable[Record]) -> Record | None:
    return next((record for record in newest if record["kind"] in _MARKS), None)


def _speed(newest: list[Record]) -> float:
    """Samples a second between the oldest and the newest step of these records, back to where it was last begun."""
    steps: list[Record] = []
    for record in newest:
        if record["kind"] == "step":
            steps.append(record)
        elif record["kind"] in ("start", "resume"):
            steps += [{"samples": 0}] if record["kind"] == "start" else []  # a resumed one begins with those it had
            break
    seconds = sum(step["seconds"] for step in steps[:-1])
    return float((steps[0]["samples"] - steps[-1]["samples"]) / seconds) if seconds else 0.0


def _validation(newest: Iterable[Record]) -> list[Record]:
    """The newest one that counts: as in `Run.history`, a resumed run has not done what it does again."""
    limit = float("inf")
    for record in newest:
        if record["kind"] == "validation" and record["step"] <= limit:
            return [record]
        limit = min(limit, record["step"]) if record["kind"] == "resume" else limit
    return []


def _recipe(text: str) -> str:
    """The recipe in a config.yaml, without parsing the rest of it: that takes longer than all else here."""
    line = _RECIPE.search(text)
    return _value(line[0]) if line else ""


@functools.lru_cache
def _value(line: str) -> str:
    return str(yaml.safe_load(line)["recipe"] or "")
