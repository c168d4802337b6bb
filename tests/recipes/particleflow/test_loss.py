"""The loss of particle flow, term by term."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as f

from clew import Batch
from clew.data.dataset.batch import RaggedTensor
from clew.recipes.particleflow.loss import class_weights, element_losses, flow_loss, target_momenta
from clew.recipes.particleflow.settings import ParticleFlowLossConfig

SETTINGS = ParticleFlowLossConfig(charge=3.0, momentum=0.5)
TARGETS = torch.tensor([[1.0, -1, 3, 0.5, 0.6, 0.8, 7], [0, 0, 0, 0, 0, 0, 0], [3, 0, 1, -2, 0, 1, 4]])


def outputs(rows: int = 3) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(4)
    shapes = {"class": (rows, 6), "charge": (rows,), "momentum": (rows, 5)}
    return {name: torch.randn(shape, generator=random, dtype=torch.float64) for name, shape in shapes.items()}


def batch(weights: Tensor | None, *, capacity: int | None = None) -> Batch:
    """Two events of one and two elements."""
    offsets = torch.tensor([0, 1, 3])
    columns: dict[str, Tensor | RaggedTensor] = {
        "elements": RaggedTensor(torch.zeros(3, 1), offsets),
        "targets": RaggedTensor(TARGETS, offsets),
    }
    plain = Batch(2, columns, weights)
    if capacity is None:
        return plain
    plain.capacity = {"elements": capacity, "targets": capacity}
    roomy = plain.empty_with_capacity()
    roomy.fill(plain)
    return roomy


def test_networks_predict_logarithms_of_momentum_and_energy() -> None:
    targets = torch.tensor([[1.0, 1, math.e - 1, 0.1, 0.2, 0.3, 0.0], [1, 1, -0.5, 0, 0, 1, -0.5]])
    expected = torch.tensor([[1.0, 0.1, 0.2, 0.3, 0.0], [0, 0, 0, 1, 0]])
    torch.testing.assert_close(target_momenta(targets), expected)


def test_the_loss_of_an_element_adds_class_charge_and_momentum() -> None:
    each, made = element_losses(outputs(), TARGETS, SETTINGS), outputs()
    weights = np.array(class_weights(SETTINGS.expected_counts))
    for row, (kind, charge, pt, eta, sine, cosine, energy) in enumerate(TARGETS.tolist()):
        class_loss = -weights[int(kind)] * float(made["class"][row].log_softmax(0)[int(kind)])
        target = torch.tensor([math.log1p(pt), eta, sine, cosine, math.log1p(energy)], dtype=torch.float64)
        momentum = float(f.huber_loss(made["momentum"][row], target, reduction="sum")) if kind else 0.0
        expected = class_loss + 3 * (float(made["charge"][row]) - charge) ** 2 + 0.5 * momentum
        assert float(each[row]) == pytest.approx(expected, rel=1e-5)
    assert each.dtype == torch.float64 and element_losses(_half(made), TARGETS, SETTINGS).dtype == torch.float32


def _half(made: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.to(torch.bfloat16) for name, value in made.items()}


def test_other_class_weights_can_be_passed() -> None:
    ones = torch.ones(6, dtype=torch.float64)
    plain = element_losses(outputs(), TARGETS, SETTINGS, ones)
    assert torch.equal(element_losses(outputs(), TARGETS, SETTINGS, 2 * ones) > plain, torch.ones(3, dtype=torch.bool))
    class_loss = f.cross_entropy(outputs()["class"], TARGETS[:, 0].long(), reduction="none")
    torch.testing.assert_close(element_losses(outputs(), TARGETS, SETTINGS, 2 * ones) - plain, class_loss)


@pytest.mark.parametrize("capacity", [None, 5])
@pytest.mark.parametrize("weights", [None, torch.tensor([2.0, 0.5])])
def test_elements_have_the_weight_of_their_event(weights: Tensor | None, capacity: int | None) -> None:
    each = element_losses(outputs(), TARGETS, SETTINGS)
    factors = torch.ones(3) if weights is None else weights[[0, 1, 1]]
    made = {name: torch.cat([value, value[:2]]) if capacity else value for name, value in outputs().items()}
    total, weight = flow_loss(made, batch(weights, capacity=capacity), SETTINGS)
    assert float(total) == pytest.approx(float((each * factors).sum()), rel=1e-5)
    assert float(weight) == 3
