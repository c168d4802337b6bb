"""The axis of a figure that shows a parameter of a study."""

from __future__ import annotations

import math
from typing import Any

from clew.tuning.config import Parameter

_DECADES = 2
"""A logarithmic axis shorter than this has ticks at 1, 2 and 5."""


def parameter_axis(parameter: Parameter) -> dict[str, Any]:
    """Return an axis that covers the range of a parameter."""
    bounds = parameter.bounds
    if bounds is None:
        return {"type": "category", "categoryarray": [str(choice) for choice in parameter.choice or ()]}
    ends = [math.log10(bound) if parameter.log is not None else bound for bound in bounds]
    margin = 0.04 * (ends[1] - ends[0])
    kind: dict[str, Any] = {"type": "linear"}
    if parameter.log is not None:
        kind = {"type": "log", "exponentformat": "power"}
        if ends[1] - ends[0] < _DECADES:  # plotly would write 2 for 20
            kind = {"type": "log", "tickvals": _one_two_five(*bounds)}
    return {**kind, "range": [ends[0] - margin, ends[1] + margin]}


def _one_two_five(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
    return [tick for tick in ticks if low <= tick <= high]
