"""Formats numbers, times and settings for pages: the filters of the templates."""

from __future__ import annotations

import datetime
import json
import math
import re
import time
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from markupsafe import Markup

from clew.runs.record_metrics import LATEST
from clew.runs.records import finite

_NONE = "–"
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_WIDTH, _HEIGHT = 104.0, 24.0
"""Size of a sparkline, in the units of its view box."""


def number(value: Any) -> str:
    """Format a number with four digits."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return _NONE
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e6):
        return f"{int(value):,}" if abs(value) < 1e7 else short(value)
    if abs(value) >= 1e6:
        return short(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def short(value: Any) -> str:
    """Format a number with three digits and a prefix: 12.4k."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return _NONE
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    for size, letter in _PREFIXES:
        if abs(value) >= 10 * size or (size > 1e3 and abs(value) >= size):
            return f"{value / size:.3g}{letter}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def size(value: Any) -> str:
    """Format a number of bytes."""
    if not isinstance(value, (int, float)):
        return _NONE
    for step, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= step:
            return f"{value / step:.3g} {unit}"
    return f"{value:.0f} B"


def percent(value: Any) -> str:
    """Format a fraction as a percentage."""
    if not isinstance(value, (int, float)):
        return _NONE
    return f"{100 * value:.0f}%" if value >= 0.1 or value == 0 else f"{100 * value:.1f}%"


def duration(seconds: Any) -> str:
    """Format a duration in seconds."""
    if not isinstance(seconds, (int, float)) or seconds < 0:
        return _NONE
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes:02d} m" if hours else f"{minutes} m {rest:02d} s"


def ago(moment: Any) -> str:
    """Format how long ago a time was."""
    if not isinstance(moment, (int, float)) or not moment:
        return _NONE
    passed = time.time() - moment
    if passed < 0:
        return f"in {_coarse(-passed)}"
    return "just now" if passed < 5 else f"{_coarse(passed)} ago"


def iso(moment: Any) -> str:
    """Format a time with its date, in UTC."""
    if not isinstance(moment, (int, float)) or not abs(moment) <= LATEST:
        return ""
    return datetime.datetime.fromtimestamp(moment, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def clock(moment: Any) -> str:
    """Format the time of day in UTC; with the date if it is not today."""
    if not isinstance(moment, (int, float)) or not abs(moment) <= LATEST:
        return ""
    utc = datetime.datetime.fromtimestamp(moment, datetime.UTC)
    today = datetime.datetime.now(datetime.UTC).date() == utc.date()
    return utc.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")


def setting(value: Any) -> str:
    """Format the value of a setting."""
    if value is None:
        return _NONE
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def prose(text: str) -> Markup:
    """Format a docstring as HTML; text in back-ticks becomes code."""
    safe = escape(" ".join(text.split()))
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", safe))


def sparkline(values: Sequence[float | None]) -> str:
    """Return the SVG path of a small curve; on a logarithmic scale if values differ by more than a factor of ten."""
    finite_values = [value for value in values or () if value is not None and math.isfinite(value)]
    if len(finite_values) < 2:
        return ""
    if min(finite_values) > 0 and max(finite_values) / min(finite_values) > 10:
        finite_values = [math.log(value) for value in finite_values]
    low, high = min(finite_values), max(finite_values)
    scale = (_HEIGHT - 4) / (high - low) if high > low else 0.0
    step = _WIDTH / (len(finite_values) - 1)
    return "M" + "L".join(
        f"{i * step:.1f} {_HEIGHT - 2 - (value - low) * scale:.1f}" for i, value in enumerate(finite_values)
    )


def data(value: Any) -> Markup:
    """Return JSON for a script element that only holds data: nothing in it can end the element."""
    return Markup(json.dumps(finite(value), allow_nan=False).replace("<", "\\u003c").replace("&", "\\u0026"))


def _coarse(seconds: float) -> str:
    for step, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= step:
            return f"{seconds / step:.0f} {unit}"
    return f"{seconds:.0f} s"


FILTERS: dict[str, Callable[[Any], Any]] = {
    "number": number,
    "short": short,
    "bytes": size,
    "percent": percent,
    "duration": duration,
    "ago": ago,
    "iso": iso,
    "clock": clock,
    "setting": setting,
    "prose": prose,
    "sparkline": sparkline,
    "data": data,
}
