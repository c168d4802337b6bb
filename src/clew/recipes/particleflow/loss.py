"""The loss of a batch: class, charge and momentum of every element. All elements have the same weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as f

from clew import Batch, Loss
from clew.recipes.particleflow.binning import event_of_items
from clew.recipes.particleflow.columns import ELEMENTS, NONE, TARGETS
from clew.recipes.particleflow.settings import ParticleFlowLossConfig


def class_weights(expected: Sequence[float]) -> list[float]:
    """Return weights proportional to one over the square root of the class counts; their mean over elements is 1."""
    roots = [count**-0.5 for count in expected]
    mean = sum(root * count for root, count in zip(roots, expected, strict=True)) / sum(expected)
    return [root / mean for root in roots]


@lru_cache(maxsize=8)
def _class_weight_tensor(expected: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(class_weights(expected), dtype=dtype, device=device)


def target_momenta(targets: Tensor) -> Tensor:
    """Return the momenta (..., 5) that networks predict: log(1 + pt), eta, sin phi, cos phi, log(1 + E)."""
    pt, place, energy = torch.split(targets[..., 2:], [1, 3, 1], dim=-1)
    return torch.cat([pt.clamp(min=0).log1p(), place, energy.clamp(min=0).log1p()], dim=-1)


def flow_loss(outputs: Mapping[str, Tensor], batch: Batch, settings: ParticleFlowLossConfig) -> Loss:
    """Return the sum over elements of the class, charge and momentum losses, and the number of elements.

    The terms are a weighted cross-entropy, the squared error of the charge, and the Huber loss of the momentum of
    elements that have a particle. Elements are multiplied by the weight of their event.
    """
    losses = element_losses(outputs, batch[TARGETS], settings)
    elements = batch.ragged(ELEMENTS)
    if batch.has_capacity:
        weights = losses.new_ones(batch.size) if batch.weights is None else batch.weights
        weight = f.pad(weights, (0, 1))[event_of_items(elements.offsets, len(losses))]
        return Loss((losses * weight).sum(), elements.offsets[-1])
    if batch.weights is not None:
        losses = losses * batch.weights[elements.events]
    return Loss(losses.sum(), float(len(losses)))


def element_losses(
    outputs: Mapping[str, Tensor], targets: Tensor, settings: ParticleFlowLossConfig, class_weight: Tensor | None = None
) -> Tensor:
    """Return the loss of every element.

    Args:
        outputs: Outputs of a network, of leading shape (...).
        targets: (..., 7).
        settings: Weights of the terms.
        class_weight: Weights of the classes. Default: from `settings`.
    """
    kind = targets[..., 0].long()
    logits = outputs["class"].float() if outputs["class"].dtype != torch.float64 else outputs["class"]
    if class_weight is None:
        class_weight = _class_weight_tensor(tuple(settings.expected_counts), logits.dtype, logits.device)
    class_loss = f.cross_entropy(logits.flatten(0, -2), kind.flatten(), class_weight, reduction="none").view_as(kind)
    charge_loss = (outputs["charge"].to(logits.dtype) - targets[..., 1].to(logits.dtype)) ** 2
    target = target_momenta(targets.to(logits.dtype))
    momentum_loss = f.huber_loss(outputs["momentum"].to(logits.dtype), target, reduction="none").sum(dim=-1)
    return class_loss + settings.charge * charge_loss + settings.momentum * momentum_loss * (kind != NONE)
