"""Parameters of a search space in the formats of PanDA."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from clew.errors import ConfigError, nearest
from clew.tuning.config import Parameter

_SIGMAS = 3.0
"""A normal distribution is cut at this many standard deviations to either side."""
_METHODS = (
    "categorical",
    "uniform",
    "uniformint",
    "quniform",
    "loguniform",
    "loguniformint",
    "normal",
    "lognormal",
)
_TYPES = ("Choice", "TransitionChoice", "Scalar", "Log")


def from_panda(name: str, entry: Any) -> Parameter:
    """Return a parameter from either format: {"method", "dimension"}, or nevergrad's {"type", "params" or "bounds"}.

    Args:
        name: The name of the parameter, for messages.
        entry: Its entry in `opt_space`.

    Raises:
        ConfigError: The entry has neither format.
    """
    try:
        if not isinstance(entry, Mapping):
            raise TypeError("expected a method and its dimension, or a type and its bounds")
        if "method" in entry:
            return _from_method(str(entry["method"]).lower(), entry.get("dimension", {}))
        return _from_type(str(entry["type"]), entry)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"opt_space: {name}: {json.dumps(entry)[:100]} is not understood ({error})") from None


def to_panda(parameter: Parameter) -> dict[str, Any]:
    """Return a parameter in the format of PanDA; `from_panda` reads it.

    Raises:
        ConfigError: The parameter has conditions, which PanDA does not support.
    """
    if parameter.when:
        raise ConfigError("PanDA does not support conditions: remove `when`, or run the study with clew")
    if parameter.choice is not None:
        return {"method": "categorical", "dimension": {"categories": list(parameter.choice), "grid_search": 0}}
    low, high = parameter.bounds or (0, 0)
    method = ("loguniform" if parameter.log is not None else "uniform") + ("int" if parameter.integer else "")
    if parameter.step is not None and not parameter.integer:
        return {"method": "quniform", "dimension": {"low": low, "high": high, "q": parameter.step}}
    return {"method": method, "dimension": {"low": low, "high": high}}


def _from_method(method: str, dimension: Mapping[str, Any]) -> Parameter:
    if method == "categorical":
        return Parameter(choice=tuple(dimension["categories"]))
    base = method.removesuffix("int")
    step = dimension.get("q") if base.startswith("q") else None
    base = base.removeprefix("q") if step is not None else base
    integer = method.endswith("int")
    if base in ("normal", "lognormal"):
        mean, sigma = float(dimension["mu"]), float(dimension["sigma"])
        low, high = mean - _SIGMAS * sigma, mean + _SIGMAS * sigma
        base = base.replace("normal", "uniform")
        low, high = (math.exp(low), math.exp(high)) if base == "loguniform" else (low, high)
    else:
        low, high = dimension["low"], dimension["high"]
        if base == "loguniform" and low <= 0:  # hyperopt gives the exponents
            low, high = math.exp(low), math.exp(high)
    if base == "loguniform":
        return Parameter(log=(low, high), integer=integer)
    if base != "uniform":
        raise ValueError(f"method '{method}'{nearest(method, _METHODS)}")
    return Parameter(uniform=(low, high), integer=integer, step=step)


def _from_type(kind: str, entry: Mapping[str, Any]) -> Parameter:
    options = {**entry, **entry.get("params", {})}
    if kind in ("Choice", "TransitionChoice"):
        return Parameter(choice=tuple(options["choices"]))
    if kind not in ("Scalar", "Log"):
        raise ValueError(f"type '{kind}'{nearest(kind, _TYPES)}")
    low, high = options["bounds"] if "bounds" in options else (options["lower"], options["upper"])
    integer = bool(options.get("integer") or options.get("integer_casting"))
    form = "log" if kind == "Log" else "uniform"
    return Parameter.model_validate({form: (low, high), "integer": integer})
