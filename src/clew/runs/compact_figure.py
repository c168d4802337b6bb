"""Figures with long arrays as base64 of numbers, which Plotly reads: half the size of decimal text."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from clew.figure import Figure

_SHORTEST = 128
"""Numbers of an array from which on it is encoded."""
_KEYS = ("x", "y", "array", "arrayminus")
"""Parts of traces that may hold long arrays of numbers."""
_INTEGERS = (np.dtype("int8"), np.dtype("int16"), np.dtype("int32"))


def compact(figure: Figure) -> Figure:
    """Return a figure whose long arrays of numbers are encoded.

    Floating-point numbers keep seven digits; `clew.figure` writes six. None becomes NaN: a gap in the curve.
    """
    return {**figure, "data": [_compact(trace) for trace in figure["data"]]}


def _compact(part: Mapping[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = dict(part)
    for key, value in part.items():
        if key in _KEYS and isinstance(value, list) and len(value) >= _SHORTEST:
            changed[key] = _encoded(value)
        elif key.startswith("error_") and isinstance(value, Mapping):
            changed[key] = _compact(value)
    return changed


def _encoded(values: list[Any]) -> Any:
    """Return numbers as Plotly's `bdata` and `dtype`; the list itself if it has something else."""
    if any(isinstance(value, bool) or not isinstance(value, (int, float, type(None))) for value in values):
        return values
    if all(isinstance(value, int) for value in values):
        low, high = min(values), max(values)
        for kind in _INTEGERS:
            if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
                return _base64(np.array(values, kind), f"i{kind.itemsize}")
        return values
    numbers = np.array([np.nan if value is None else value for value in values], np.float32)
    return _base64(numbers, "f4") if np.isfinite(numbers).sum() == sum(v is not None for v in values) else values


def _base64(numbers: np.ndarray[Any, Any], dtype: str) -> dict[str, str]:
    little = numbers.astype(numbers.dtype.newbyteorder("<"))
    return {"dtype": dtype, "bdata": base64.b64encode(little.tobytes()).decode()}
