"""The metrics in a record: the one place that decides which numbers are worth a curve, and what they are called.

The server stores them as curves; TensorBoard and MLflow receive the same names (`runs/record_forwarding.py`). Records
may come from outside, so their values are checked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

LEAD = "rank-0"
"""The stream of rank 0, which has the steps, validations and the end of a run."""
SPEED, WAIT, COMMUNICATE = "speed/samples_per_second", "speed/wait", "speed/communicate"
EPOCH_SECONDS = "speed/epoch_seconds"
MAX_INTEGER = 2**53
LATEST = 2.5e11
"""The latest time that can be converted to a date, in seconds since 1970 (the year 9892)."""
_MAX_NAME = 200


def finite_number(value: Any) -> float | None:
    """Return a value as a finite float, or None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        converted = float(value)
    except OverflowError:
        return None
    return converted if math.isfinite(converted) else None


def whole_number(value: Any, default: int, *, largest: int = MAX_INTEGER) -> int:
    """Return a value as an integer between 0 and `largest`, or `default` if it is not such a number."""
    converted = finite_number(value)
    return int(converted) if converted is not None and 0 <= converted <= largest else default


def clean_text(value: Any, max_length: int = 2000) -> str:
    """Return a value as text that every database can store; None becomes the empty text."""
    if value is None:
        return ""
    return str(value)[:max_length].replace("\x00", "").encode("utf-8", "replace").decode()


def metric_values(stream: str, record: Mapping[str, Any], samples_before: float) -> Iterator[tuple[str, float | None]]:
    """Yield the metrics of a record as pairs of name and value.

    Args:
        stream: The stream of the record, such as `rank-0` or `usage-3`.
        record: The record.
        samples_before: Samples that were trained on before this step, for the speed.

    Yields:
        A name, such as `train/loss`, `val/accuracy`, `speed/wait` or `usage/cpu@3`, and a value. A value that is not
        finite is None: it leaves a gap in the curve. `speed/wait` and `speed/communicate` are fractions of the time.
    """
    kind = record["kind"]
    if stream == LEAD and kind == "step":
        yield from _prefixed("train/", record.get("loss"))
        yield from _step_metrics(record, samples_before)
    elif stream == LEAD and kind == "validation":
        yield from _prefixed("val/", record.get("metrics"))
        times = record.get("times")
        seconds = finite_number(times.get("epoch_seconds")) if isinstance(times, Mapping) else None
        if seconds is not None:
            yield EPOCH_SECONDS, seconds
    elif kind == "usage":
        rank = stream.removeprefix("usage-")
        suffix = "" if rank == "0" else f"@{rank}"
        for name, value in record.items():
            if name not in ("seq", "time", "kind") and (number := finite_number(value)) is not None:
                yield clean_text(f"usage/{name}{suffix}", _MAX_NAME), number


def samples_per_second(record: Mapping[str, Any], samples_before: float) -> float | None:
    """Return the speed of a step record, or None if the record does not have it."""
    seconds, samples = finite_number(record.get("seconds")), finite_number(record.get("samples"))
    if not seconds or seconds <= 0 or samples is None or samples < samples_before:
        return None
    return (samples - samples_before) / seconds


def _step_metrics(record: Mapping[str, Any], samples_before: float) -> Iterator[tuple[str, float | None]]:
    if (rate := finite_number(record.get("lr"))) is not None:
        yield "train/lr", rate
    elif isinstance(record.get("lr"), Mapping):
        yield from _prefixed("train/lr ", record["lr"])
    if (speed := samples_per_second(record, samples_before)) is not None:
        yield SPEED, speed
    seconds = finite_number(record.get("seconds"))
    for name, key in ((WAIT, "wait"), (COMMUNICATE, "communicate")):
        if seconds and seconds > 0 and (spent := finite_number(record.get(key))) is not None:
            yield name, min(max(spent / seconds, 0.0), 1.0)


def _prefixed(prefix: str, values: Any) -> Iterator[tuple[str, float | None]]:
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield clean_text(f"{prefix}{name}", _MAX_NAME), finite_number(value)
