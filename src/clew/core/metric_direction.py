"""Whether a metric is better when it is smaller or larger, by its name."""

from __future__ import annotations

import re
from typing import Literal

Direction = Literal["minimize", "maximize"]

_WORDS: dict[str, Direction] = {
    **dict.fromkeys(("loss", "error", "mae", "mse", "rmse", "nll", "seconds", "parameters"), "minimize"),
    **dict.fromkeys(
        ("accuracy", "auc", "f1", "precision", "recall", "efficiency", "purity", "iou", "r2", "samples_per_second"),
        "maximize",
    ),
}
"""The direction of metrics that have one of these words in their name."""


def metric_direction(metric: str, direction: Direction | None) -> Direction:
    """Return whether a metric is minimised or maximised.

    Args:
        metric: The name, such as `loss`, `val/track_f1` or `run/seconds`.
        direction: The direction in the settings; None follows the metric.

    Raises:
        ValueError: The direction contradicts the metric, or is missing for a metric whose direction is not known.

    Example:
        >>> metric_direction("val/accuracy", None), metric_direction("val/loss", None)
        ('maximize', 'minimize')
        >>> metric_direction("val/loss", "maximize")
        Traceback (most recent call last):
            ...
        ValueError: direction: maximize contradicts 'val/loss', which is better when it is smaller; name the metric ...
    """
    natural = natural_direction(metric)
    if direction is None and natural is None:
        raise ValueError(f"'{metric}' needs a direction: minimize or maximize")
    check_direction(metric, direction)
    return direction or natural or "minimize"


def check_direction(metric: str, direction: Direction | None) -> None:
    """Check that a direction does not contradict its metric.

    Raises:
        ValueError: It does.
    """
    natural = natural_direction(metric)
    if direction is not None and natural is not None and direction != natural:
        size = "smaller" if natural == "minimize" else "larger"
        raise ValueError(
            f"direction: {direction} contradicts '{metric}', which is better when it is {size}; name the metric to "
            f"{direction}, or leave out the direction"
        )


def natural_direction(metric: str) -> Direction | None:
    """Return the direction of a metric by the words in its name; None if they do not tell.

    Example:
        >>> natural_direction("track_f1"), natural_direction("significance")
        ('maximize', None)
    """
    name = metric.rpartition("/")[2].lower()
    words = [name, *reversed(re.split(r"[^a-z0-9]+", name))]
    return next((_WORDS[word] for word in words if word in _WORDS), None)
