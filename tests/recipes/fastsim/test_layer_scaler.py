"""Latents of layers: what is normal, and what a decoded shower looks like."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from clew.recipes.fastsim.layer_scaler import MIN_HIT_ENERGY, LayerScaler
from tests.recipes.fastsim.sparse_showers import layer_sums, sparse_showers


@pytest.fixture(scope="module")
def showers() -> tuple[Tensor, Tensor, Tensor]:
    """Incident energies, and energies and numbers of hits of six layers of twelve voxels."""
    incident, voxels = sparse_showers()
    return incident, *layer_sums(voxels)


@pytest.fixture(scope="module")
def scaler(showers: tuple[Tensor, Tensor, Tensor]) -> LayerScaler:
    torch.manual_seed(2)
    result = LayerScaler(6, 12)
    result.fit(*showers)
    return result


def test_limits_are_those_of_the_incident_energies(scaler: LayerScaler, showers: tuple[Tensor, Tensor, Tensor]) -> None:
    torch.testing.assert_close(scaler.limits, torch.stack(showers[0].log().aminmax()))
    torch.testing.assert_close(scaler.count.limits, torch.stack([torch.tensor(0.3), showers[1].max()]).log())


def test_features_are_latents_and_logarithms(scaler: LayerScaler, showers: tuple[Tensor, Tensor, Tensor]) -> None:
    incident, energy, count = showers
    features, lit = scaler.features(incident, energy, count), energy > 0
    torch.testing.assert_close(features[..., 2], torch.log(energy + 1) / 3 - 1)
    torch.testing.assert_close(features[..., 3], torch.log(count + 1) / 2 - 1)
    assert not features[~lit][:, :2].any() and (~lit).float().mean() > 0.04
    for latent in features[lit][:, :2].T:
        assert latent.mean().abs() < 0.1 and abs(latent.std() - 1) < 0.1


@pytest.mark.parametrize(("low", "high"), [(1e3, 2e3), (1e4, 2e4), (5e4, 1e5)])
def test_drawn_layers_are_distributed_like_true_ones(
    low: float, high: float, scaler: LayerScaler, showers: tuple[Tensor, Tensor, Tensor]
) -> None:
    used = (showers[0] > low) & (showers[0] < high)
    incident, energy, count = (each[used].repeat_interleave(10, 0) for each in showers)
    torch.manual_seed(3)
    drawn, drawn_count = scaler.decode(incident, torch.randn(len(incident), 13))
    response, drawn_response = (each.sum(1) / incident for each in (energy, drawn))
    assert float(drawn_response.mean()) == pytest.approx(float(response.mean()), rel=0.05)
    assert float(drawn_response.std()) == pytest.approx(float(response.std()), rel=0.2)
    for layer in range(6):
        share, drawn_share = ((each[:, layer] > 0).float().mean() for each in (energy, drawn))
        assert float(drawn_share) == pytest.approx(float(share), abs=0.05)
    assert float(drawn_count.mean()) == pytest.approx(float(count.mean()), rel=0.15)


def test_a_layer_has_no_more_hits_than_its_energy_and_its_voxels_allow(
    scaler: LayerScaler, showers: tuple[Tensor, Tensor, Tensor]
) -> None:
    latent = torch.cat([torch.randn(3000, 7), torch.full((3000, 6), 4.5)], 1)
    energy, count = scaler.decode(showers[0], latent, 5.0)
    most = (energy / (MIN_HIT_ENERGY * 5.0)).floor().clamp(1, 12) * (energy > 0)
    assert (count <= most).all() and (count == most).float().mean() > 0.1
    assert (count >= (energy > 0)).all() and (count > 8).any() and (most < 5).any()


def test_a_shower_has_one_lit_layer_at_least(scaler: LayerScaler) -> None:
    latent = torch.full((1, 13), -4.5)
    latent[0, 4] = -4.0
    energy, count = scaler.decode(torch.tensor([10_000.0]), latent)
    assert energy[0].nonzero().flatten().tolist() == count[0].nonzero().flatten().tolist() == [3]
    latent[0, 0] = 0.0
    assert float(scaler.decode(torch.tensor([10_000.0]), latent)[0].sum()) > float(energy.sum())


def test_latents_of_a_layer_tell_whether_it_is_lit(scaler: LayerScaler, showers: tuple[Tensor, Tensor, Tensor]) -> None:
    """Below the quantile of the share of empty layers there are only empty ones. Both kinds of latents are normal."""
    torch.manual_seed(4)
    latent, lit = scaler.encode(*showers), showers[1] > 0
    energies, counts = latent[:, 1:7], latent[:, 7:]
    for layer in (0, 5):
        faint = showers[0] < 1500
        on = lit[faint, layer]
        assert float(energies[faint, layer][on].quantile(0.1)) > float(energies[faint, layer][~on].max())
    assert energies.mean().abs() < 0.05 and abs(energies.std() - 1) < 0.05
    assert counts[~lit].mean().abs() < 0.1 and abs(counts[~lit].std() - 1) < 0.1
    assert counts[lit].mean().abs() < 0.1 and abs(counts[lit].std() - 1) < 0.1
    assert latent[:, 0].mean().abs() < 0.1 and abs(latent[:, 0].std() - 1) < 0.1


def test_energies_of_a_shower_add_up_to_its_total(scaler: LayerScaler, showers: tuple[Tensor, Tensor, Tensor]) -> None:
    energy, _ = scaler.decode(showers[0], scaler.encode(*showers))
    ratio = (energy.sum(1) / showers[1].sum(1)).log()
    assert ratio.abs().quantile(0.98) < 0.01 and math.isfinite(float(ratio.abs().max()))
