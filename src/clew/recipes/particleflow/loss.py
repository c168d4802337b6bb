"""The loss of a batch: class, charge and momentum of every element, each element once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as f

from clew import Batch, Loss
from clew.recipes.particleflow.binning import owners
from clew.recipes.particleflow.columns import ELEMENTS, NONE, TARGETS
from clew.recipes.particleflow.settings import Losses


def class_weights(expected: Sequence[float]) -> list[float]:
    """One over the square root of the number of each class, such that the mean over elements is 1."""
    roots = [count**-0.5 for count in expected]
    mean = sum(root * count for root, count in zip(roots, expected, strict=True)) / sum(expected)
    return [root / mean for root in roots]


@lru_cache(maxsize=8)
def _weights(expected: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(class_weights(expected), dtype=dtype, device=device)


def momenta(targets: Tensor) -> Tensor:
    """(..., 5) as networks are asked for them: log(1 + pt), eta, sin phi, cos phi, log(1 + E)."""
    pt, place, energy = torch.split(targets[..., 2:], [1, 3, 1], dim=-1)
    return torch.cat([pt.clamp(min=0).log1p(), place, energy.clamp(min=0).log1p()], dim=-1)


def flow_loss(outputs: Mapping[str, Tensor], batch: Batch, settings: Losses) -> Loss:
    """Summed over elements: weighted cross-entropy, squared error of the charge, Huber's loss of momenta of particles.

    Elements of event with a weight count that many times.
    """
    each = element_losses(outputs, batch[TARGETS], settings)
    elements = batch.ragged(ELEMENTS)
    if batch.has_capacity:
        weights = each.new_ones(batch.size) if batch.weights is None else batch.weights
        weight = f.pad(weights, (0, 1))[owners(elements.offsets, len(each))]
        return Loss((each * weight).sum(), elements.offsets[-1])
    if batch.weights is not None:
        each = each * batch.weights[elements.events]
    return Loss(each.sum(), float(len(each)))


def element_losses(
    outputs: Mapping[str, Tensor], targets: Tensor, settings: Losses, weight: Tensor | None = None
) -> Tensor:
    """(..., ) of every element, where outputs and targets (..., 7) have the same leading shape.

    `weight`: of classes, if not by `settings`.
    """
    kind = targets[..., 0].long()
    logits = outputs["class"].float() if outputs["class"].dtype != torch.float64 else outputs["class"]
    if weight is None:
        weight = _weights(tuple(settings.expected), logits.dtype, logits.device)
    told = f.cross_entropy(logits.flatten(0, -2), kind.flatten(), weight, reduction="none").view_as(kind)
    charge = (outputs["charge"].to(logits.dtype) - targets[..., 1].to(logits.dtype)) ** 2
    wanted = momenta(targets.to(logits.dtype))
    far = f.huber_loss(outputs["momentum"].to(logits.dtype), wanted, reduction="none").sum(dim=-1)
    return told + settings.charge * charge + settings.momentum * far * (kind != NONE)
