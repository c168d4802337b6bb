"""Numbers, times and settings as people read them: the filters of the templates."""

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

from clew.runs.records import finite
from clew.server.runs.record_numbers import LATEST

_NONE = "–"
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_WIDTH, _HEIGHT = 104.0, 24.0
"""Of a sparkline, in the units of its view box."""


def number(value: Any) -> str:
    """Four figures."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return _NONE
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e6):
        return f"{int(value):,}" if abs(value) < 1e7 else short(value)
    if abs(value) >= 1e6:
        return short(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def short(value: Any) -> str:
    """Three figures and a prefix: 12.4k."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return _NONE
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    for size, letter in _PREFIXES:
        if abs(value) >= 10 * size or (size > 1e3 and abs(value) >= size):
            return f"{value / size:.3g}{letter}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def size(value: Any) -> str:
    """Bytes."""
    if not isinstance(value, (int, float)):
        return _NONE
    for step, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= step:
            return f"{value / step:.3g} {unit}"
    return f"{value:.0f} B"


def percent(value: Any) -> str:
    """Of a share."""
    if not isinstance(value, (int, float)):
        return _NONE
    return f"{100 * value:.0f}%" if value >= 0.1 or value == 0 else f"{100 * value:.1f}%"


def length(seconds: Any) -> str:
    """How long."""
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
    """How long since."""
    if not isinstance(moment, (int, float)) or not moment:
        return _NONE
    passed = time.time() - moment
    if passed < 0:
        return f"in {_coarse(-passed)}"
    return "just now" if passed < 5 else f"{_coarse(passed)} ago"


def iso(moment: Any) -> str:
    """In full, UTC."""
    if not isinstance(moment, (int, float)) or not abs(moment) <= LATEST:
        return ""
    return datetime.datetime.fromtimestamp(moment, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def clock(moment: Any) -> str:
    """Time of day, UTC; with the date where that is not today's."""
    if not isinstance(moment, (int, float)) or not abs(moment) <= LATEST:
        return ""
    told = datetime.datetime.fromtimestamp(moment, datetime.UTC)
    today = datetime.datetime.now(datetime.UTC).date() == told.date()
    return told.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")


def setting(value: Any) -> str:
    """One value of a document."""
    if value is None:
        return _NONE
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def prose(text: str) -> Markup:
    """A docstring of one paragraph or more; what stands in back-ticks as code."""
    safe = escape(" ".join(text.split()))
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", safe))


def sparkline(values: Sequence[float | None]) -> str:
    """The path of a small curve, on a logarithmic scale where values fall by more than a factor of ten."""
    told = [value for value in values or () if value is not None and math.isfinite(value)]
    if len(told) < 2:
        return ""
    if min(told) > 0 and max(told) / min(told) > 10:
        told = [math.log(value) for value in told]
    low, high = min(told), max(told)
    scale = (_HEIGHT - 4) / (high - low) if high > low else 0.0
    step = _WIDTH / (len(told) - 1)
    return "M" + "L".join(f"{i * step:.1f} {_HEIGHT - 2 - (value - low) * scale:.1f}" for i, value in enumerate(told))


def data(value: Any) -> Markup:
    """JSON inside a script element that is no script: nothing in it can end the element."""
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
    "length_of": length,
    "ago": ago,
    "iso": iso,
    "clock": clock,
    "setting": setting,
    "prose": prose,
    "sparkline": sparkline,
    "data": data,
}
