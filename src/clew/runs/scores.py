"""A metric of an evaluation with its statistical error: how it is recorded, and the one way in which it is written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clew.runs.record_metrics import finite_number

if TYPE_CHECKING:
    from clew.metrics import Metric


@dataclass(frozen=True)
class Score:
    """A metric of an evaluation. Values that are not finite are None."""

    value: float | None
    error: float | None = None
    """One standard deviation, or half the width of the interval; None if the metric has no error."""
    low: float | None = None
    high: float | None = None
    """Ends of the 68% interval, if it is not symmetric."""

    @classmethod
    def of_metric(cls, metric: Metric) -> Score:
        """Return the score of a metric that was computed."""
        value, error = finite_number(metric.value), finite_number(metric.error)
        low, high = map(finite_number, metric.interval)
        if value is None or error is None or low is None or high is None:
            return cls(value, error)
        symmetric = math.isclose(high - value, value - low, rel_tol=1e-6)
        return cls(value, error) if symmetric else cls(value, error, low, high)

    @classmethod
    def read(cls, entry: Any) -> Score:
        """Return the score in a record. Records may come from outside: values of the wrong type become None."""
        values = entry if isinstance(entry, Mapping) else {}
        return cls(*(finite_number(values.get(name)) for name in ("value", "error", "low", "high")))

    def entry(self) -> dict[str, float | None]:
        """Return what a record holds of the score."""
        ends = {} if self.low is None or self.high is None else {"low": self.low, "high": self.high}
        return {"value": self.value, "error": self.error, **ends}

    @property
    def value_text(self) -> str:
        """The value, with as many digits as its error has; a dash if there is none."""
        if self.value is None:
            return "–"
        if self.error is None:
            return f"{self.value:.4g}" if abs(self.value) >= 1e4 else f"{self.value:.4f}"
        return f"{self.value:.{self._decimals}f}"

    @property
    def error_text(self) -> str:
        """The error with its sign, as `± 0.0080` or `+0.0071 −0.0083`; empty if there is none."""
        if self.value is None or self.error is None:
            return ""
        if self.low is not None and self.high is not None:
            up, down = (f"{end:.{self._decimals}f}" for end in (self.high - self.value, self.value - self.low))
            if up != down:
                return f"+{up} −{down}"
        return f"± {self.error:.{self._decimals}f}"

    @property
    def text(self) -> str:
        """Value and error."""
        return f"{self.value_text} {self.error_text}".rstrip()

    @property
    def _decimals(self) -> int:
        """Decimals that show two digits of the error."""
        if not self.error:
            return 4
        return min(max(1 - math.floor(math.log10(abs(self.error))), 0), 9)
