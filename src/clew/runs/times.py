"""The times of a run: the one definition of speed, time per epoch, load time, data wait and shares of the time.

`RecordWriter` adds the times so far to every step and validation that it writes. Lists, the server and the dashboard
read them there. `TimeTotals` computes them, from the records of one stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from clew.runs.record_metrics import finite_number

if TYPE_CHECKING:
    from clew.runs.folder import Run

TIMED_KINDS = ("step", "validation")
"""Kinds of records that contain the times of the run so far."""
_MAX_EPOCHS = 10_000
"""The last epochs whose times `time_figures` lists, so that a job's metadata stay below the 1 MB that PanDA accepts."""


@dataclass(frozen=True)
class RunTimes:
    """Where the time of a run went, in seconds; of the process that leads."""

    samples_per_second: float = 0.0
    """Of all ranks, while training; without the first epoch if there are several."""
    seconds_per_epoch: float | None = None
    """The mean training time of the complete epochs, without the first if there are several; None before that."""
    load_seconds: float | None = None
    """Time until the samples were loaded, before the first step; None if it was not measured."""
    data_wait_seconds: float = 0.0
    """Time that steps waited for data."""
    communicate_seconds: float = 0.0
    """Time that steps spent communicating."""
    train_seconds: float = 0.0
    """Time of all steps, with waiting and communicating."""
    validate_seconds: float = 0.0
    """Time of validations. One in the background takes no time of the run."""

    @property
    def parts(self) -> dict[str, float]:
        """The time of steps and validations in parts: what they spent it on, in seconds."""
        return {
            "compute": self.train_seconds - self.data_wait_seconds - self.communicate_seconds,
            "communicate": self.communicate_seconds,
            "data wait": self.data_wait_seconds,
            "validate": self.validate_seconds,
        }

    @property
    def shares(self) -> dict[str, float]:
        """`parts` as fractions of their sum; empty before the first step."""
        total = sum(self.parts.values())
        return {name: seconds / total for name, seconds in self.parts.items()} if total > 0 else {}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> RunTimes | None:
        """Return the times in a record, or None if it has none. Values that are not finite numbers are ignored."""
        values = record.get("times")
        if not isinstance(values, Mapping):
            return None
        numbers = {each.name: finite_number(values.get(each.name)) for each in fields(cls)}
        return cls(**{name: number for name, number in numbers.items() if number is not None})


class TimeTotals:
    """Adds up the times of a run, record by record."""

    def __init__(self) -> None:
        self.epochs: dict[int, float] = {}
        """Training time by epoch."""
        self._load: float | None = None
        self._wait = self._communicate = self._train = self._validate = 0.0
        self._samples = self._first_samples = self._samples_before = 0.0
        """Samples of all steps, of the first epoch, and the number in the newest record."""
        self._validated = -1
        """The newest epoch with a validation."""

    def update(self, record: Mapping[str, Any]) -> None:
        """Add one record of the run's main stream."""
        kind = record["kind"]
        if kind == "step":
            self._add_step(record)
        elif kind == "validation":
            self._validate += 0.0 if record.get("background") else record["seconds"]
            self._validated = max(self._validated, record["epoch"])
        elif kind == "load":
            self._load = record["seconds"]

    def _add_step(self, record: Mapping[str, Any]) -> None:
        epoch, total = record["epoch"], record["samples"]
        added = total - self._samples_before if total >= self._samples_before else total
        self.epochs[epoch] = self.epochs.get(epoch, 0.0) + record["seconds"]
        self._samples, self._samples_before = self._samples + added, total
        if len(self.epochs) == 1:
            self._first_samples += added
        self._train += record["seconds"]
        self._wait += record["wait"]
        self._communicate += record["communicate"]

    def times(self) -> RunTimes:
        """Return the times so far, rounded to microseconds."""
        first = next(iter(self.epochs.values()), 0.0)
        several = len(self.epochs) > 1
        seconds = self._train - first if several else self._train
        samples = self._samples - self._first_samples if several else self._samples
        per_epoch = self._seconds_per_epoch(first)
        return RunTimes(
            samples_per_second=round(samples / seconds, 6) if seconds else 0.0,
            seconds_per_epoch=None if per_epoch is None else round(per_epoch, 6),
            load_seconds=None if self._load is None else round(self._load, 6),
            data_wait_seconds=round(self._wait, 6),
            communicate_seconds=round(self._communicate, 6),
            train_seconds=round(self._train, 6),
            validate_seconds=round(self._validate, 6),
        )

    def _seconds_per_epoch(self, first: float) -> float | None:
        if not self.epochs:
            return None
        newest = next(reversed(self.epochs))
        unfinished = 0.0 if self._validated >= newest else self.epochs[newest]
        complete = len(self.epochs) - (self._validated < newest)
        if complete > 1:
            return (self._train - first - unfinished) / (complete - 1)
        return first if complete else None

    def facts(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the field `times` of a record; that of a validation also has the time of its epoch."""
        of_epoch = self.epochs.get(record["epoch"]) if record["kind"] == "validation" else None
        return {**asdict(self.times()), **({} if of_epoch is None else {"epoch_seconds": round(of_epoch, 6)})}


def time_totals(history: Iterable[Mapping[str, Any]]) -> TimeTotals:
    """Return the totals of the records of one stream, without those of repeated steps (`Run.history`)."""
    totals = TimeTotals()
    for record in history:
        totals.update(record)
    return totals


def time_figures(run: Run) -> dict[str, Any]:
    """Return all times of a run: the fields of `RunTimes`, and `epoch_seconds`, the training time of each epoch.

    Args:
        run: A run with records.
    """
    totals = time_totals(run.history(run.main_stream))
    epochs = [round(seconds, 6) for _, seconds in sorted(totals.epochs.items())]
    return {**asdict(totals.times()), "epoch_seconds": epochs[-_MAX_EPOCHS:]}
