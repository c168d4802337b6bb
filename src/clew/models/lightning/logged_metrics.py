"""Metrics of torchmetrics as metrics of clew: their states are added over batches and ranks."""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from clew.errors import RecipeError
from clew.metrics import Mean, Metric


def is_torch_metric(value: Any) -> bool:
    """Return whether this is a metric of torchmetrics, without importing it."""
    package = sys.modules.get("torchmetrics")
    return package is not None and isinstance(value, package.Metric)


_KEY = "_clew_key"
_TEMPLATES: dict[str, Any] = {}
"""The metrics of the modules of this process, by class and name: they compute values from states."""


def register_metrics(module: Any) -> None:
    """Remember the metrics of a module. Every process that adds metrics has built the module."""
    for name, part in module.named_modules():
        if is_torch_metric(part):
            part.__dict__[_KEY] = key = f"{type(module).__qualname__}.{name}"
            _TEMPLATES[key] = part


@dataclass(frozen=True)
class TorchMetric(Metric):
    """The state of a metric of torchmetrics. Two are added as torchmetrics combines the states of processes."""

    key: str = field(metadata={"label": True})
    """Class of the module, and name of the metric in it."""
    states: dict[str, Any]
    """By name of the state: its type, its numbers, and whether it is a list. Plain values, which processes can send."""

    @classmethod
    def of(cls, metric: Any) -> TorchMetric:
        """Take the state of a metric, and reset it.

        Raises:
            RecipeError: The metric is no attribute of the module.
        """
        key = metric.__dict__.get(_KEY)
        if key is None:
            kind = type(metric).__name__
            raise RecipeError(f"log() got a {kind} that is no attribute of the module; set it in __init__")
        taken = cls(key, _dump(metric))
        metric.reset()
        return taken

    @property
    def value(self) -> float:
        return _to_number(_load(self).compute(), self.key)

    def __add__(self, other: Metric) -> TorchMetric:
        assert isinstance(other, TorchMetric) and other.key == self.key
        merged = _load(other)
        merged.merge_state(_load(self))
        return TorchMetric(self.key, _dump(merged))


def _dump(metric: Any) -> dict[str, Any]:
    states: dict[str, Any] = {"": int(metric._update_count)}
    for name in metric._defaults:
        value = getattr(metric, name)
        parts = value if isinstance(value, list) else [value]
        tensors = [(str(each.dtype).removeprefix("torch."), each.detach().cpu().tolist()) for each in parts]
        states[name] = [isinstance(value, list), [list(each) for each in tensors]]
    return states


def _load(state: TorchMetric) -> Any:
    """Return a metric with a state."""
    metric = copy.deepcopy(_TEMPLATES[state.key]).cpu()
    metric.reset()
    for name in metric._defaults:
        is_list, parts = state.states[name]
        tensors = [torch.tensor(values, dtype=getattr(torch, kind)) for kind, values in parts]
        setattr(metric, name, tensors if is_list else tensors[0])
    metric._update_count = state.states[""]
    return metric


def _to_number(value: Any, name: str) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    raise RecipeError(f"log() got {name}, which gives several numbers; log each of them, or a mean")


def logged_metric(name: str, value: Any, size: int) -> Metric:
    """Return a value that a validation step logged as a metric.

    Args:
        name: The name in the log.
        value: A number, a tensor with one element, or a metric of torchmetrics.
        size: Number of events of the batch, or the weight that the user set.

    Raises:
        RecipeError: It is something else.
    """
    if is_torch_metric(value):
        return TorchMetric.of(value)
    number = as_scalar(name, value)
    return Mean(float(number) * size, float(size))


def as_scalar(name: str, value: Any) -> Tensor | float:
    """Return a logged value as a detached tensor of one element, or as a number.

    Raises:
        RecipeError: It is something else.
    """
    if is_torch_metric(value):
        value = value._forward_cache if getattr(value, "_forward_cache", None) is not None else value.compute()
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.detach().reshape(())
    if isinstance(value, Tensor):
        raise RecipeError(f"log('{name}') got a tensor of shape {tuple(value.shape)}; log one number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise RecipeError(f"log('{name}') got a {type(value).__name__}; log one number") from None


def check_reduction(name: str, reduction: Any) -> None:
    """Check how values are to be combined over batches.

    Raises:
        RecipeError: It is not the mean.
    """
    if reduction not in ("mean", torch.mean):
        shown = reduction if isinstance(reduction, str) else getattr(reduction, "__name__", reduction)
        raise RecipeError(f"log('{name}') has reduce_fx={shown}; clew combines logged values by their mean only")
