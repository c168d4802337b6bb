"""Conditional adversarial networks of 3-D convolutions, with auxiliary outputs for energies.

The generator draws the energy of the shower first, then the share of each layer, then the share of each voxel in its
layer. Shares are normalised: the voxels of a layer add up to the layer's energy, the layers to the shower's energy.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, interpolate, leaky_relu

from clew.recipes.fastsim.noise import normal_noise
from clew.recipes.fastsim.particles import ShowerParticles

Shape = tuple[int, int, int]
MAX_RESPONSE = 1.5
"""Upper limit of the shower's energy over the particle's energy."""
ENERGY_UNIT = 10_000.0
"""Energy in MeV whose logarithm is 0 for the networks."""


class Judgement(NamedTuple):
    """Outputs of the discriminator, one number per shower."""

    logit: Tensor
    """Above 0: a true shower."""
    energy: Tensor
    """Estimated logarithm of the particle's energy over ENERGY_UNIT."""
    total: Tensor
    """Estimated logarithm of the shower's energy over ENERGY_UNIT."""


class ShowerGenerator(nn.Module):
    """Draws showers from noise.

    Args:
        shape: Layers, angles (or rows) and rings (or columns).
        latent: Random numbers per shower.
        channels: Channels of the coarsest grid.
    """

    def __init__(self, shape: Shape, latent: int, channels: int) -> None:
        super().__init__()
        self.shape = shape
        self.coarse = tuple(-(-side // 4) for side in shape)
        self.middle = tuple(-(-side // 2) for side in shape)
        cells = self.coarse[0] * self.coarse[1] * self.coarse[2]
        self.channels, hidden = channels, 128
        self.trunk = nn.Sequential(
            nn.Linear(latent + 3, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, hidden), nn.LeakyReLU(0.2)
        )
        self.response = nn.Linear(hidden, 1)
        self.layer_shares = nn.Linear(hidden, shape[0])
        self.seed = nn.Linear(hidden, channels * cells)
        self.first = nn.Conv3d(channels, channels, 3, padding=1)
        self.second = nn.Conv3d(channels, channels // 2 or 1, 3, padding=1)
        self.third = nn.Conv3d(channels // 2 or 1, 1, 3, padding=1)

    def forward(self, particles: ShowerParticles, noise: Tensor) -> Tensor:
        """Return voxels in MeV (showers, voxels) for particles and noise (showers, latent)."""
        energy = particles.energy
        count = energy.shape[0]
        trunk = self.trunk(torch.cat([noise, particles.features(ENERGY_UNIT)], dim=1))
        total = energy * MAX_RESPONSE * torch.sigmoid(self.response(trunk)).squeeze(1)
        layers = total.unsqueeze(1) * torch.softmax(self.layer_shares(trunk), dim=1)
        grid = self.seed(trunk).view(count, self.channels, *self.coarse)
        grid = leaky_relu(self.first(interpolate(leaky_relu(grid, 0.2), size=self.middle)), 0.2)
        grid = leaky_relu(self.second(interpolate(grid, size=self.shape)), 0.2)
        shares = (self.third(grid) + 0.5).relu().square().view(count, self.shape[0], -1) + 1e-9
        voxels = shares / shares.sum(dim=2, keepdim=True) * layers.unsqueeze(2)
        flat: Tensor = voxels.flatten(1)
        return flat


class ShowerDiscriminator(nn.Module):
    """Tells true from generated showers, and estimates both energies."""

    def __init__(self, shape: Shape, channels: int) -> None:
        super().__init__()
        self.shape = shape
        widths = (1, channels // 2 or 1, channels, channels)
        self.convolutions = nn.ModuleList(
            nn.Conv3d(*pair, 3, stride=2 if place else 1, padding=1) for place, pair in enumerate(pairwise(widths))
        )
        sides = [-(-side // 4) for side in shape]
        self.hidden = nn.Linear(channels * sides[0] * sides[1] * sides[2] + 4, 64)
        self.outputs = nn.Linear(64, 3)

    def forward(self, voxels: Tensor, particles: ShowerParticles) -> Judgement:
        """Judge voxels in MeV (showers, voxels) of particles."""
        energy = particles.energy
        count = energy.shape[0]
        grid = torch.log1p(voxels).view(count, 1, *self.shape) / 3
        for convolution in self.convolutions:
            grid = leaky_relu(convolution(grid), 0.2)
        ratio = 5 * (voxels.sum(dim=1) / energy - 1)
        scalars = torch.cat([ratio.unsqueeze(1), particles.features(ENERGY_UNIT)], dim=1)
        # the estimate of the particle's energy must come from the voxels, so only the logit uses the scalars
        hidden = self.hidden(torch.cat([grid.flatten(1), scalars], dim=1))
        blind = self.hidden(torch.cat([grid.flatten(1), torch.zeros_like(scalars)], dim=1))
        logit = self.outputs(leaky_relu(hidden, 0.2))[:, 0]
        estimates = self.outputs(leaky_relu(blind, 0.2))
        return Judgement(logit, estimates[:, 1], estimates[:, 2])


class ShowerGAN(nn.Module):
    """Both networks."""

    log_range: Tensor

    def __init__(self, shape: Shape, latent: int, channels: int) -> None:
        super().__init__()
        self.latent = latent
        self.generator = ShowerGenerator(shape, latent, channels)
        self.discriminator = ShowerDiscriminator(shape, channels)
        self.register_buffer("log_range", torch.zeros(2))

    @property
    def energy_range(self) -> tuple[float, float]:
        """Lowest and highest incident energy that the model was trained with, MeV."""
        low, high = self.log_range.exp().tolist()
        return low, high

    def fit(self, particles: ShowerParticles, voxels: Tensor) -> None:
        """Store the range of energies."""
        self.log_range.copy_(torch.stack(particles.energy.log().aminmax()))

    def forward(self, particles: ShowerParticles, seeds: Tensor) -> Tensor:
        """Return generated showers (showers, voxels), MeV. They depend on the particle and the seed only."""
        generated: Tensor = self.generator(particles, normal_noise(seeds, self.latent))
        return generated

    def draw(self, particles: ShowerParticles) -> Tensor:
        """Return generated showers from fresh noise."""
        energy = particles.energy
        noise = torch.randn(len(energy), self.latent, device=energy.device, dtype=energy.dtype)
        generated: Tensor = self.generator(particles, noise)
        return generated

    def trained_parameters(self) -> dict[str, Any]:
        """Return the parameters that each loss trains."""
        return {"discriminator": self.discriminator.parameters(), "generator": self.generator.parameters()}


def adversarial_loss(judgement: Judgement, voxels: Tensor, energy: Tensor, *, true: float, weight: float) -> Tensor:
    """Return the loss of each shower: is it taken for true (1) or generated (0), and are both energies estimated right?

    Args:
        judgement: Outputs of the discriminator.
        voxels: The showers, MeV.
        energy: Energies of the particles, MeV.
        true: Which answer is right: 1.0 or 0.0.
        weight: Weight of the auxiliary losses.
    """
    target = torch.full_like(judgement.logit, true)
    adversarial = binary_cross_entropy_with_logits(judgement.logit, target, reduction="none")
    total = voxels.sum(dim=1).clamp(min=1e-3)
    estimates = (judgement.energy - (energy / ENERGY_UNIT).log()).abs() + (
        judgement.total - (total / ENERGY_UNIT).log()
    ).abs()
    return adversarial + weight * estimates
