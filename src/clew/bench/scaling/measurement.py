"""What a training at one size did, read from its records and from the merged timeline of its ranks."""

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
"""What the time of a rank goes into while it trains. `wait`: for slower ranks, where the timeline can tell."""
_COMPUTE = ("forward", "backward", "optimise")
_COMMUNICATE = timeline.PHASES.index("communicate")
_POINTS = 200
"""Most points of a curve that are kept."""


@dataclass
class ScalingRun:
    """One training at one size."""

    strategy: str
    workers: int
    run: str
    seed: int = 0
    processes: int = 1
    """Workers, and masters besides."""
    threads: int | None = None
    oversubscribed: bool = False
    """More threads than cores, or more ranks than devices: what was measured is the machine, not the scaling."""
    device: str = ""
    batch_size: int = 0
    blocks: list[tuple[int, float, float, float]] = field(default_factory=list)
    """Events, seconds, of these loading, of these communicating: a record each, behind the first epoch if there are
    several."""
    shares: dict[str, float] = field(default_factory=dict)
    """Of the time of all ranks while they train: `PARTS`."""
    loading: dict[str, float] = field(default_factory=dict)
    """Seconds in which ranks waited for data, for every thousand events of a rank: mean and most over ranks."""
    filling: float | None = None
    """Seconds until the slowest rank had its samples in memory."""
    curve: list[tuple[float, int, float]] = field(default_factory=list)
    """Seconds, samples, training loss."""
    judged: list[tuple[float, int, float]] = field(default_factory=list)
    """The same of validations."""
    parameters: int = 0
    message: str = ""
    """Why it failed, if it did."""

    @property
    def events_per_second(self) -> float:
        """While training, over all ranks."""
        seconds = sum(block[1] for block in self.blocks)
        return sum(block[0] for block in self.blocks) / seconds if seconds else 0.0


def read_measurement(trained: ScalingRun, run: Run) -> None:
    """Fill in what a run left.

    Raises:
        RunError: it recorded no step.
    """
    history = run.history(run.main_stream)
    steps = [record for record in history if record["kind"] == "step"]
    if not steps:
        raise RunError(f"{run.path}: it ended before its first record; give it more epochs or events")
    plan = next(record for record in history if record["kind"] == "plan")
    trained.device, trained.parameters = str(plan["device"]), int(plan["parameters"])
    warm, first = _warm(steps)
    trained.blocks = [(n, *(round(s[key], 6) for key in ("seconds", "wait", "communicate"))) for n, s in warm]
    trained.shares = _shares(run, first)
    trained.loading = _loading(run)
    plans = [record for stream in run.streams() for record in run.records(stream, kind="plan")]
    trained.filling = max((record["filling"] for record in plans if "filling" in record), default=None)
    begun = float(plan["time"])
    trained.curve = _thin([(round(s["time"] - begun, 3), s["samples"], _loss(s["loss"])) for s in steps])
    seen = {s["step"]: s["samples"] for s in steps}
    trained.judged = [
        (round(v["time"] - begun, 3), seen[v["step"]], v["metrics"]["loss"])
        for v in history
        if v["kind"] == "validation" and v["step"] in seen and v["metrics"].get("loss") is not None
    ]


def _warm(steps: list[Record]) -> tuple[list[tuple[int, Record]], int]:
    """Records with the events in each, those of the first epoch left out if there are others; the first step kept."""
    before = [0, *(step["samples"] for step in steps)]
    pairs = [(step["samples"] - seen, step) for seen, step in zip(before, steps, strict=False)]
    late = [(count, step) for count, step in pairs if step["epoch"] > 0]
    cold = [step["step"] for _, step in pairs if step["epoch"] == 0]
    kept = [(count, step) for count, step in late or pairs if count and step["seconds"]]
    return kept, max(cold) if late and cold else 0


def _loss(losses: Mapping[str, Any]) -> float | None:
    found: float | None = losses.get("loss", next(iter(losses.values()), None))
    return found


def _thin(curve: list[Any]) -> list[Any]:
    step = max(1, -(-len(curve) // _POINTS))
    return [*curve[::step], *(curve[-1:] if (len(curve) - 1) % step else [])]


def _shares(run: Run, first: int) -> dict[str, float]:
    """Of the ranks that learn, all together."""
    found = workers_of(run)
    if found is not None:  # workers meet no other, only their master: its answer and the way to it are one
        each = sum_workers(found.workers).shares
        return dict.fromkeys(PARTS, 0.0) | {
            "io": each["load"],
            "compute": each["compute"],
            "communicate": each["communicate"],
        }
    ranks = {rank: spans[spans["step"] >= first] for rank, spans in timeline.traces(run).items()}
    return time_shares({rank: spans for rank, spans in ranks.items() if len(spans)})


def time_shares(ranks: Mapping[int, NDArray[Any]]) -> dict[str, float]:
    """Shares of the time of all ranks while they train (validation and checkpoints do not count), on one clock.

    A sum over ranks ends only after the last has come to it: what passes until then is waiting, the rest is
    communication.
    """
    late = _last(ranks)
    rows = []
    for spans in ranks.values():
        parts = timeline.phase_shares(spans)
        training = max(1e-9, 1 - parts.get("validate", 0.0) - parts.get("checkpoint", 0.0))
        talk, wait = parts.get("communicate", 0.0) / training, _waiting(spans, late)
        io, compute = parts.get("load", 0.0) / training, sum(parts.get(name, 0.0) for name in _COMPUTE) / training
        rows.append((io, compute, talk * (1 - wait), talk * wait, max(0.0, 1 - io - compute - talk)))
    return {name: round(float(share), 5) for name, share in zip(PARTS, np.mean(rows, axis=0), strict=True)}


def _talks(spans: NDArray[Any]) -> NDArray[Any]:
    found: NDArray[Any] = spans[(spans["phase"] == _COMMUNICATE) & (spans["thread"] == 0)]
    return found


def _last(ranks: Mapping[int, NDArray[Any]]) -> dict[int, int]:
    """For each step when the last rank came to its sum, in nanoseconds."""
    late: dict[int, int] = {}
    for spans in ranks.values():
        for step, start in zip(*(_talks(spans)[key].tolist() for key in ("step", "start")), strict=True):
            late[step] = max(late.get(step, 0), start)
    return late


def _waiting(spans: NDArray[Any], late: Mapping[int, int]) -> float:
    """Of a rank's time in sums, the share before the last rank had come."""
    talks = _talks(spans)
    total = waited = 0.0
    for step, start, length in zip(*(talks[key].tolist() for key in ("step", "start", "length")), strict=True):
        nanoseconds = 100 * length
        total += nanoseconds
        waited += min(max(late[step] - start, 0), nanoseconds)
    return waited / total if total else 0.0


def _loading(run: Run) -> dict[str, float]:
    """Seconds of waiting for data for each thousand events that a rank learned from."""
    found = workers_of(run)
    if found is not None:
        waits = [1000 * each.load / each.samples for each in found.workers if each.samples]
    else:
        streams = run.streams()
        known = [[r for r in run.history(stream) if r["kind"] == "step"] for stream in streams]
        share = max(1, sum(map(bool, known)))
        waits = [
            1000 * share * sum(r["wait"] for r in steps) / max(steps[-1]["samples"], 1) for steps in known if steps
        ]
    return {"mean": float(np.mean(waits)), "most": float(np.max(waits))} if waits else {}
