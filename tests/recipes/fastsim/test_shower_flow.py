"""The flow: scalers that can be inverted, networks that learn what depends on what, energies that add up."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clew.recipes.fastsim.flow_networks import LayerFlow, ShapeFlow
from clew.recipes.fastsim.layer_scaler import LayerScaler
from clew.recipes.fastsim.shower_flow import ShowerFlow
from clew.recipes.fastsim.voxel_scaler import VoxelScaler

SHAPE = (6, 4, 3)
Showers = tuple[Tensor, Tensor]


@pytest.fixture
def showers() -> Showers:
    """Sparse showers whose voxels depend on each other: all layers are lit on one side of the axis."""
    torch.manual_seed(1)
    count = 3000
    incident = 1000 * 100 ** torch.rand(count)
    rings = torch.tensor([1.0, 0.4, 0.1])
    side = torch.randint(0, 2, (count, 1, 1, 1))
    near = (torch.arange(4).view(1, 1, 4, 1) // 2 == side).float() * 0.8 + 0.1
    lit = torch.rand(count, *SHAPE) < near * rings.sqrt() * (incident / 1e5).view(-1, 1, 1, 1) ** 0.2
    energy = incident.view(-1, 1, 1, 1) / 60 * rings * torch.rand(count, *SHAPE).add(0.5)
    voxels = lit * energy
    voxels[:, 2, 0, 0] += 5.0  # no shower is empty
    return incident, voxels


def sums(voxels: Tensor) -> tuple[Tensor, Tensor]:
    return voxels.sum((2, 3)), (voxels > 0).sum((2, 3)).float()


def test_voxels_are_the_same_after_encoding_and_decoding(showers: Showers) -> None:
    voxels, scaler = showers[1], VoxelScaler(SHAPE)
    scaler.fit(voxels)
    latent = scaler.encode(voxels)
    assert latent.mean().abs() < 0.05 and abs(latent.std() - 1) < 0.05
    again = scaler.decode(latent, *sums(voxels))
    assert torch.equal(again > 0, voxels > 0)
    assert ((again - voxels).abs() < 0.002 * voxels + 0.001).float().mean() > 0.999  # the rest is beyond the tables


def test_layers_are_the_same_after_encoding_and_decoding(showers: Showers) -> None:
    energy, count = sums(showers[1])
    scaler = LayerScaler(6, 12)
    scaler.fit(showers[0], energy, count)
    latent = scaler.encode(showers[0], energy, count)
    assert latent.mean().abs() < 0.1 and abs(latent.std() - 1) < 0.1
    again, counts = scaler.decode(showers[0], latent)
    assert ((again - energy).abs() < 0.02 * energy + 0.1).float().mean() > 0.97
    assert (counts == count).float().mean() > 0.97


def test_decoding_conserves_energies_and_numbers_of_hits(showers: Showers) -> None:
    voxels, scaler = showers[1], VoxelScaler(SHAPE)
    scaler.fit(voxels)
    energy, count = sums(voxels)
    drawn_energy, drawn_count = sums(scaler.decode(torch.randn_like(voxels), energy, count))
    torch.testing.assert_close(drawn_energy, energy, rtol=1e-4, atol=1e-3)
    assert (drawn_count == count).float().mean() > 0.99


def sides(voxels: Tensor) -> float:
    """Correlation over showers of which side of the axis two layers are on."""
    lit = (voxels > 0).float()
    balance = lit[:, [0, 5], :2].sum((2, 3)) - lit[:, [0, 5], 2:].sum((2, 3))
    return float(torch.corrcoef(balance.T)[0, 1])


def test_the_flow_learns_what_voxels_have_in_common(showers: Showers) -> None:
    incident, voxels = showers
    layers, shape = LayerFlow(13, width=32, depth=1), ShapeFlow(SHAPE, width=32, depth=2, heads=2)
    flow = ShowerFlow(SHAPE, (1e3, 1e5), layers, shape)
    flow.fit(incident, voxels)
    before = sides(flow.generate(incident, steps=4))
    optimizer = torch.optim.Adam(flow.parameters(), lr=3e-3)
    for _ in range(150):
        chosen = torch.randint(len(incident), (256,))
        loss = flow.shape_loss(incident[chosen], voxels[chosen]) + flow.layer_loss(incident[chosen], voxels[chosen])
        optimizer.zero_grad()
        torch.autograd.backward(loss.mean())
        optimizer.step()
    true, after = sides(voxels), sides(flow.generate(incident, steps=4))
    assert abs(before) < 0.1 and true > 0.5 and after > 0.4 * true
    student = ShapeFlow(SHAPE, width=32, depth=2, heads=2)
    student.load_state_dict(shape.state_dict())
    optimizer = torch.optim.Adam(student.parameters(), lr=2e-3)
    for _ in range(60):
        chosen = torch.randint(len(incident), (256,))
        conditions = flow.conditions(incident[chosen], *sums(voxels[chosen]))
        loss = flow.distillation_loss(student, conditions, steps=4)
        optimizer.zero_grad()
        torch.autograd.backward(loss.mean())
        optimizer.step()
    assert sides(flow.generate(incident, steps=1, student=student)) > 0.3 * true
