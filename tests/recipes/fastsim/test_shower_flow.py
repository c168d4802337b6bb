"""The flow: scalers that can be inverted, networks that learn what depends on what, energies that add up."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clew.recipes.fastsim.flow_networks import LayerFlow, ShapeFlow
from clew.recipes.fastsim.layer_scaler import LayerScaler
from clew.recipes.fastsim.noise import normal_noise, normal_quantile
from clew.recipes.fastsim.particles import ShowerParticles
from clew.recipes.fastsim.shower_flow import DistilledFlow, ShowerFlow
from clew.recipes.fastsim.voxel_scaler import VoxelScaler
from tests.recipes.fastsim.sparse_showers import SHAPE, layer_sums, sparse_showers

Showers = tuple[Tensor, Tensor]


@pytest.fixture
def showers() -> Showers:
    return sparse_showers()


def test_voxels_are_the_same_after_encoding_and_decoding(showers: Showers) -> None:
    voxels, scaler = showers[1], VoxelScaler(SHAPE)
    scaler.fit(voxels)
    latent = scaler.encode(voxels)
    assert latent.mean().abs() < 0.05 and abs(latent.std() - 1) < 0.05
    again = scaler.decode(latent, *layer_sums(voxels))
    assert torch.equal(again > 0, voxels > 0)
    assert ((again - voxels).abs() < 0.002 * voxels + 0.001).float().mean() > 0.995  # the rest is beyond the tables


def test_layers_are_the_same_after_encoding_and_decoding(showers: Showers) -> None:
    energy, count = layer_sums(showers[1])
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
    energy, count = layer_sums(voxels)
    drawn_energy, drawn_count = layer_sums(scaler.decode(torch.randn_like(voxels), energy, count))
    torch.testing.assert_close(drawn_energy, energy, rtol=1e-4, atol=1e-3)
    assert (drawn_count == count).float().mean() > 0.99


def sides(voxels: Tensor) -> float:
    """Correlation over showers of which side of the axis two layers are on."""
    lit = (voxels.view(-1, *SHAPE) > 0).float()
    balance = lit[:, [0, 5], :2].sum((2, 3)) - lit[:, [0, 5], 2:].sum((2, 3))
    return float(torch.corrcoef(balance.T)[0, 1])


def networks() -> tuple[LayerFlow, ShapeFlow]:
    return LayerFlow(13, width=32, depth=1), ShapeFlow(SHAPE, width=32, depth=2, heads=2)


def train(flow: ShowerFlow, showers: Showers, steps: int) -> None:
    parameters = [each for group in flow.trained_parameters().values() for each in group]
    optimizer = torch.optim.Adam(parameters, lr=3e-3)
    for _ in range(steps):
        chosen = torch.randint(len(showers[0]), (256,))
        losses = flow.losses(ShowerParticles.of(showers[0][chosen]), showers[1][chosen].flatten(1))
        optimizer.zero_grad()
        torch.autograd.backward([loss.mean() for loss in losses.values()])
        optimizer.step()


def drawn(flow: ShowerFlow, incident: Tensor) -> Tensor:
    with torch.no_grad():
        voxels: Tensor = flow(ShowerParticles.of(incident), torch.arange(len(incident)))
    return voxels


@pytest.mark.long
@pytest.mark.slow
def test_the_flow_learns_what_voxels_have_in_common(showers: Showers) -> None:
    incident, voxels = showers
    flow = ShowerFlow(SHAPE, *networks(), steps=4)
    flow.fit(ShowerParticles.of(incident), voxels.flatten(1))
    before, true = sides(drawn(flow, incident)), sides(voxels)
    train(flow, showers, 150)
    assert abs(before) < 0.1 and true > 0.5 and sides(drawn(flow, incident)) > 0.4 * true
    distilled = DistilledFlow(SHAPE, *networks(), networks()[1], teacher_steps=4)
    distilled.load_state_dict(flow.state_dict(), strict=False)
    distilled.student.load_state_dict(flow.shape_flow.state_dict())
    train(distilled, showers, 60)
    assert torch.equal(distilled.shape_flow.enter.weight, flow.shape_flow.enter.weight)  # the teacher does not change
    assert sides(drawn(distilled, incident)) > 0.3 * true


def test_energies_and_hits_of_layers_do_not_depend_on_the_shape(showers: Showers) -> None:
    flow = ShowerFlow(SHAPE, *networks(), steps=1)
    flow.fit(ShowerParticles.of(showers[0]), showers[1].flatten(1))
    before = drawn(flow, showers[0]).view(-1, *SHAPE)
    torch.nn.init.normal_(flow.shape_flow.leave.weight)
    after = drawn(flow, showers[0]).view(-1, *SHAPE)
    assert not torch.allclose(before, after)
    (energy, count), (other_energy, other_count) = layer_sums(before), layer_sums(after)
    torch.testing.assert_close(energy, other_energy, rtol=1e-4, atol=1e-3)
    assert (count == other_count).float().mean() > 0.999  # equal latents may light one voxel more
    lowest = after[after > 0].min() / showers[1][showers[1] > 0].min()
    assert lowest > 0.9999  # no hit is below the threshold of the read-out


def test_noise_depends_on_the_seed_and_is_normal() -> None:
    seeds = torch.arange(500)
    noise = normal_noise(seeds, 400)
    assert torch.equal(noise[100:103, :7], normal_noise(seeds[100:103], 7))
    assert noise.mean().abs() < 0.01 and abs(noise.std() - 1) < 0.01 and abs((noise**4).mean() - 3) < 0.1
    for table in (noise, noise.T):
        correlations = torch.corrcoef(table) - torch.eye(len(table))
        assert correlations.abs().max() < 0.3 and abs(correlations.std() * table.shape[1] ** 0.5 - 1) < 0.05


def test_quantiles_of_the_normal_distribution() -> None:
    probability = torch.linspace(1e-6, 1 - 1e-6, 10_001)
    torch.testing.assert_close(normal_quantile(probability), torch.special.ndtri(probability), rtol=0, atol=2e-5)
