"""Latents of voxels, given the energy and the number of hits of each layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clew.recipes.fastsim.noise import normal_quantile
from clew.recipes.fastsim.quantile_tables import QuantileTable, log_limits, with_empty, without_empty

Shape = tuple[int, int, int]


class VoxelScaler(nn.Module):
    """Maps voxels to standard normal latents and back.

    `decode` lights as many voxels per layer as the hit count says, each above the threshold of the read-out, and their
    sum is the energy of the layer: sparsity and energies are right by construction. With independent normal latents,
    the energies of voxels already have the right distribution for their ring and layer.

    Args:
        shape: Layers, angles and rings. Voxels of a ring have the same distribution.
        together: Number of consecutive layers that share tables of energies.
    """

    occupancy: Tensor
    group: Tensor
    threshold: Tensor

    def __init__(self, shape: Shape, together: int = 3) -> None:
        super().__init__()
        self.shape = layers, angles, rings = shape
        groups = -(-layers // together)
        self.energy = QuantileTable(groups * rings, 32, log_limits(0.01, 100.0))
        self.register_buffer("threshold", torch.tensor(0.01))
        share = torch.arange(angles * rings + 1.0) / (angles * rings)
        self.register_buffer("occupancy", share.clamp(1e-5, 1 - 1e-4)[:, None].repeat(layers, 1, rings))
        group = torch.arange(layers) // together
        self.register_buffer("group", group[:, None] * rings + torch.arange(rings), persistent=False)

    def fit(self, voxels: Tensor) -> None:
        """Measure the tables from voxels in MeV (n, layers, angles, rings)."""
        layers, angles, rings = self.shape
        lit = voxels > 0
        count, energy = lit.sum((2, 3)), voxels.sum((2, 3))
        self.threshold.copy_(voxels[lit].min())
        means = self._means(energy, count)
        self.energy.set_limits(float(self.threshold.log()), float(means.max()))
        groups = self.group[None, :, None, :].expand_as(voxels)[lit]
        self.energy.fit(self._logarithms(voxels, count)[lit], means[:, :, None, None].expand_as(voxels)[lit], groups)
        place = count + torch.arange(layers, device=voxels.device) * (angles * rings + 1)
        hits = torch.zeros(layers * (angles * rings + 1), rings, dtype=torch.float64, device=voxels.device)
        hits.index_add_(0, place.flatten(), lit.sum(2).flatten(0, 1).double())
        showers = torch.bincount(place.flatten(), minlength=len(hits)).double()
        self.occupancy.copy_(self._smooth(hits.view(layers, -1, rings), showers.view(layers, -1)))

    def empty(self, count: Tensor) -> Tensor:
        """Return the probability (n, layers, rings) that a voxel is empty in a layer of `count` hits."""
        return 1 - self.occupancy[torch.arange(self.shape[0], device=count.device), count.long()]

    def encode(self, voxels: Tensor) -> Tensor:
        """Return latents of voxels in MeV (n, layers, angles, rings). Those of empty voxels are random."""
        lit = voxels > 0
        count, energy = lit.sum((2, 3)), voxels.sum((2, 3))
        logarithms = self._logarithms(voxels, count).transpose(2, 3)
        latent = self.energy.to_latent(logarithms, self._rows(energy, count)).transpose(2, 3)
        return with_empty(latent, lit, self.empty(count)[:, :, None, :])

    def decode(self, latent: Tensor, energy: Tensor, count: Tensor) -> Tensor:
        """Return voxels in MeV (n, layers, angles, rings) of layer energies and hit counts (n, layers)."""
        empty = self.empty(count)[:, :, None, :]
        edge = normal_quantile(empty)
        margin, lit = _select((latent - edge).flatten(2), count.long()[..., None])
        inner = without_empty(margin.view_as(latent) + edge, empty).transpose(2, 3)
        values = self.energy.to_value(inner, self._rows(energy, count)).transpose(2, 3)
        lit = lit.view_as(values)
        excess = torch.where(lit, self.threshold * (values.clamp(1e-4, 30.0).exp() - 1), 0.0)
        target = (energy - lit.sum((2, 3)) * self.threshold).clamp(min=0.0)
        scale = target / excess.sum((2, 3)).clamp(min=1e-9)
        return torch.where(lit, self.threshold + excess * scale[:, :, None, None], 0.0)

    def _rows(self, energy: Tensor, count: Tensor) -> Tensor:
        condition = self._means(energy, count)[:, :, None].expand(-1, -1, self.shape[2])
        return self.energy.rows(condition, self.group)

    def _means(self, energy: Tensor, count: Tensor) -> Tensor:
        """Return the logarithm of the mean energy of the hits of each layer."""
        return (energy / count.clamp(min=1.0)).maximum(self.threshold).log()

    def _logarithms(self, voxels: Tensor, count: Tensor) -> Tensor:
        """Return the logarithm of voxels over the threshold."""
        values = (voxels / self.threshold).clamp(min=1.0).log()
        # one hit alone has the energy of the layer exactly: spread it, or the quantile function has no inverse
        return values + 0.02 * torch.randn_like(values) * (count == 1)[:, :, None, None]

    def _smooth(self, hits: Tensor, showers: Tensor) -> Tensor:
        """Return the probability of a hit (layers, counts, rings), smoothed over close layers and counts."""
        layers, angles, rings = self.shape
        cells = angles * rings
        n, layer = (
            torch.arange(cells + 1, device=hits.device).double(),
            torch.arange(layers, device=hits.device).double(),
        )
        across = torch.exp(-0.5 * ((n[:, None] - n) / (0.08 * n[:, None] + 0.05)) ** 2)
        along = torch.exp(-0.5 * ((layer[:, None] - layer) / 0.5) ** 2)
        share = hits / n.clamp(min=1)[:, None] / angles  # of the layer's hits, in one voxel of the ring
        total = torch.einsum("ab,bmr,nm->anr", along, share, across)
        weight = torch.einsum("ab,bm,nm->an", along, showers, across)[..., None]
        prior = (total.sum(0) + 1 / cells) / (weight.sum(0) + 1.0)
        chance = (total + 20 * prior) / (weight + 20) * n[:, None]
        for _ in range(20):  # at most 1 each, and n hits expected in all
            chance = chance.clamp(max=1.0)
            chance = chance * (n / (chance.sum(2) * angles).clamp(min=1e-9))[..., None]
        return chance.clamp(1e-5, 1 - 1e-4)


def _select(margin: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Light the `count` voxels with the largest margin above their edge.

    0 separates lit from empty voxels. The separation moves only as far as the number of hits needs, and margins close
    to it move with it.

    Returns:
        Margins, above 0 for lit voxels, and which voxels are lit.
    """
    cells = margin.shape[-1]
    ranked = margin.sort(-1, descending=True).values
    last, after = ranked.gather(-1, (count - 1).clamp(0)), ranked.gather(-1, count.clamp(max=cells - 1))
    after = torch.where(count >= cells, last - 1, after)
    cut = torch.where(last <= 0, last - 1e-4, after.clamp(min=0.0))
    reach = (2 * cut.abs()).clamp(min=0.5)
    moved = margin - cut * torch.exp(-(margin - cut).clamp(min=0) / reach)
    return moved.clamp(min=1e-4), (margin > cut) & (count > 0)
