"""One training of a workload: the speed of every epoch, the quality of the model, memory and energy."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from clew.bench.measured_jobs import last_log_line
from clew.jobs.launchers.launcher import JobState, LaunchedJob
from clew.runs import Run, resource_usage
from clew.runs.records import Record

_OUT_OF_MEMORY = (
    "out of memory",
    "outofmemory",
    "can't allocate memory",
    "cannot allocate memory",
    "memoryerror",
    "killed",
)


@dataclass
class EpochMeasurement:
    """The measurement of one epoch."""

    number: int
    seconds: float
    """Duration of training, without validation and checkpoints."""
    events: int
    waited: float
    """Part of `seconds` that was spent waiting for data."""
    loss: float | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    """Metrics of the validation after it."""
    since_start: float | None = None
    """Seconds from the start of the training to the end of that validation."""

    @property
    def speed(self) -> float:
        """Events per second."""
        return self.events / self.seconds if self.seconds else 0.0


@dataclass
class WorkloadRun:
    """One training: one copy of one seed."""

    seed: int
    copy: int
    run: str
    state: str = "waiting"
    epochs: list[EpochMeasurement] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """Recorded training losses, in full precision."""
    device: str = ""
    parameters: int = 0
    memory: float | None = None
    """Peak memory of all ranks on the host, in bytes."""
    device_memory: float | None = None
    """Peak memory of the device, in bytes, including other programs."""
    device_tensors: float | None = None
    """Peak memory of the tensors of the training on a device, in bytes."""
    energy: float | None = None
    """Energy of the complete training in joules; None if the hardware does not measure it."""
    message: str = ""
    too_large: bool = False
    """Whether it ran out of memory."""

    @property
    def measured_epochs(self) -> list[EpochMeasurement]:
        """The epochs after the first, which includes warm-up; the first if there is only one."""
        return self.epochs[1:] or self.epochs

    @property
    def events_per_second(self) -> float:
        """Mean over the measured epochs."""
        seconds = sum(epoch.seconds for epoch in self.measured_epochs)
        return sum(epoch.events for epoch in self.measured_epochs) / seconds if seconds else 0.0

    @property
    def wait_share(self) -> float:
        """Share of the training time spent waiting for data."""
        seconds = sum(epoch.seconds for epoch in self.measured_epochs)
        return sum(epoch.waited for epoch in self.measured_epochs) / seconds if seconds else 0.0

    @property
    def joules_per_event(self) -> float | None:
        """Energy per event over the complete training, including validations; None if it was not measured."""
        events = sum(epoch.events for epoch in self.epochs)
        return None if self.energy is None or not events else self.energy / events

    def last(self, metric: str) -> float | None:
        """Return a metric of the last validation that has it."""
        return next((e.metrics[metric] for e in reversed(self.epochs) if e.metrics.get(metric) is not None), None)

    def seconds_to(self, metric: str, value: float) -> float | None:
        """Return the seconds until a metric reached a value; None if it did not."""
        times = (e.since_start for e in self.epochs if (e.metrics.get(metric) or 0.0) >= value and e.since_start)
        return next(times, None)


def read_run(measured: WorkloadRun, run: Run) -> None:
    """Fill in the measurements from the records of a run so far."""
    history = run.history() if (run.records_folder / "rank-0.jsonl").exists() else []
    plan = next((record for record in history if record["kind"] == "plan"), None)
    if plan is None:
        return
    measured.device, measured.parameters = str(plan["device"]), int(plan["parameters"])
    steps = [record for record in history if record["kind"] == "step"]
    measured.losses = [next(iter(step["loss"].values())) for step in steps]
    validations = {record["epoch"]: record for record in history if record["kind"] == "validation"}
    measured.epochs = [
        _epoch(steps, number, validations[number], float(plan["time"])) for number in sorted(validations)
    ]
    measured.memory = resource_usage.peak_memory(run)
    usage = [record for stream in run.streams("usage") for record in run.records(stream, "usage")]
    measured.device_memory, measured.device_tensors = (
        max((record[key] for record in usage if key in record), default=None)
        for key in ("device_memory", "device_tensors")
    )
    joules = resource_usage.energy_used(run)
    measured.energy = joules(history[-1]["time"] + 60) if joules else None


def _epoch(steps: list[Record], number: int, validation: Record, start: float) -> EpochMeasurement:
    epoch_steps = [step for step in steps if step["epoch"] == number]
    before = max((step["samples"] for step in steps if step["epoch"] < number), default=0)
    events = epoch_steps[-1]["samples"] - before if epoch_steps else 0
    seconds, waited = (round(sum(step[key] for step in epoch_steps), 6) for key in ("seconds", "wait"))
    metrics = dict(validation["metrics"])
    return EpochMeasurement(
        number, seconds, events, waited, metrics.get("loss"), metrics, round(validation["time"] - start, 3)
    )


def record_end(measured: WorkloadRun, run: Run, state: JobState, job: LaunchedJob) -> None:
    """Fill in how a training ended, and why it failed if it did."""
    measured.state = state
    if state == "finished":
        return
    end = run.end() if run.path.exists() else None
    last_line = last_log_line(job)
    measured.message = str(end["message"]) if end else last_line or "it ended without a message"
    text = f"{measured.message} {(end or {}).get('error', '')}".lower()
    measured.too_large = any(word in text for word in _OUT_OF_MEMORY) or (
        not end and state in ("lost", "failed") and not last_line
    )


def spread(values: list[float]) -> dict[str, Any] | None:
    """Return the mean, standard deviation and extremes of values; None if there are none."""
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {
        "mean": statistics.fmean(values),
        "deviation": deviation,
        "min": min(values),
        "max": max(values),
        "n": len(values),
    }
