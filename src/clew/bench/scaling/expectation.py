"""What a model of bytes and bandwidths expects of a strategy, beside what was measured.

The model knows the bytes that a worker sends per step, counted from the parameters, and assumes a link: its bandwidth
and its latency. Computing is that of the smallest measured size, shared perfectly. The real efficiency lies between no
overlap of communication with computing, and a complete one, if nothing else slows the training down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from clew.bench.scaling.measurement import ScalingRun
from clew.core.config import Section
from clew.training.strategy_table import strategy_traits


class LinkConfig(Section):
    """A connection between workers. The values are assumed, not measured."""

    gigabytes_per_second: Annotated[float, Field(gt=0)]
    """Bandwidth of one worker in one direction."""
    microseconds: Annotated[float, Field(ge=0)] = 10.0
    """Latency of a message."""


LINKS: dict[str, LinkConfig] = {
    "NVLink 4": LinkConfig(gigabytes_per_second=450, microseconds=3),
    "network 400 Gbit/s": LinkConfig(gigabytes_per_second=50, microseconds=5),
    "network 100 Gbit/s": LinkConfig(gigabytes_per_second=12.5, microseconds=10),
    "network 10 Gbit/s": LinkConfig(gigabytes_per_second=1.25, microseconds=30),
}
"""Nominal values of common connections."""


@dataclass
class ExpectedSize:
    """The expectation for one number of workers."""

    workers: int
    bytes_per_step: float
    """Bytes that the busiest process sends per step."""
    compute_seconds: float
    """Seconds per step without communication."""
    communication_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds per step, by link."""
    efficiency: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Speed per worker relative to one without communication, by link: with no overlap, and with a complete one."""
    measured_efficiency: float | None = None
    measured_communication_seconds: float | None = None


@dataclass
class Expectation:
    """The expectation for one strategy."""

    parameters: int = 0
    sizes: list[ExpectedSize] = field(default_factory=list)
    note: str = ""
    """Why there is none."""


def expect(
    trainings: Sequence[ScalingRun], sizes: Sequence[int], links: Mapping[str, LinkConfig], *, weak: bool
) -> Expectation:
    """Return what the model expects at the measured and at other sizes.

    Args:
        trainings: Measurements of one strategy.
        sizes: Further numbers of workers.
        links: The connections, by name.
        weak: Whether every worker has a batch of its own.
    """
    usable = [run for run in trainings if run.blocks and not run.oversubscribed]
    if not usable:
        return Expectation(note="no size without oversubscription was measured")
    base = min(usable, key=lambda run: run.workers)
    if strategy_traits(base.strategy).model_passes == 0:
        return Expectation(base.parameters, note="how many bytes it sends per step is not known")
    measured = {run.workers: run for run in usable}
    reference = base.events_per_second / base.workers
    result = Expectation(base.parameters)
    for workers in sorted({*measured, *sizes}):
        own_events = base.batch_size / base.workers if weak else base.batch_size / workers
        if strategy_traits(base.strategy).asynchronous:
            own_events = base.batch_size
        expected = _at_size(base, workers, own_events, links)
        run = measured.get(workers)
        if run is not None:
            expected.measured_efficiency = round(run.events_per_second / workers / reference, 4)
            expected.measured_communication_seconds = _communication_per_step(run)
        result.sizes.append(expected)
    return result


def bytes_per_step(run: ScalingRun, workers: int) -> float:
    """Return the bytes that the busiest process sends per step of a worker, for a training on this many workers.

    Workers of a ring send their share of all values `model_passes` times. Masters answer each exchange of every worker
    with all values.

    Example:
        >>> bytes_per_step(ScalingRun("allreduce", 1, "", parameters=1_000_000), workers=4)
        6000000.0
    """
    traits, size = strategy_traits(run.strategy), float(run.parameters * run.value_bytes)
    if traits.asynchronous:
        masters = run.processes - run.workers
        return size * workers / run.exchange_interval / masters if masters else 0.0
    return traits.model_passes * size * (workers - 1) / workers


def _at_size(base: ScalingRun, workers: int, own_events: float, links: Mapping[str, LinkConfig]) -> ExpectedSize:
    sent = bytes_per_step(base, workers)
    compute = own_events * _compute_per_event(base)
    passes = strategy_traits(base.strategy).model_passes
    expected = ExpectedSize(workers, sent, compute)
    for name, link in links.items():
        messages = passes * (workers - 1) if sent else 0
        seconds = sent / (1e9 * link.gigabytes_per_second) + 1e-6 * link.microseconds * messages
        expected.communication_seconds[name] = float(f"{seconds:.4g}")
        efficiency = (compute / (compute + seconds), compute / max(compute, seconds))
        expected.efficiency[name] = (round(efficiency[0], 4), round(efficiency[1], 4))
    return expected


def _compute_per_event(run: ScalingRun) -> float:
    """Return the seconds of computing and loading that one worker needs per event."""
    events, seconds, communication = (sum(block[k] for block in run.blocks) for k in (0, 1, 3))
    return run.workers * (seconds - communication) / events


def _communication_per_step(run: ScalingRun) -> float:
    events, communication = (sum(block[k] for block in run.blocks) for k in (0, 3))
    return float(f"{communication / events * run.batch_size:.4g}")
