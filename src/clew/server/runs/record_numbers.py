"""The numbers of a record that are worth a curve. Records come from outside: their facts are not taken on trust."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

LEAD = "rank-0"
"""The stream that tells a run's story."""
SPEED = "speed/samples_per_second"
LARGEST = 2**53
LATEST = 2.5e11
"""The last moment that has a date, in the year 9892."""
_LONGEST = 200
"""Characters of a metric's name."""


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def whole(value: Any, otherwise: int, *, largest: int = LARGEST) -> int:
    """A number of things that a database holds, or `otherwise`."""
    found = number(value)
    return int(found) if found is not None and 0 <= found <= largest else otherwise


def text(value: Any, longest: int = 2000) -> str:
    """A text that a database holds."""
    return str(value)[:longest].replace("\x00", "").encode("utf-8", "replace").decode() if value is not None else ""


def numbers(stream: str, record: Mapping[str, Any], samples: float) -> Iterator[tuple[str, float | None]]:
    """Pairs of metric and value; a value that is not finite is None, which leaves a gap. `samples` are those seen up
    to the step before, for the speed.
    """
    kind = record["kind"]
    if stream == LEAD and kind == "step":
        yield from _named("train/", record.get("loss"))
        yield from _step(record, samples)
    elif stream == LEAD and kind == "validation":
        yield from _named("val/", record.get("metrics"))
    elif kind == "usage":
        rank = stream.removeprefix("usage-")
        where = "" if rank == "0" else f"@{rank}"
        for name, value in record.items():
            if name not in ("seq", "time", "kind") and (found := number(value)) is not None:
                yield _metric(f"usage/{name}{where}"), found


def _step(record: Mapping[str, Any], samples: float) -> Iterator[tuple[str, float | None]]:
    if (rate := number(record.get("lr"))) is not None:
        yield "train/lr", rate
    elif isinstance(record.get("lr"), Mapping):
        yield from _named("train/lr ", record["lr"])
    seconds, seen = number(record.get("seconds")), number(record.get("samples"))
    if not seconds or seconds <= 0:
        return
    if seen is not None and seen >= samples:
        yield SPEED, (seen - samples) / seconds
    for part in ("wait", "communicate"):
        if (spent := number(record.get(part))) is not None:
            yield f"speed/{part}", min(max(spent / seconds, 0.0), 1.0)


def _named(before: str, values: Any) -> Iterator[tuple[str, float | None]]:
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield _metric(f"{before}{name}"), number(value)


def _metric(name: str) -> str:
    return text(name, _LONGEST)
