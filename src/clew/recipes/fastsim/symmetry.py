"""Rotations and reflections of showers in a calorimeter of cylinders: one simulated shower stands for many."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from clew.recipes.fastsim.particles import ShowerParticles

Shape = tuple[int, int, int]


def turn_showers(particles: ShowerParticles, voxels: Tensor, shape: Shape) -> tuple[ShowerParticles, Tensor]:
    """Reflect a random half of the showers, and rotate each by a random number of angular bins.

    The direction of the particle turns with its shower.

    Args:
        particles: Particles of the showers.
        voxels: Energies of voxels (showers, voxels).
        shape: Layers, angles and rings. The first angular bin starts at an azimuth of 0.

    Returns:
        The particles and the voxels of the turned showers.

    Example:
        >>> import torch
        >>> voxels = torch.tensor([[0.0, 1.0, 0.0, 2.0]])  # one layer, two angles, two rings
        >>> _, turned = turn_showers(ShowerParticles.of(torch.ones(1)), voxels, (1, 2, 2))
        >>> sorted(turned[0].tolist())
        [0.0, 0.0, 1.0, 2.0]
    """
    count, angles = len(voxels), shape[1]
    bins = torch.randint(angles, (count, 1), device=voxels.device)
    reflected = torch.randint(2, (count, 1), device=voxels.device) > 0
    source = (torch.arange(angles, device=voxels.device) - bins) % angles
    source = torch.where(reflected, angles - 1 - source, source)
    grid = voxels.view(-1, *shape)
    turned = grid.gather(2, source[:, None, :, None].expand_as(grid)).flatten(1)
    angle = (2 * math.pi / angles * bins).squeeze(1)
    slope_x, slope_y = particles.slope_x, torch.where(reflected.squeeze(1), -particles.slope_y, particles.slope_y)
    cosine, sine = angle.cos(), angle.sin()
    direction = cosine * slope_x - sine * slope_y, sine * slope_x + cosine * slope_y
    return ShowerParticles(particles.energy, *direction), turned
