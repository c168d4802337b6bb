"""Forecast of the speed on more workers than measured: a fit of Amdahl's law plus communication, with an error band."""

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
"""How communication may grow with the number of workers: limited by bandwidth, by latency, or linear."""
DRAWS, LEVEL = 400, 0.9
"""Number of refits, and the share of them within the band."""
_UNKNOWN_FORM = "one size above one worker: how communication grows is not known, the band covers all forms"


@dataclass
class Forecast:
    """The predicted speed of one strategy, by number of workers."""

    workers: list[int] = field(default_factory=list)
    events_per_second: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    speedup: list[float] = field(default_factory=list)
    speedup_low: list[float] = field(default_factory=list)
    speedup_high: list[float] = field(default_factory=list)
    level: float = LEVEL
    serial: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Share of one worker's time that more workers do not reduce: median, low, high. Strong scaling only."""
    form: str = ""
    """Name in `FORMS` of the best fit."""
    fitted_on: list[int] = field(default_factory=list)
    note: str = ""
    """Why there is no forecast, or a restriction."""


def forecast(trainings: Sequence[ScalingRun], sizes: Sequence[int], *, weak: bool, seed: int = 0) -> Forecast:
    """Forecast the speed of one strategy at other sizes, with one core or device per worker.

    The time per event is computing (a + b/p for shared work; a + b·log2 p for work that grows with the workers) plus
    communication (c·g(p), g one of `FORMS`). Both are fitted to the records by least squares without negative terms.
    The error is a bootstrap over trainings and their records, and over `FORMS` if fewer than two sizes above one
    worker were measured. Oversubscribed sizes are not used.

    Args:
        trainings: Measurements of one strategy.
        sizes: Numbers of workers to predict.
        weak: Whether the work grows with the workers.
        seed: Seed of the bootstrap.
    """
    usable = [run for run in trainings if run.blocks and not run.oversubscribed]
    measured = sorted({run.workers for run in usable})
    if len(measured) < 2:
        return Forecast(note=f"no prediction: {len(measured)} size(s) without oversubscription, two are needed")
    rng = np.random.default_rng(seed)
    by_size = {p: [run for run in usable if run.workers == p] for p in measured}
    base, targets = measured[0], np.array(sorted({*sizes}), dtype=float)
    requested = np.concatenate([[base], targets])
    middle, form, serial = _fit({p: _mean(_all(runs)) for p, runs in by_size.items()}, requested, weak, None)
    draws, serials = [], []
    form_known = sum(p > 1 for p in measured) > 1
    for _ in range(DRAWS):
        sample = {p: _mean(_resampled(runs, rng)) for p, runs in by_size.items()}
        chosen = None if form_known else str(rng.choice(list(FORMS)))
        times, _, part = _fit(sample, requested, weak, chosen)
        draws.append(times)
        serials.append(part)
    if not form_known:
        middle = np.median(draws, axis=0)  # all forms fit equally well
    speeds = 1 / np.array([middle, *draws])
    result = Forecast(workers=[int(p) for p in targets], form=form if form_known else "", fitted_on=measured)
    result.note = "" if form_known else _UNKNOWN_FORM
    result.events_per_second, result.low, result.high = _band(speeds)
    result.speedup, result.speedup_low, result.speedup_high = _band(base * speeds / speeds[:, :1])
    if not weak:
        low, high = np.quantile(serials, _edges())
        result.serial = (round(serial, 4), round(float(low), 4), round(float(high), 4))
    return result


def _band(values: NDArray[Any]) -> tuple[list[float], list[float], list[float]]:
    """Return the fit and the edges of the band, at the sizes after the first."""
    low, high = np.quantile(values[1:, 1:], _edges(), axis=0)
    middle = values[0, 1:]
    return _plain(middle), _plain(np.minimum(low, middle)), _plain(np.maximum(high, middle))


def _edges() -> list[float]:
    return [(1 - LEVEL) / 2, (1 + LEVEL) / 2]


def _plain(values: NDArray[Any]) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def _all(runs: Sequence[ScalingRun]) -> list[tuple[int, float, float, float]]:
    return [block for run in runs for block in run.blocks]


def _resampled(runs: Sequence[ScalingRun], rng: np.random.Generator) -> list[tuple[int, float, float, float]]:
    """Draw trainings with replacement, then records of each."""
    chosen = [runs[index] for index in rng.integers(len(runs), size=len(runs))]
    return [run.blocks[index] for run in chosen for index in rng.integers(len(run.blocks), size=len(run.blocks))]


def _mean(blocks: Sequence[tuple[int, float, float, float]]) -> tuple[float, float]:
    """Return the seconds per event of computing and loading, and of communication."""
    events, seconds, _, communication = np.sum(np.array(blocks, dtype=float), axis=0)
    return (seconds - communication) / events, communication / events


def _fit(
    times: Mapping[int, tuple[float, float]], requested: NDArray[Any], weak: bool, chosen: str | None
) -> tuple[NDArray[Any], str, float]:
    """Return the seconds per event at the requested sizes, the form of communication, and the serial share."""
    p = np.array(sorted(times), dtype=float)
    computing, communication = (np.array([times[int(size)][k] for size in p]) for k in (0, 1))
    shape = _weak if weak else _strong
    a, b = _non_negative_fit(shape(p), computing)
    fits = {
        name: _non_negative_fit(_communication(p, name, weak), communication)
        for name in ([chosen] if chosen else FORMS)
    }
    best = min(fits, key=lambda name: float(np.sum((_communication(p, name, weak) @ fits[name] - communication) ** 2)))
    seconds = shape(requested) @ np.array([a, b]) + _communication(requested, best, weak) @ fits[best]
    return seconds, best, float(a / (a + b)) if a + b else 0.0


def _strong(p: NDArray[Any]) -> NDArray[Any]:
    return np.stack([np.ones_like(p), 1 / p], axis=1)


def _weak(p: NDArray[Any]) -> NDArray[Any]:
    """The work per worker is constant; its time may grow as more workers share memory and disk."""
    return np.stack([1 / p, np.log2(p) / p], axis=1)


def _communication(p: NDArray[Any], form: str, weak: bool) -> NDArray[Any]:
    """Return the seconds per event; in weak scaling one communication serves more events."""
    return (FORMS[form](p) / (p if weak else 1.0))[:, None]


def _non_negative_fit(matrix: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    from scipy.optimize import nnls

    scale = np.abs(values).max() or 1.0
    coefficients: NDArray[Any] = nnls(matrix, values / scale)[0] * scale
    return coefficients
