"""The flow of whole showers: layers first, then voxels; and its distillation to one step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from clew.recipes.fastsim.flow_networks import LayerFlow, Shape, ShapeFlow, ShowerConditions
from clew.recipes.fastsim.layer_scaler import LayerScaler
from clew.recipes.fastsim.noise import normal_noise, normal_quantile
from clew.recipes.fastsim.particles import ShowerParticles
from clew.recipes.fastsim.voxel_scaler import VoxelScaler

END = math.pi / 2
"""Angle of the data; noise has the angle 0."""
LAYER_STEPS = 8
"""Steps of the layers. They are much cheaper than those of the shape."""


class ShowerFlow(nn.Module):
    """Generates showers by flow matching on latents.

    Args:
        shape: Layers, angles and rings.
        layer_flow: The network of layers.
        shape_flow: The network of voxels.
        steps: Steps of the shape, of two evaluations each.

    Example:
        >>> import torch
        >>> from clew.recipes.fastsim.flow_networks import LayerFlow, ShapeFlow
        >>> shape = (6, 4, 3)
        >>> networks = LayerFlow(13, width=16, depth=1), ShapeFlow(shape, width=16, depth=1, heads=2)
        >>> flow = ShowerFlow(shape, *networks, steps=2)
        >>> particles = ShowerParticles.of(torch.full((200,), 5000.0))
        >>> flow.fit(particles, torch.rand(200, 6 * 4 * 3) * 100)
        >>> flow(particles, seeds=torch.arange(200)).shape
        torch.Size([200, 72])
    """

    def __init__(self, shape: Shape, layer_flow: LayerFlow, shape_flow: ShapeFlow, *, steps: int = 10) -> None:
        super().__init__()
        self.shape, self.steps = shape, steps
        self.layer_scaler = LayerScaler(shape[0], shape[1] * shape[2])
        self.voxel_scaler = VoxelScaler(shape)
        self.layer_flow, self.shape_flow = layer_flow, shape_flow

    @property
    def energy_range(self) -> tuple[float, float]:
        """Lowest and highest incident energy that the model was trained with, MeV."""
        low, high = self.layer_scaler.limits.exp().tolist()
        return low, high

    def fit(self, particles: ShowerParticles, voxels: Tensor) -> None:
        """Measure the tables of the scalers from showers, voxels in MeV (n, voxels)."""
        grid = voxels.view(-1, *self.shape)
        self.layer_scaler.fit(particles.energy, *_layer_sums(grid))
        self.voxel_scaler.fit(grid)

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compile the blocks of the transformer (`train.compile`): one program for all. The rest takes little time."""
        for block in self.shape_flow.blocks:
            block.compile(*arguments, **options)

    def forward(self, particles: ShowerParticles, seeds: Tensor) -> Tensor:
        """Generate one shower for each particle. It depends on the particle and the seed (n, int64) only.

        Returns:
            Voxels in MeV (n, voxels).
        """
        latents = 1 + 2 * self.shape[0]
        noise = normal_noise(seeds, latents + math.prod(self.shape))
        layer_noise, voxel_noise = noise[:, :latents], noise[:, latents:].reshape(-1, *self.shape)
        drawn = self._move_layers(layer_noise, self._features(particles))
        energy, count = self.layer_scaler.decode(particles.energy, drawn, self.voxel_scaler.threshold)
        conditions = self.conditions(particles, energy, count)
        latent = self.move(voxel_noise, conditions)
        return self.voxel_scaler.decode(latent.float(), energy, count).flatten(1)

    def losses(self, particles: ShowerParticles, voxels: Tensor) -> dict[str, Tensor]:
        """Return the loss, one value per shower: that of the layers plus that of the shape."""
        grid = voxels.view(-1, *self.shape)
        return {"loss": self.layer_loss(particles, grid) + self.shape_loss(particles, grid)}

    def trained_parameters(self) -> dict[str, Any]:
        """Return the parameters that each loss trains."""
        return {"loss": [*self.layer_flow.parameters(), *self.shape_flow.parameters()]}

    def layer_loss(self, particles: ShowerParticles, voxels: Tensor) -> Tensor:
        """Return the flow-matching loss of the layers, one value per shower."""
        latent = self.layer_scaler.encode(particles.energy, *_layer_sums(voxels))
        angle, place, velocity = _draw_place(latent)
        predicted: Tensor = self.layer_flow(place, angle, self._features(particles))
        return (predicted - velocity).square().mean(1)

    def shape_loss(self, particles: ShowerParticles, voxels: Tensor) -> Tensor:
        """Return the flow-matching loss of the voxels, one value per shower.

        Voxels that are rarely lit have smaller weights: most of their latents are noise.
        """
        energy, count = _layer_sums(voxels)
        weight = 0.2 + (1 - self.voxel_scaler.empty(count)).sqrt()[:, :, None, :]
        angle, place, velocity = _draw_place(self.voxel_scaler.encode(voxels))
        predicted: Tensor = self.shape_flow(place, angle, angle, self.conditions(particles, energy, count))
        return ((predicted - velocity).square() * weight / weight.mean()).flatten(1).mean(1)

    def conditions(self, particles: ShowerParticles, energy: Tensor, count: Tensor) -> ShowerConditions:
        """Return what the shape depends on, from layer energies and hit counts (n, layers)."""
        edges = normal_quantile(self.voxel_scaler.empty(count)) / 2
        return ShowerConditions(
            self._features(particles), self.layer_scaler.features(particles.energy, energy, count), edges
        )

    def move(self, latent: Tensor, conditions: ShowerConditions) -> Tensor:
        """Move noise to latents of voxels, by the midpoint rule."""
        for moved in self._midpoint_steps(latent, conditions, self.steps):
            latent = moved
        return latent

    def _midpoint_steps(self, latent: Tensor, conditions: ShowerConditions, steps: int) -> Iterator[Tensor]:
        """Yield the latents after each step of the midpoint rule."""
        length = END / steps
        for step in range(steps):
            start = torch.full_like(latent[:, 0, 0, 0], step * length)
            middle = start + length / 2
            half = latent + length / 2 * self.shape_flow(latent, start, start, conditions)
            latent = latent + length * self.shape_flow(half, middle, middle, conditions)
            yield latent

    def _move_layers(self, latent: Tensor, features: Tensor) -> Tensor:
        length = END / LAYER_STEPS
        for step in range(LAYER_STEPS):
            angle = torch.full_like(latent[:, 0], step * length)
            half = latent + length / 2 * self.layer_flow(latent, angle, features)
            latent = latent + length * self.layer_flow(half, angle + length / 2, features)
        return latent.float()

    def _features(self, particles: ShowerParticles) -> Tensor:
        """Return the features of particles. The logarithm of the energy has a standard deviation of about 1."""
        low, high = self.layer_scaler.limits.unbind()
        energy = (particles.energy.log() - (low + high) / 2) / ((high - low) / math.sqrt(12))
        return torch.stack([energy, particles.slope_x, particles.slope_y], 1)


