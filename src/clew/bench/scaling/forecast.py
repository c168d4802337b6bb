"""How a training would go on more workers than were measured: Amdahl's law and communication, fitted, with an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.bench.scaling.measurement import ScalingRun

FORMS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "ring": lambda p: (p - 1) / p,
    "tree": np.log2,
    "linear": lambda p: p - 1.0,
}
"""How communication may grow with the number of workers: by bandwidth, by latency, or with all that talk at once."""
DRAWS, LEVEL = 400, 0.9
"""Refits, and the share of them within the band."""


_UNTOLD = "one size above one worker: how communication grows is not known, the band covers all forms"


@dataclass
class Forecast:
    """A prediction: never a measurement."""

    workers: list[int] = field(default_factory=list)
    events_per_second: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    speedup: list[float] = field(default_factory=list)
    speedup_low: list[float] = field(default_factory=list)
    speedup_high: list[float] = field(default_factory=list)
    level: float = LEVEL
    serial: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Share of one worker's time that more workers do not shorten: middle, low, high. Strong scaling alone."""
    form: str = ""
    """How communication grows in the best fit."""
    fitted_on: list[int] = field(default_factory=list)
    note: str = ""
    """Why there is none, or what to keep in mind."""


def forecast(trainings: Sequence[ScalingRun], wanted: Sequence[int], *, weak: bool, seed: int = 0) -> Forecast:
    """What one strategy's trainings let expect at other sizes, one core or device a worker.

    The time of an event is what is computed (a + b/p where all share the work; a + b·log2 p where it grows with the
    workers) plus communication (c·g(p), g one of `FORMS`), each fitted by least squares without negative terms to what
    the records say of each. The error is a bootstrap over trainings and their records, and over `FORMS` where fewer
    than two sizes above one tell them apart. Oversubscribed sizes are not fitted.
    """
    usable = [each for each in trainings if each.blocks and not each.oversubscribed]
    sizes = sorted({each.workers for each in usable})
    if len(sizes) < 2:
        return Forecast(note=f"no prediction: {len(sizes)} size(s) without oversubscription, two are needed")
    rng = np.random.default_rng(seed)
    by_size = {p: [each for each in usable if each.workers == p] for p in sizes}
    base, targets = sizes[0], np.array(sorted({*wanted}), dtype=float)
    asked = np.concatenate([[base], targets])
    middle, form, serial = _fit({p: _mean(_all(runs)) for p, runs in by_size.items()}, asked, weak, None)
    draws, serials = [], []
    told = sum(p > 1 for p in sizes) > 1
    for _ in range(DRAWS):
        sample = {p: _mean(_resampled(runs, rng)) for p, runs in by_size.items()}
        chosen = None if told else str(rng.choice(list(FORMS)))
        times, _, part = _fit(sample, asked, weak, chosen)
        draws.append(times)
        serials.append(part)
    if not told:
        middle = np.median(draws, axis=0)  # no form fits better than another: none is put first
    speeds = 1 / np.array([middle, *draws])
    made = Forecast(workers=[int(p) for p in targets], form=form if told else "", fitted_on=sizes)
    made.note = "" if told else _UNTOLD
    made.events_per_second, made.low, made.high = _band(speeds)
    made.speedup, made.speedup_low, made.speedup_high = _band(base * speeds / speeds[:, :1])
    if not weak:
        low, high = np.quantile(serials, _edges())
        made.serial = (round(serial, 4), round(float(low), 4), round(float(high), 4))
    return made


def _band(values: NDArray[Any]) -> tuple[list[float], list[float], list[float]]:
    """The fit and the edges of refits, at the sizes behind the first."""
    low, high = np.quantile(values[1:, 1:], _edges(), axis=0)
    middle = values[0, 1:]
    return _plain(middle), _plain(np.minimum(low, middle)), _plain(np.maximum(high, middle))


def _edges() -> list[float]:
    return [(1 - LEVEL) / 2, (1 + LEVEL) / 2]


def _plain(values: NDArray[Any]) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def _all(runs: Sequence[ScalingRun]) -> list[tuple[int, float, float, float]]:
    return [block for each in runs for block in each.blocks]


def _resampled(runs: Sequence[ScalingRun], rng: np.random.Generator) -> list[tuple[int, float, float, float]]:
    """Trainings drawn with replacement, then records of each."""
    chosen = [runs[place] for place in rng.integers(len(runs), size=len(runs))]
    return [each.blocks[place] for each in chosen for place in rng.integers(len(each.blocks), size=len(each.blocks))]


def _mean(blocks: Sequence[tuple[int, float, float, float]]) -> tuple[float, float]:
    """Seconds an event that are computed (or loaded), and that are communicated."""
    events, seconds, _, talk = np.sum(np.array(blocks, dtype=float), axis=0)
    return (seconds - talk) / events, talk / events


def _fit(
    times: Mapping[int, tuple[float, float]], asked: NDArray[Any], weak: bool, chosen: str | None
) -> tuple[NDArray[Any], str, float]:
    """Seconds an event at the sizes asked for, the form of communication, and the serial share of one worker's time."""
    p = np.array(sorted(times), dtype=float)
    computed, talked = (np.array([times[int(size)][k] for size in p]) for k in (0, 1))
    shape = _weak if weak else _strong
    a, b = _least(shape(p), computed)
    fits = {name: _least(_talk(p, name, weak), talked) for name in ([chosen] if chosen else FORMS)}
    best = min(fits, key=lambda name: float(np.sum((_talk(p, name, weak) @ fits[name] - talked) ** 2)))
    found = shape(asked) @ np.array([a, b]) + _talk(asked, best, weak) @ fits[best]
    return found, best, float(a / (a + b)) if a + b else 0.0


def _strong(p: NDArray[Any]) -> NDArray[Any]:
    return np.stack([np.ones_like(p), 1 / p], axis=1)


def _weak(p: NDArray[Any]) -> NDArray[Any]:
    """The work of a worker stays the same; what it takes may grow as more share memory and disk."""
    return np.stack([1 / p, np.log2(p) / p], axis=1)


def _talk(p: NDArray[Any], form: str, weak: bool) -> NDArray[Any]:
    """Seconds an event; a batch that grows with the workers pays once for more events."""
    return (FORMS[form](p) / (p if weak else 1.0))[:, None]


def _least(matrix: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    from scipy.optimize import nnls

    scale = np.abs(values).max() or 1.0
    found: NDArray[Any] = nnls(matrix, values / scale)[0] * scale
    return found
