"""Latents of voxels: how many are lit, in which ring, and with which energy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clew.recipes.fastsim.voxel_scaler import VoxelScaler
from tests.recipes.fastsim.sparse_showers import SHAPE, layer_sums, sparse_showers


@pytest.fixture(scope="module")
def voxels() -> Tensor:
    return sparse_showers()[1]


@pytest.fixture(scope="module")
def scaler(voxels: Tensor) -> VoxelScaler:
    torch.manual_seed(2)
    result = VoxelScaler(SHAPE)
    result.fit(voxels)
    return result


def test_before_a_fit_all_voxels_are_lit_alike() -> None:
    empty = VoxelScaler(SHAPE).empty(torch.tensor([[0, 3, 6, 9, 11, 12]]))
    expected = torch.tensor([1 - 1e-5, 0.75, 0.5, 0.25, 1 / 12, 1e-4])
    torch.testing.assert_close(empty, expected[None, :, None].expand(1, 6, 3), rtol=1e-4, atol=1e-7)


def test_tables_reach_from_the_threshold_to_the_highest_mean(scaler: VoxelScaler, voxels: Tensor) -> None:
    energy, count = layer_sums(voxels)
    assert float(scaler.threshold) == float(voxels[voxels > 0].min())
    limits = torch.stack([scaler.threshold, (energy / count.clamp(min=1)).max()]).log()
    torch.testing.assert_close(scaler.energy.limits, limits)


def test_as_many_voxels_are_expected_as_there_are_hits(scaler: VoxelScaler) -> None:
    count = torch.arange(13).repeat(6, 1).T
    expected = ((1 - scaler.empty(count)) * SHAPE[1]).sum(2)
    torch.testing.assert_close(expected, count.float(), rtol=0.02, atol=0.02)


def test_rings_are_lit_as_often_as_they_were_measured(scaler: VoxelScaler, voxels: Tensor) -> None:
    _, count = layer_sums(voxels)
    for hits in (2, 4, 7):
        used = count == hits
        measured = (voxels > 0).float().mean(2)[used].mean(0)
        assert measured[0] > 1.2 * measured[1] > 1.2 * 1.2 * measured[2]
        torch.testing.assert_close(1 - scaler.empty(count)[used].mean(0), measured, rtol=0.15, atol=0.02)


@pytest.mark.parametrize("hits", [0, 1, 5, 11, 12])
def test_any_number_of_voxels_can_be_lit(hits: int, scaler: VoxelScaler) -> None:
    torch.manual_seed(3)
    count = torch.full((200, 6), float(hits))
    energy = torch.full((200, 6), 900.0)
    drawn, drawn_count = layer_sums(decoded := scaler.decode(torch.randn(200, *SHAPE), energy, count))
    assert torch.equal(drawn_count, count)
    torch.testing.assert_close(drawn, energy * (hits > 0), rtol=1e-4, atol=1e-3)
    assert hits == 0 or decoded[decoded > 0].min() >= scaler.threshold


def test_the_largest_latents_are_lit(scaler: VoxelScaler) -> None:
    """Far above all others, in any ring; the others share what is left."""
    latent = torch.full((1, *SHAPE), -1.0)
    latent[0, :, 1, 2] = latent[0, :, 3, 0] = 4.0
    drawn = scaler.decode(latent, torch.full((1, 6), 500.0), torch.full((1, 6), 2.0))
    assert drawn[0, 0].nonzero().tolist() == [[1, 2], [3, 0]]


def test_drawn_voxels_are_lit_as_often_as_true_ones(scaler: VoxelScaler, voxels: Tensor) -> None:
    torch.manual_seed(3)
    energy, count = layer_sums(voxels)
    drawn = scaler.decode(torch.randn_like(voxels), energy, count)
    for ring in range(3):
        for layer in (0, 5):
            true, made = (each[:, layer, :, ring] for each in (voxels, drawn))
            assert float((made > 0).float().mean()) == pytest.approx(float((true > 0).float().mean()), abs=0.03)


def test_latents_are_normal_in_every_ring(scaler: VoxelScaler, voxels: Tensor) -> None:
    torch.manual_seed(3)
    latent = scaler.encode(voxels)
    for ring in range(3):
        assert latent[..., ring].mean().abs() < 0.1 and abs(latent[..., ring].std() - 1) < 0.1
    lit = voxels > 0
    assert latent[lit].mean() > 0.4 and latent[~lit].mean() < -0.2


def test_layers_share_tables_by_threes(voxels: Tensor) -> None:
    """With one table per layer, a layer of other energies changes no other layer."""
    changed = voxels.clone()
    changed[:, 5] *= 3
    tables = []
    for together in (1, 3):
        for each in (voxels, changed):
            torch.manual_seed(2)
            scaler = VoxelScaler(SHAPE, together)
            scaler.fit(each)
            tables.append(scaler.energy.table)
    alone, alone_changed, shared, shared_changed = tables
    assert len(alone) == 18 and len(shared) == 6
    assert torch.equal(shared[:3], shared_changed[:3]) is torch.equal(alone[:15], alone_changed[:15])
    assert not torch.equal(shared[3:], shared_changed[3:])


def test_a_single_hit_has_the_energy_of_its_layer() -> None:
    """Its table is the energy over the threshold, spread a little so that it has an inverse."""
    torch.manual_seed(5)
    voxels = torch.zeros(4000, *SHAPE)
    voxels[:, :, 1, 0] = torch.exp(5 * torch.rand(4000, 6))
    scaler = VoxelScaler(SHAPE)
    scaler.fit(voxels)
    condition = torch.tensor([1.0, 2.0, 3.0, 4.0])
    rows = scaler.energy.rows(condition, torch.zeros(4, dtype=torch.long))
    low, middle, high = (scaler.energy.to_value(torch.full((4, 1), latent), rows)[:, 0] for latent in (-1.0, 0.0, 1.0))
    torch.testing.assert_close(middle, condition - scaler.threshold.log(), rtol=0, atol=0.1)
    assert (high - low > 0.02).all() and (high - low < 0.4).all()


@pytest.mark.parametrize("hits", [2, 6, 10])
def test_a_larger_latent_is_a_larger_energy_in_a_ring(hits: int, scaler: VoxelScaler) -> None:
    """Also where the number of hits moves the separation of lit and empty voxels."""
    torch.manual_seed(6)
    latent, full = 1.5 * torch.randn(300, *SHAPE), torch.full((300, 6), 1.0)
    drawn = scaler.decode(latent, 3000 * full, hits * full)
    order = latent.argsort(2)
    rises = drawn.gather(2, order).diff(dim=2)
    assert (rises >= -1e-3).all() and (rises > 1).float().mean() > 0.1
