"""Losses by name: functions of outputs and labels with one value per event, so that event weights can be applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as f

from clew.errors import ConfigError, DataError, nearest
from clew.models.loss_names import KERAS_NAMES
from clew.recipe import load_code

LossFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def loss_by_name(name: str, *, probabilities: bool = False) -> LossFunction:
    """Return the loss of a name, or the function at `file.py:name`.

    Args:
        name: The name, also one that Keras uses.
        probabilities: Whether the outputs are probabilities; otherwise cross-entropies expect logits.

    Raises:
        ConfigError: There is no such loss.
    """
    name = KERAS_NAMES.get(name, name)
    if name in LOSSES:
        return _OF_PROBABILITIES.get(name, LOSSES[name]) if probabilities else LOSSES[name]
    if ":" not in name:
        raise ConfigError(f"no loss '{name}'{nearest(name, LOSSES)}; there are {', '.join(LOSSES)}, or file.py:name")
    function: LossFunction = load_code(name)
    return function


def _elementwise(loss: Callable[..., Tensor]) -> LossFunction:
    """Return a loss that is averaged over the numbers of each event."""

    def work(outputs: Tensor, labels: Tensor) -> Tensor:
        if outputs.ndim == labels.ndim + 1 and outputs.shape[1] == 1:
            outputs = outputs.squeeze(1)
        if outputs.shape != labels.shape:
            raise DataError(f"the model gives {tuple(outputs.shape)} for labels of shape {tuple(labels.shape)}")
        return _per_event(loss(outputs, labels.to(outputs.dtype), reduction="none"))

    return work


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of logits. Classes are in the second dimension; one number per event means two classes. Labels are
    numbers of classes, or one probability per class."""
    if outputs.ndim < 2 or outputs.shape[1] == 1:
        return LOSSES["binary_cross_entropy"](outputs, labels)
    if labels.ndim == outputs.ndim and labels.shape[1:] == (1,):
        labels = labels[:, 0]
    if labels.is_floating_point() and labels.ndim == outputs.ndim - 1:
        if not bool((labels == labels.round()).all()):
            raise DataError("cross_entropy needs numbers of classes, or one probability per class; labels are neither")
        labels = labels.long()
    if labels.is_floating_point() or labels.shape == outputs.shape:
        return _per_event(f.cross_entropy(outputs, labels.to(outputs.dtype), reduction="none"))
    highest = int(labels.max()) if labels.numel() else 0
    if highest >= outputs.shape[1] or int(labels.min()) < 0:
        raise DataError(
            f"labels reach from {int(labels.min())} to {highest}, the model gives {outputs.shape[1]} classes"
        )
    return _per_event(f.cross_entropy(outputs, labels.long(), reduction="none"))


def _cross_entropy_of_probabilities(outputs: Tensor, labels: Tensor) -> Tensor:
    if outputs.ndim < 2 or outputs.shape[1] == 1:
        return _OF_PROBABILITIES["binary_cross_entropy"](outputs, labels)
    return _cross_entropy(_log(outputs), labels)  # logarithms of probabilities are logits


def _binary_of_probabilities(outputs: Tensor, labels: Tensor, *, reduction: str) -> Tensor:
    assert reduction == "none"
    return -(labels * _log(outputs) + (1 - labels) * _log(1 - outputs))


def _log(values: Tensor) -> Tensor:
    """Return the logarithm, which stays finite for a probability that was rounded to 0."""
    values = values.float()
    return torch.log(values.clamp(min=torch.finfo(values.dtype).tiny))


def _auto_of_probabilities(outputs: Tensor, labels: Tensor) -> Tensor:
    if labels.is_floating_point() and labels.shape != outputs.shape:
        return LOSSES["mse"](outputs, labels)
    return _cross_entropy_of_probabilities(outputs, labels)


def _auto(outputs: Tensor, labels: Tensor) -> Tensor:
    return LOSSES["mse" if labels.is_floating_point() else "cross_entropy"](outputs, labels)


def _per_event(values: Tensor) -> Tensor:
    return values if values.ndim == 1 else values.flatten(1).mean(1)


LOSSES: dict[str, LossFunction] = {
    "auto": _auto,
    "cross_entropy": _cross_entropy,
    "binary_cross_entropy": _elementwise(f.binary_cross_entropy_with_logits),
    "mse": _elementwise(f.mse_loss),
    "mae": _elementwise(f.l1_loss),
    "huber": _elementwise(f.huber_loss),
}
_OF_PROBABILITIES: dict[str, LossFunction] = {
    "auto": _auto_of_probabilities,
    "cross_entropy": _cross_entropy_of_probabilities,
    "binary_cross_entropy": _elementwise(_binary_of_probabilities),
}
