"""Energy and memory that a run used, from the records of its monitors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from clew.runs.folder import Run


def energy_used(run: Run) -> Callable[[float], float] | None:
    """A function from time (seconds since 1970) to energy in joules, summed over ranks; None if it was not measured."""
    meters = []
    for stream in run.streams("usage"):
        samples = [(record["time"], record["energy"]) for record in run.records(stream, "usage")]
        if any(joules is None for _, joules in samples) or not samples:
            continue
        times, values = (np.array(column, dtype=np.float64) for column in zip(*samples, strict=True))
        increments = np.diff(values, prepend=0.0)
        increments[increments < 0] = values[increments < 0]  # the meter of a resumed run starts at zero again
        meters.append((times, np.cumsum(increments)))
    if not meters:
        return None
    return lambda moment: float(sum(np.interp(moment, times, sums, left=0.0) for times, sums in meters))


def peak_memory(run: Run) -> float | None:
    """Sum of the peak memory of all ranks in bytes; None if it was not measured."""
    peaks = [
        max(record["memory"] for record in records)
        for records in (list(run.records(stream, "usage")) for stream in run.streams("usage"))
        if records
    ]
    return float(sum(peaks)) if peaks else None
