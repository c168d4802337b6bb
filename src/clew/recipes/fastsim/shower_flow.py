"""The flow of whole showers: layers first, then voxels; and its distillation to one step."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.special import ndtri

from clew.recipes.fastsim.flow_networks import LayerFlow, Shape, ShapeFlow, ShowerConditions
from clew.recipes.fastsim.layer_scaler import LayerScaler
from clew.recipes.fastsim.voxel_scaler import VoxelScaler

END = math.pi / 2
"""Angle of the data; noise has the angle 0."""


class ShowerFlow(nn.Module):
    """Generates showers by flow matching on latents.

    Args:
        shape: Layers, angles and rings.
        energy: Range of incident energies, MeV.
        layer_flow: The network of layers.
        shape_flow: The network of voxels.

    Example:
        >>> import torch
        >>> from clew.recipes.fastsim.flow_networks import LayerFlow, ShapeFlow
        >>> shape = (6, 4, 3)
        >>> networks = LayerFlow(13, width=16, depth=1), ShapeFlow(shape, width=16, depth=1, heads=2)
        >>> flow = ShowerFlow(shape, (1e3, 1e5), *networks)
        >>> energy = torch.full((200,), 5000.0)
        >>> flow.fit(energy, torch.rand(200, *shape) * 100)
        >>> flow.generate(energy, steps=2).shape
        torch.Size([200, 6, 4, 3])
    """

    def __init__(self, shape: Shape, energy: tuple[float, float], layer_flow: LayerFlow, shape_flow: ShapeFlow) -> None:
        super().__init__()
        self.layer_scaler = LayerScaler(shape[0], shape[1] * shape[2], energy)
        self.voxel_scaler = VoxelScaler(shape)
        self.layer_flow, self.shape_flow = layer_flow, shape_flow

    def fit(self, incident: Tensor, voxels: Tensor) -> None:
        """Measure the tables of the scalers from incident energies (n) and voxels (n, layers, angles, rings), MeV."""
        self.layer_scaler.fit(incident, voxels.sum((2, 3)), (voxels > 0).sum((2, 3)).float())
        self.voxel_scaler.fit(voxels)

    def layer_loss(self, incident: Tensor, voxels: Tensor) -> Tensor:
        """Return the flow-matching loss of the layers, one value per shower."""
        latent = self.layer_scaler.encode(incident, voxels.sum((2, 3)), (voxels > 0).sum((2, 3)).float())
        angle, place, velocity = _draw_place(latent)
        predicted: Tensor = self.layer_flow(place, angle, self._scaled(incident))
        return (predicted - velocity).square().mean(1)

    def shape_loss(self, incident: Tensor, voxels: Tensor) -> Tensor:
        """Return the flow-matching loss of the voxels, one value per shower.

        Voxels that are rarely lit have smaller weights: most of their latents are noise.
        """
        count = (voxels > 0).sum((2, 3)).float()
        conditions = self.conditions(incident, voxels.sum((2, 3)), count)
        weight = 0.2 + (1 - self.voxel_scaler.empty(count)).sqrt()[:, :, None, :]
        angle, place, velocity = _draw_place(self.voxel_scaler.encode(voxels))
        predicted: Tensor = self.shape_flow(place, angle, angle, conditions)
        return ((predicted - velocity).square() * weight / weight.mean()).flatten(1).mean(1)

    def conditions(self, incident: Tensor, energy: Tensor, count: Tensor) -> ShowerConditions:
        """Return what the shape depends on, from incident energies (n), layer energies and hit counts (n, layers)."""
        latent = self.layer_scaler.encode(incident, energy, count)[:, 1:] * (energy > 0).float().repeat(1, 2)
        logs = (energy + 1).log() / 3 - 1, (count + 1).log() / 2 - 1
        layers = torch.stack([*latent.chunk(2, 1), *logs], -1)
        return ShowerConditions(self._scaled(incident), layers, ndtri(self.voxel_scaler.empty(count)) / 2)

    @torch.no_grad()
    def generate(self, incident: Tensor, *, steps: int = 10, student: ShapeFlow | None = None) -> Tensor:
        """Generate one shower for each incident energy (n), MeV.

        Args:
            incident: Energies of the particles.
            steps: Steps of the shape. With a student, 1 is enough.
            student: A distilled network of the shape (`distillation_loss`); each step is one evaluation of it.

        Returns:
            Voxels in MeV (n, layers, angles, rings).
        """
        energy, count = self.layer_scaler.decode(incident, self._draw_layers(incident))
        conditions = self.conditions(incident, energy, count)
        latent = torch.randn(len(incident), *self.shape_flow.shape, device=incident.device)
        return self.voxel_scaler.decode(self.move(latent, conditions, steps=steps, student=student), energy, count)

    @torch.no_grad()
    def move(
        self, latent: Tensor, conditions: ShowerConditions, *, steps: int, student: ShapeFlow | None = None
    ) -> Tensor:
        """Move noise to latents of voxels, by the midpoint rule or with a student."""
        length = END / steps
        for step in range(steps):
            start = torch.full((len(latent),), step * length, device=latent.device)
            if student is not None:
                latent = latent + length * student(latent, start, start + length, conditions)
                continue
            middle = start + length / 2
            half = latent + length / 2 * self.shape_flow(latent, start, start, conditions)
            latent = latent + length * self.shape_flow(half, middle, middle, conditions)
        return latent

    def distillation_loss(self, student: ShapeFlow, conditions: ShowerConditions, *, steps: int = 8) -> Tensor:
        """Return the loss of a student that goes from noise to data in one step, one value per shower."""
        shape = len(conditions.energy), *self.shape_flow.shape
        noise = torch.randn(shape, device=conditions.energy.device)
        target = (self.move(noise, conditions, steps=steps) - noise) / END
        start = torch.zeros_like(conditions.energy)
        predicted: Tensor = student(noise, start, start + END, conditions)
        return (predicted - target).square().flatten(1).mean(1)

    def _draw_layers(self, incident: Tensor, steps: int = 16) -> Tensor:
        latent = torch.randn(len(incident), 1 + 2 * self.layer_scaler.layers, device=incident.device)
        length, energy = END / steps, self._scaled(incident)
        for step in range(steps):
            angle = torch.full_like(incident, step * length)
            half = latent + length / 2 * self.layer_flow(latent, angle, energy)
            latent = latent + length * self.layer_flow(half, angle + length / 2, energy)
        return latent

    def _scaled(self, incident: Tensor) -> Tensor:
        """Return the logarithm of the energy with a mean of 0 and a standard deviation of 1 over the range."""
        low, high = self.layer_scaler.limits
        return (incident.log() - (low + high) / 2) / max((high - low) / math.sqrt(12), 1e-3)


def _draw_place(data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return random angles (n), places on the way from noise to data, and the velocities there."""
    angle = torch.rand(len(data), device=data.device) * END
    wide = angle.view(-1, *[1] * (data.ndim - 1))
    noise = torch.randn_like(data)
    return angle, wide.cos() * noise + wide.sin() * data, wide.cos() * data - wide.sin() * noise