class DistilledFlow(ShowerFlow):
    """A flow whose shape needs few steps: a student learns the steps of a trained flow.

    Args:
        shape: Layers, angles and rings.
        layer_flow: The network of layers of the trained flow.
        shape_flow: The network of voxels of the trained flow, the teacher.
        student: The network that replaces it.
        steps: Steps of the student, of one evaluation each.
        teacher_steps: Steps of the teacher, in all.
    """

    def __init__(
        self,
        shape: Shape,
        layer_flow: LayerFlow,
        shape_flow: ShapeFlow,
        student: ShapeFlow,
        *,
        steps: int = 1,
        teacher_steps: int = 8,
    ) -> None:
        super().__init__(shape, layer_flow, shape_flow, steps=teacher_steps)
        self.student, self.student_steps = student, steps

    def compile(self, *arguments: Any, **options: Any) -> None:
        super().compile(*arguments, **options)
        for block in self.student.blocks:
            block.compile(*arguments, **options)

    def trained_parameters(self) -> dict[str, Any]:
        return {"loss": self.student.parameters()}

    def losses(self, particles: ShowerParticles, voxels: Tensor) -> dict[str, Tensor]:
        """Return the difference between the student and the teacher over a random one of the student's steps."""
        grid = voxels.view(-1, *self.shape)
        conditions = self.conditions(particles, *_layer_sums(grid))
        each = max(self.steps // self.student_steps, 1)
        with torch.no_grad():
            noise = torch.randn_like(grid)
            points = [noise, *self._midpoint_steps(noise, conditions, each * self.student_steps)][::each]
        step = torch.randint(self.student_steps, (len(grid),), device=grid.device)
        way = torch.stack(points, 1)
        row = torch.arange(len(grid), device=grid.device)
        start, length = way[row, step], END / self.student_steps
        target = (way[row, step + 1] - start) / length
        angle = step * length
        predicted: Tensor = self.student(start, angle, angle + length, conditions)
        return {"loss": (predicted - target).square().flatten(1).mean(1)}

    def move(self, latent: Tensor, conditions: ShowerConditions) -> Tensor:
        """Move noise to latents of voxels with the student."""
        length = END / self.student_steps
        for step in range(self.student_steps):
            start = torch.full_like(latent[:, 0, 0, 0], step * length)
            latent = latent + length * self.student(latent, start, start + length, conditions)
        return latent


def _layer_sums(voxels: Tensor) -> tuple[Tensor, Tensor]:
    """Return energies and hit counts of layers (n, layers) from voxels (n, layers, angles, rings)."""
    return voxels.sum((2, 3)), (voxels > 0).sum((2, 3)).float()


def _draw_place(data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return random angles (n), places on the way from noise to data, and the velocities there."""
    angle = torch.rand(len(data), device=data.device) * END
    wide = angle.view(-1, *[1] * (data.ndim - 1))
    noise = torch.randn_like(data)
    return angle, wide.cos() * noise + wide.sin() * data, wide.cos() * data - wide.sin() * noise
