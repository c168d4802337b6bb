"""Latents of a shower's total energy, layer energies and numbers of hits."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from clew.recipes.fastsim.noise import normal_quantile
from clew.recipes.fastsim.quantile_tables import QuantileTable, log_limits, with_empty, without_empty

BINS = 12
"""Bins of the incident energy."""
MIN_HIT_ENERGY = 1.05
"""In units of the threshold: a layer has at most its energy over this many hits."""


class LayerScaler(nn.Module):
    """Maps total, layer energies and hit counts to 1 + 2 * layers standard normal latents, and back.

    The marginal distribution of every latent is normal for each incident energy. A network on latents only has to learn
    how they depend on each other.

    Args:
        layers: Number of layers.
        cells: Number of voxels per layer.
    """

    empty: Tensor

    def __init__(self, layers: int, cells: int) -> None:
        super().__init__()
        self.layers, self.cells = layers, cells
        self.total = QuantileTable(1, BINS, log_limits(1e3, 1e5))
        self.energy = QuantileTable(layers, BINS, log_limits(1e3, 1e5))
        self.count = QuantileTable(layers, 24, log_limits(0.3, 6000.0))
        self.register_buffer("empty", torch.zeros(BINS, layers))

    def fit(self, incident: Tensor, energy: Tensor, count: Tensor) -> None:
        """Measure the tables from incident energies (n), layer energies and hit counts (n, layers), in MeV."""
        log_e, lit = incident.log(), energy > 0
        for table in (self.total, self.energy):
            table.set_limits(float(log_e.min()), float(log_e.max()))
        self.count.set_limits(math.log(0.3), float(energy.max().log()))
        self.total.fit((energy.sum(1) / incident).log(), log_e, torch.zeros_like(incident))
        layer = self._layers(incident).expand_as(energy)[lit]
        self.energy.fit((energy / incident[:, None])[lit].log(), log_e[:, None].expand_as(energy)[lit], layer)
        noisy = count + torch.rand_like(energy) - 0.5
        self.count.fit(noisy[lit], energy[lit].log(), layer, min_entries=60)
        bins = self._position(log_e).round().long()
        counts = torch.zeros(BINS, device=energy.device).index_add_(0, bins, torch.ones_like(log_e))
        none = torch.zeros(BINS, self.layers, device=energy.device).index_add_(0, bins, (~lit).float())
        self.empty.copy_((none + 0.05) / (counts[:, None] + 0.1))

    def encode(self, incident: Tensor, energy: Tensor, count: Tensor) -> Tensor:
        """Return latents (n, 1 + 2 * layers). Those of empty layers are random."""
        log_e, layer, lit = incident.log(), self._layers(incident), energy > 0
        safe = energy.clamp(min=1e-3)
        ratio = (energy.sum(1).clamp(min=1e-3) / incident).log()[:, None]
        total = self.total.to_latent(ratio, self.total.rows(log_e, torch.zeros_like(layer[:1])))
        rows = self.energy.rows(log_e[:, None].expand_as(energy), layer)
        latent = self.energy.to_latent((safe / incident[:, None]).log().unsqueeze(-1), rows).squeeze(-1)
        energies = with_empty(latent, lit, self._empty(log_e))
        noisy = (count + torch.rand_like(energy) - 0.5).unsqueeze(-1)
        counts = self.count.to_latent(noisy, self.count.rows(safe.log(), layer)).squeeze(-1)
        return torch.cat([total, energies, torch.where(lit, counts, torch.randn_like(counts))], 1)

    def features(self, incident: Tensor, energy: Tensor, count: Tensor) -> Tensor:
        """Return what the shape of a shower depends on: for each layer the latents of its energy and hits, and the
        logarithms of both. (n, layers, 4). Latents of empty layers are 0."""
        log_e, layer, safe = incident.log(), self._layers(incident), energy.clamp(min=1e-3)
        rows = self.energy.rows(log_e[:, None].expand_as(energy), layer)
        energies = self.energy.to_latent((safe / incident[:, None]).log().unsqueeze(-1), rows)
        counts = self.count.to_latent(count.unsqueeze(-1), self.count.rows(safe.log(), layer))
        latents = torch.cat([energies, counts], -1) * (energy > 0).float().unsqueeze(-1)
        return torch.cat([latents, torch.stack([(energy + 1).log() / 3 - 1, (count + 1).log() / 2 - 1], -1)], -1)

    @property
    def limits(self) -> Tensor:
        """Logarithms of the lowest and the highest incident energy in MeV that the tables were measured with."""
        return self.total.limits

    def decode(self, incident: Tensor, latent: Tensor, threshold: float | Tensor = 0.01) -> tuple[Tensor, Tensor]:
        """Return layer energies, whose sum is the total of the latents, and hit counts.

        Args:
            incident: Incident energies, MeV (n).
            latent: Latents (n, 1 + 2 * layers).
            threshold: Lowest energy of a hit, MeV. A layer has no more hits than its energy allows.
        """
        log_e, layer = incident.log(), self._layers(incident)
        total_latent, energies, counts = torch.tensor_split(latent, (1, 1 + self.layers), 1)
        ratio = self.total.to_value(total_latent, self.total.rows(log_e, torch.zeros_like(layer[:1]))).squeeze(1)
        empty = self._empty(log_e)
        lit = energies > normal_quantile(empty)
        lit = lit | (~lit.any(1, keepdim=True) & (energies == energies.amax(1, keepdim=True)))
        rows = self.energy.rows(log_e[:, None].expand_as(energies), layer)
        shares = self.energy.to_value(without_empty(energies, empty).unsqueeze(-1), rows).squeeze(-1).exp()
        shares = torch.where(lit, shares, 0.0)
        energy = shares * (incident * ratio.exp() / shares.sum(1))[:, None]
        rows = self.count.rows(energy.clamp(min=1e-3).log(), layer)
        count = self.count.to_value(counts.unsqueeze(-1), rows).squeeze(-1).round().clamp(1.0, float(self.cells))
        count = torch.minimum(count, (energy / (MIN_HIT_ENERGY * threshold)).floor().clamp(min=1.0))
        return energy, torch.where(lit, count, 0.0)

    def _layers(self, like: Tensor) -> Tensor:
        return torch.arange(self.layers, device=like.device)

    def _position(self, log_e: Tensor) -> Tensor:
        low, high = self.limits.unbind()
        return ((log_e - low) / (high - low) * (BINS - 1)).clamp(0.0, BINS - 1.0)

    def _empty(self, log_e: Tensor) -> Tensor:
        """Return the probability (n, layers) that a layer has no energy."""
        position = self._position(log_e).clamp(max=BINS - 1.0001)
        left = position.floor().long()
        mixed = torch.lerp(self.empty[left], self.empty[left + 1], (position - left)[:, None])
        return mixed.clamp(1e-5, 1 - 1e-5)
