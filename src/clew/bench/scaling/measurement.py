"""The measurement of one training, from its records and the merged timeline of its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.errors import RunError
from clew.runs import Run, timeline
from clew.runs.async_workers import load_workers as workers_of
from clew.runs.async_workers import sum_workers
from clew.runs.records import Record

PARTS = ("io", "compute", "communicate", "wait", "other")
"""The parts of the training time of a rank. `wait` is waiting for slower ranks, if the timeline shows it."""
_COMPUTE = ("forward", "backward", "optimise")
_COMMUNICATE = timeline.PHASES.index("communicate")
_POINTS = 200
"""Largest number of points of a stored curve."""


@dataclass
class ScalingRun:
    """One training with a given number of workers."""

    strategy: str
    workers: int
    run: str
    seed: int = 0
    processes: int = 1
    """Workers and masters."""
    threads: int | None = None
    oversubscribed: bool = False
    """More threads than cores, or more ranks than devices: this measures the machine, not the scaling."""
    device: str = ""
    batch_size: int = 0
    blocks: list[tuple[int, float, float, float]] = field(default_factory=list)
    """Per record: events, seconds, and the seconds of loading and of communication. The first epoch is left out if
    there are several."""
    shares: dict[str, float] = field(default_factory=dict)
    """Shares of the training time of all ranks, by name in `PARTS`."""
    loading: dict[str, float] = field(default_factory=dict)
    """Seconds of waiting for data per thousand events of a rank: mean and maximum over ranks."""
    filling: float | None = None
    """Seconds until the slowest rank had its samples in memory."""
    curve: list[tuple[float, int, float]] = field(default_factory=list)
    """Seconds, samples, training loss."""
    validations: list[tuple[float, int, float]] = field(default_factory=list)
    """Seconds, samples, validation loss."""
    parameters: int = 0
    value_bytes: int = 4
    """Bytes of a number that workers send."""
    exchange_interval: int = 1
    """Steps between two exchanges."""
    message: str = ""
    """Why it failed, if it did."""

    @property
    def events_per_second(self) -> float:
        """Events per second of training, over all ranks."""
        seconds = sum(block[1] for block in self.blocks)
        return sum(block[0] for block in self.blocks) / seconds if seconds else 0.0


def read_measurement(trained: ScalingRun, run: Run) -> None:
    """Fill in the measurement from the records of a run.

    Raises:
        RunError: The run recorded no step.
    """
    history = run.history(run.main_stream)
    steps = [record for record in history if record["kind"] == "step"]
    if not steps:
        raise RunError(f"{run.path}: it ended before its first record; use more epochs or events")
    plan = next(record for record in history if record["kind"] == "plan")
    trained.device, trained.parameters = str(plan["device"]), int(plan["parameters"])
    measured, first = _after_first_epoch(steps)
    trained.blocks = [(n, *(round(s[key], 6) for key in ("seconds", "wait", "communicate"))) for n, s in measured]
    trained.shares = _shares(run, first)
    trained.loading = _loading(run)
    loads = [record["seconds"] for stream in run.streams() for record in run.records(stream, kind="load")]
    trained.filling = max(loads, default=None)
    start = float(plan["time"])
    trained.curve = _thin([(round(s["time"] - start, 3), s["samples"], _loss(s["loss"])) for s in steps])
    samples = {s["step"]: s["samples"] for s in steps}
    trained.validations = [
        (round(v["time"] - start, 3), samples[v["step"]], v["metrics"]["loss"])
        for v in history
        if v["kind"] == "validation" and v["step"] in samples and v["metrics"].get("loss") is not None
    ]


def _after_first_epoch(steps: list[Record]) -> tuple[list[tuple[int, Record]], int]:
    """Return the records after the first epoch with their numbers of events, and the first step that counts."""
    before = [0, *(step["samples"] for step in steps)]
    pairs = [(step["samples"] - earlier, step) for earlier, step in zip(before, steps, strict=False)]
    later = [(count, step) for count, step in pairs if step["epoch"] > 0]
    first_epoch = [step["step"] for _, step in pairs if step["epoch"] == 0]
    measured = [(count, step) for count, step in later or pairs if count and step["seconds"]]
    return measured, max(first_epoch) if later and first_epoch else 0


def _loss(losses: Mapping[str, Any]) -> float | None:
    loss: float | None = losses.get("loss", next(iter(losses.values()), None))
    return loss


def _thin(curve: list[Any]) -> list[Any]:
    step = max(1, -(-len(curve) // _POINTS))
    return [*curve[::step], *(curve[-1:] if (len(curve) - 1) % step else [])]


def _shares(run: Run, first: int) -> dict[str, float]:
    """Return the shares of the time of all training ranks together."""
    workers = workers_of(run)
    if workers is not None:  # workers meet no other, only their master: its answer and the way to it are one
        each = sum_workers(workers.workers).shares
        return dict.fromkeys(PARTS, 0.0) | {
            "io": each["data wait"],
            "compute": each["compute"],
            "communicate": each["communicate"],
        }
    ranks = {rank: spans[spans["step"] >= first] for rank, spans in timeline.traces(run).items()}
    return time_shares({rank: spans for rank, spans in ranks.items() if len(spans)})


def time_shares(ranks: Mapping[int, NDArray[Any]]) -> dict[str, float]:
    """Return the shares of the training time of all ranks, without validation and checkpoints.

    An all-reduce ends only after the last rank has started it. The time until then is waiting, the rest is
    communication.
    """
    late = _last_arrivals(ranks)
    rows = []
    for spans in ranks.values():
        parts = timeline.phase_shares(spans)
        training = max(1e-9, 1 - parts.get("validate", 0.0) - parts.get("checkpoint", 0.0))
        talk, wait = parts.get("communicate", 0.0) / training, _waiting(spans, late)
        io, compute = parts.get("load", 0.0) / training, sum(parts.get(name, 0.0) for name in _COMPUTE) / training
        rows.append((io, compute, talk * (1 - wait), talk * wait, max(0.0, 1 - io - compute - talk)))
    return {name: round(float(share), 5) for name, share in zip(PARTS, np.mean(rows, axis=0), strict=True)}


def _communication(spans: NDArray[Any]) -> NDArray[Any]:
    selected: NDArray[Any] = spans[(spans["phase"] == _COMMUNICATE) & (spans["thread"] == 0)]
    return selected


def _last_arrivals(ranks: Mapping[int, NDArray[Any]]) -> dict[int, int]:
    """Return for each step when the last rank started its all-reduce, in nanoseconds."""
    late: dict[int, int] = {}
    for spans in ranks.values():
        for step, start in zip(*(_communication(spans)[key].tolist() for key in ("step", "start")), strict=True):
            late[step] = max(late.get(step, 0), start)
    return late


def _waiting(spans: NDArray[Any], late: Mapping[int, int]) -> float:
    """Return the share of a rank's all-reduce time that passed before the last rank started."""
    spans_of_sums = _communication(spans)
    total = waited = 0.0
    for step, start, length in zip(*(spans_of_sums[key].tolist() for key in ("step", "start", "length")), strict=True):
        nanoseconds = 100 * length
        total += nanoseconds
        waited += min(max(late[step] - start, 0), nanoseconds)
    return waited / total if total else 0.0


def _loading(run: Run) -> dict[str, float]:
    """Return the seconds of waiting for data per thousand events of a rank: mean and maximum."""
    workers = workers_of(run)
    if workers is not None:
        waits = [1000 * each.load / each.samples for each in workers.workers if each.samples]
    else:
        streams = run.streams()
        known = [[r for r in run.history(stream) if r["kind"] == "step"] for stream in streams]
        share = max(1, sum(map(bool, known)))
        waits = [
            1000 * share * sum(r["wait"] for r in steps) / max(steps[-1]["samples"], 1) for steps in known if steps
        ]
    return {"mean": float(np.mean(waits)), "most": float(np.max(waits))} if waits else {}
