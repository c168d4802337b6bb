"""Showers that are turned at random while a model trains."""

from __future__ import annotations

import numpy as np
import torch

from clew.recipes.fastsim.features import shower_features
from clew.recipes.fastsim.geometry import GeometryConfig
from clew.recipes.fastsim.particles import ShowerParticles
from clew.recipes.fastsim.symmetry import turn_showers

SHAPE = (45, 16, 9)


def test_the_direction_turns_with_the_shower() -> None:
    geometry = GeometryConfig().load()
    random = np.random.default_rng(1)
    bins = torch.as_tensor(random.integers(16, size=400))
    voxels = torch.zeros(400, *SHAPE)
    voxels[torch.arange(400), 20, bins, 4] = 100.0
    azimuth = (bins + 0.5) * 2 * torch.pi / 16
    particles = ShowerParticles.of(torch.full((400,), 5000.0), torch.full((400,), 0.1), azimuth)
    turned, new_voxels = turn_showers(particles, voxels.flatten(1), SHAPE)
    features = shower_features(new_voxels.numpy(), geometry)
    centre = np.arctan2(features.centre_y[:, 20], features.centre_x[:, 20])
    direction = np.arctan2(turned.slope_y.numpy(), turned.slope_x.numpy())
    np.testing.assert_allclose(np.exp(1j * centre), np.exp(1j * direction), atol=1e-5)
    assert len(set(np.round(direction, 3))) == 16  # every bin is reached


def test_turned_showers_have_the_same_rings_and_are_reflected_too() -> None:
    voxels = torch.rand(300, *SHAPE)
    _, turned = turn_showers(ShowerParticles.of(torch.ones(300)), voxels.flatten(1), SHAPE)
    grid = turned.view(-1, *SHAPE)
    torch.testing.assert_close(grid.sum(2), voxels.sum(2))
    rolled = torch.stack([(grid == voxels.roll(shift, 2)).all(-1).all(-1).all(-1) for shift in range(16)]).any(0)
    assert 0.35 < float(rolled.float().mean()) < 0.65
