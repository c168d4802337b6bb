"""The particles for which showers are generated."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class ShowerParticles(NamedTuple):
    """What a shower is generated for: one number per shower."""

    energy: Tensor
    """MeV."""
    slope_x: Tensor
    """Tangent of the angle to the axis, times the cosine of the azimuth."""
    slope_y: Tensor

    @classmethod
    def of(cls, energy: Tensor, theta: Tensor | None = None, phi: Tensor | None = None) -> ShowerParticles:
        """Return particles from energies (MeV) and angles (radians). Without angles they are parallel to the axis."""
        if theta is None or phi is None:
            return cls(energy, torch.zeros_like(energy), torch.zeros_like(energy))
        slope = theta.to(energy.dtype).tan()
        return cls(energy, slope * phi.to(energy.dtype).cos(), slope * phi.to(energy.dtype).sin())

    def features(self, unit: float) -> Tensor:
        """Return the logarithm of the energy over `unit`, and both slopes: (n, 3)."""
        return torch.stack([(self.energy / unit).log(), self.slope_x, self.slope_y], 1)
