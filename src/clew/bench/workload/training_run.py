"""One training of a workload: how fast each epoch was, how good the model, what it took from the machine."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from clew.bench.measured_jobs import last_log_line
from clew.jobs.launchers.launcher import JobState, LaunchedJob
from clew.runs import Run, resource_usage
from clew.runs.records import Record

_TOO_LARGE = (
    "out of memory",
    "outofmemory",
    "can't allocate memory",
    "cannot allocate memory",
    "memoryerror",
    "killed",
)


@dataclass
class EpochMeasurement:
    """One pass over the events."""

    number: int
    seconds: float
    """Of training: validation and checkpoints do not count."""
    events: int
    waited: float
    """Of the seconds, those spent waiting for data."""
    loss: float | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    """Of the validation behind it."""
    since_start: float | None = None
    """Seconds from the first step to the end of that validation."""

    @property
    def speed(self) -> float:
        """Events a second."""
        return self.events / self.seconds if self.seconds else 0.0


@dataclass
class WorkloadRun:
    """One copy of one seed."""

    seed: int
    copy: int
    run: str
    state: str = "waiting"
    epochs: list[EpochMeasurement] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """Training losses as recorded, in full precision."""
    device: str = ""
    parameters: int = 0
    memory: float | None = None
    """Peak bytes of all ranks on the host."""
    device_memory: float | None = None
    """Peak bytes on the device, whoever has them."""
    device_tensors: float | None = None
    """Peak bytes of the training's own tensors on a device."""
    energy: float | None = None
    """Joules of the whole training, where the hardware tells."""
    message: str = ""
    too_large: bool = False
    """Out of memory."""

    @property
    def counted(self) -> list[EpochMeasurement]:
        """Epochs behind the first, which warms up, where there are several."""
        return self.epochs[1:] or self.epochs

    @property
    def events_per_second(self) -> float:
        """Mean over the epochs that count."""
        seconds = sum(epoch.seconds for epoch in self.counted)
        return sum(epoch.events for epoch in self.counted) / seconds if seconds else 0.0

    @property
    def wait_share(self) -> float:
        """Of training time, waiting for data."""
        seconds = sum(epoch.seconds for epoch in self.counted)
        return sum(epoch.waited for epoch in self.counted) / seconds if seconds else 0.0

    @property
    def joules_per_event(self) -> float | None:
        """Over the whole training, validations included; None where the hardware does not tell."""
        events = sum(epoch.events for epoch in self.epochs)
        return None if self.energy is None or not events else self.energy / events

    def last(self, metric: str) -> float | None:
        """A metric of the newest validation."""
        return next((e.metrics[metric] for e in reversed(self.epochs) if e.metrics.get(metric) is not None), None)

    def reached(self, metric: str, value: float) -> float | None:
        """Seconds until a metric was that good."""
        good = (e.since_start for e in self.epochs if (e.metrics.get(metric) or 0.0) >= value and e.since_start)
        return next(good, None)


def read_run(attempt: WorkloadRun, run: Run) -> None:
    """Fill in what a run's records say so far."""
    history = run.history() if (run.records_folder / "rank-0.jsonl").exists() else []
    plan = next((record for record in history if record["kind"] == "plan"), None)
    if plan is None:
        return
    attempt.device, attempt.parameters = str(plan["device"]), int(plan["parameters"])
    steps = [record for record in history if record["kind"] == "step"]
    attempt.losses = [next(iter(step["loss"].values())) for step in steps]
    judged = {record["epoch"]: record for record in history if record["kind"] == "validation"}
    attempt.epochs = [_epoch(steps, number, judged[number], float(plan["time"])) for number in sorted(judged)]
    attempt.memory = resource_usage.peak_memory(run)
    told = [record for stream in run.streams("usage") for record in run.records(stream, "usage")]
    attempt.device_memory, attempt.device_tensors = (
        max((record[key] for record in told if key in record), default=None)
        for key in ("device_memory", "device_tensors")
    )
    joules = resource_usage.energy_used(run)
    attempt.energy = joules(history[-1]["time"] + 60) if joules else None


def _epoch(steps: list[Record], number: int, judged: Record, begun: float) -> EpochMeasurement:
    own = [step for step in steps if step["epoch"] == number]
    before = max((step["samples"] for step in steps if step["epoch"] < number), default=0)
    events = own[-1]["samples"] - before if own else 0
    seconds, waited = (round(sum(step[key] for step in own), 6) for key in ("seconds", "wait"))
    metrics = dict(judged["metrics"])
    return EpochMeasurement(
        number, seconds, events, waited, metrics.get("loss"), metrics, round(judged["time"] - begun, 3)
    )


def record_end(attempt: WorkloadRun, run: Run, state: JobState, job: LaunchedJob) -> None:
    """How it ended, and why where not well."""
    attempt.state = state
    if state == "finished":
        return
    end = run.end() if run.path.exists() else None
    said = last_log_line(job)
    attempt.message = str(end["message"]) if end else said or "it ended without a word"
    told = f"{attempt.message} {(end or {}).get('error', '')}".lower()
    attempt.too_large = any(word in told for word in _TOO_LARGE) or (
        not end and state in ("lost", "failed") and not said
    )


def spread(values: list[float]) -> dict[str, Any] | None:
    """Mean, standard deviation and extremes; None of nothing."""
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
