"""What a run took from its machines, from the records its monitors left."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from clew.runs.folder import Run


def energy(run: Run) -> Callable[[float], float] | None:
    """Joules used up to a time (seconds since 1970), over all ranks that can tell; None where none can."""
    meters = []
    for stream in run.streams("usage"):
        told = [(record["time"], record["energy"]) for record in run.records(stream, "usage")]
        if any(joules is None for _, joules in told) or not told:
            continue
        times, values = (np.array(column, dtype=np.float64) for column in zip(*told, strict=True))
        gained = np.diff(values, prepend=0.0)
        gained[gained < 0] = values[gained < 0]  # a resumed run's meter begins at nothing again
        meters.append((times, np.cumsum(gained)))
    if not meters:
        return None
    return lambda moment: float(sum(np.interp(moment, times, sums, left=0.0) for times, sums in meters))


def peak_memory(run: Run) -> float | None:
    """The most bytes all ranks together held, added over their own peaks; None where nobody looked."""
    peaks = [
        max(record["memory"] for record in records)
        for records in (list(run.records(stream, "usage")) for stream in run.streams("usage"))
        if records
    ]
    return float(sum(peaks)) if peaks else None
