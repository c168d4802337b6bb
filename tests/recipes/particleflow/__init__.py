"""Shared by the tests of particle flow: small random events on which a network can be trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clew import Ragged, Table
from clew.recipes.particleflow.settings import ParticleFlowNetworkConfig

ROOT = Path(__file__).parents[3]
SMALL = ParticleFlowNetworkConfig(
    width=16, distance=8, bin_size=32, codes=6, identity_width=16, momentum_width=16, heads=2
)


def flow_events(count: int, seed: int = 1, mean: int = 60) -> Table:
    """Events in the public columns; the class of an element follows from its type, eta and calorimeter share."""
    rng = np.random.default_rng(seed)
    lengths = np.maximum(rng.poisson(mean, count), 1)
    n = int(lengths.sum())
    track, phi, eta = rng.random(n) < 0.5, rng.uniform(-np.pi, np.pi, n), rng.uniform(-3, 3, n)
    pt, share = rng.exponential(3.0, n) + 0.5, rng.random(n)
    eta[track] *= 2.5 / 3
    place = [eta, np.sin(phi), np.cos(phi)]
    energy, charge = pt * np.cosh(eta), np.where(track, rng.choice([-1.0, 1.0], n), 0.0)
    lepton = track & (rng.random(n) < 0.1)
    elements = np.zeros((n, 12), dtype=np.float32)
    elements[:, :6] = np.stack([np.where(track, 2, 1), pt, *place, energy], axis=1)
    elements[~track, 6:8] = np.stack([energy * share, energy * (1 - share)], axis=1)[~track]
    elements[track, 6:9] = np.stack(place, axis=1)[track]
    elements[:, 9], elements[:, 10] = charge, lepton
    pid = np.where(track, np.where(lepton, 5, 1), np.where(share > 0.6, 3, np.where(share < 0.1, 0, 2)))
    targets = np.stack([pid, charge, pt * 0.9, *place, energy * 0.9], axis=1) * (pid > 0)[:, None]
    column = Ragged.from_lengths(elements, lengths)
    return Table({"event": np.arange(count), "elements": column, "targets": column.share(targets.astype(np.float32))})


def tensors(table: Table, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Elements, targets and offsets of all events."""
    elements, targets = table.ragged("elements"), table.ragged("targets")
    return (
        torch.from_numpy(elements.values).to(dtype),
        torch.from_numpy(targets.values).to(dtype),
        torch.from_numpy(elements.offsets),
    )
