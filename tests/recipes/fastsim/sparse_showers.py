"""Showers for tests of the flow and of its scalers."""

from __future__ import annotations

import torch
from torch import Tensor

SHAPE = (6, 4, 3)


def sparse_showers() -> tuple[Tensor, Tensor]:
    """Incident energies, and voxels that depend on each other: all layers are lit on one side of the axis."""
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


def layer_sums(voxels: Tensor) -> tuple[Tensor, Tensor]:
    """Energy and number of hits of each layer."""
    return voxels.sum((2, 3)), (voxels > 0).sum((2, 3)).float()
