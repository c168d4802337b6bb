"""Confidence intervals of fractions."""

from __future__ import annotations

from typing import Any

import numpy as np


def wilson_interval(passed: Any, total: Any, squares: Any) -> tuple[Any, Any]:
    """Return the ends of the 68% Wilson interval of `passed / total`.

    Args:
        passed: Sum of the weights of those that passed; a number or an array.
        total: Sum of all weights.
        squares: Sum of all squared weights.

    Returns:
        The lower and the upper end, both within 0 and 1; NaN where `total` is not positive.

    Example:
        >>> low, high = wilson_interval(9, 9, 9)
        >>> round(float(low), 3), round(float(high), 3)
        (0.9, 1.0)
    """
    passed, total, squares = (np.asarray(item, dtype=np.float64) for item in (passed, total, squares))
    with np.errstate(invalid="ignore", divide="ignore"):
        count = total**2 / squares
        share = np.clip(passed / total, 0.0, 1.0)
        half = np.sqrt(share * (1 - share) / count + 1 / (4 * count**2))
        ends = [np.clip((share + 1 / (2 * count) + sign * half) / (1 + 1 / count), 0.0, 1.0) for sign in (-1, 1)]
    valid = (total > 0) & (squares > 0)
    return np.where(valid, ends[0], np.nan), np.where(valid, ends[1], np.nan)
