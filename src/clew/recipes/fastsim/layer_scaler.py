"""Latents of a shower's total energy, layer energies and numbers of hits."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.special import ndtri

from clew.recipes.fastsim.quantile_tables import QuantileTable, log_limits, with_empty, without_empty

BINS = 12
"""Bins of the incident energy."""
MIN_HIT_ENERGY = 0.016
"""MeV. A layer has at most its energy over this many hits, because each is above the threshold of the read-out."""


class LayerScaler(nn.Module):
    """Maps total, layer energies and hit counts to 1 + 2 * layers standard normal latents, and back.

    The marginal distribution of every latent is normal for each incident energy. A network on latents only has to learn
    how they depend on each other.

    Args:
        layers: Number of layers.
        cells: Number of voxels per layer.
        energy: Range of incident energies, MeV.
    """

    empty: Tensor

    def __init__(self, layers: int, cells: int, energy: tuple[float, float] = (1e3, 1e5)) -> None:
        super().__init__()
        self.layers, self.cells, self.limits = layers, cells, log_limits(*energy)
        self.total = QuantileTable(1, BINS, self.limits)
        self.energy = QuantileTable(layers, BINS, self.limits)
        self.count = QuantileTable(layers, 24, log_limits(0.3, 6000.0))
        self.register_buffer("empty", torch.zeros(BINS, layers))

    def fit(self, incident: Tensor, energy: Tensor, count: Tensor) -> None:
        """Measure the tables from incident energies (n), layer energies and hit counts (n, layers), in MeV."""
        log_e, lit = incident.log(), energy > 0
        self.total.fit((energy.sum(1) / incident).log(), log_e, torch.zeros_like(incident))
        layer = self._layers(incident).expand_as(energy)[lit]
        self.energy.fit((energy / incident[:, None])[lit].log(), log_e[:, None].expand_as(energy)[lit], layer)
        noisy = count + torch.rand_like(energy) - 0.5
        self.count.fit(noisy[lit], energy[lit].log(), layer, min_entries=60)
        bins = self._position(log_e).round().long()
        seen = torch.zeros(BINS, device=energy.device).index_add_(0, bins, torch.ones_like(log_e))
        none = torch.zeros(BINS, self.layers, device=energy.device).index_add_(0, bins, (~lit).float())
        self.empty = (none + 0.05) / (seen[:, None] + 0.1)

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

    def decode(self, incident: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Return layer energies, whose sum is the total of the latents, and hit counts."""
        log_e, layer = incident.log(), self._layers(incident)
        total_latent, energies, counts = torch.tensor_split(latent, (1, 1 + self.layers), 1)
        ratio = self.total.to_value(total_latent, self.total.rows(log_e, torch.zeros_like(layer[:1]))).squeeze(1)
        empty = self._empty(log_e)
        lit = energies > ndtri(empty)
        lit = lit | (~lit.any(1, keepdim=True) & (energies == energies.amax(1, keepdim=True)))
        rows = self.energy.rows(log_e[:, None].expand_as(energies), layer)
        shares = self.energy.to_value(without_empty(energies, empty).unsqueeze(-1), rows).squeeze(-1).exp()
        shares = torch.where(lit, shares, 0.0)
        energy = shares * (incident * ratio.exp() / shares.sum(1))[:, None]
        rows = self.count.rows(energy.clamp(min=1e-3).log(), layer)
        count = self.count.to_value(counts.unsqueeze(-1), rows).squeeze(-1).round().clamp(1, self.cells)
        count = torch.minimum(count, (energy / MIN_HIT_ENERGY).floor().clamp(min=1))
        return energy, torch.where(lit, count, 0.0)

    def _layers(self, like: Tensor) -> Tensor:
        return torch.arange(self.layers, device=like.device)

    def _position(self, log_e: Tensor) -> Tensor:
        low, high = self.limits
        return ((log_e - low) / (high - low) * (BINS - 1)).clamp(0, BINS - 1)

    def _empty(self, log_e: Tensor) -> Tensor:
        """Return the probability (n, layers) that a layer has no energy."""
        position = self._position(log_e).clamp(max=BINS - 1.0001)
        left = position.floor().long()
        mixed = torch.lerp(self.empty[left], self.empty[left + 1], (position - left)[:, None])
        return mixed.clamp(1e-5, 1 - 1e-5)
