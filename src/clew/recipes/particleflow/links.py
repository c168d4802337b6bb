"""Features of an element from the elements that it is linked to: tracks and the towers that they point at.

An element is linked to the elements in its cell of the coarse grid of the calorimeter, and in the eight cells around
it. A tower is in the cell of its position, a track in that where it leaves the tracker. The features are appended to
the columns of elements by `ParticleFlow.prepare` if `data.links` is set. Energies and momenta are log(1 + x / GeV).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew import Ragged
from clew.recipes.particleflow.calorimeter import COARSE_GRID
from clew.recipes.particleflow.columns import TOWER, TRACK

Floats = NDArray[np.float64]

LINK_FEATURES = (
    "tracks",
    "hadron_momentum",
    "electron_momentum",
    "hardest_track",
    "em_energy",
    "had_energy",
    "had_remainder",
    "em_remainder",
    "momentum_around",
    "em_energy_around",
    "had_energy_around",
)
"""In the cell of the element: the number of tracks, the summed momenta of charged hadrons and of electrons, the
largest momentum, the energies of both parts of towers, and both energies less the momenta (with their signs, as logs).
In the eight cells around it: the momentum of tracks and the energies of towers."""


def link_features(elements: Ragged) -> NDArray[np.float32]:
    """Return the features (n, 11) of elements (n, 12) of events."""
    x, grid = elements.values.astype(np.float64), COARSE_GRID
    tower, track = x[:, 0] == TOWER, x[:, 0] == TRACK
    eta = np.where(track, x[:, 6], x[:, 2])
    phi = np.arctan2(np.where(track, x[:, 7], x[:, 3]), np.where(track, x[:, 8], x[:, 4]))
    local_cell = grid.index(eta, phi)
    cell, size = elements.events * grid.towers + local_cell, len(elements) * grid.towers
    electron = track & (x[:, 11] > 0)
    hadron = track & ~electron & ~(x[:, 10] > 0)
    values = (track, hadron * x[:, 5], electron * x[:, 5], tower * x[:, 6], tower * x[:, 7])
    tracks, hadrons, electrons, em, had = (np.bincount(cell, value, minlength=size) for value in values)
    hardest = np.zeros(size)
    np.maximum.at(hardest, cell[track], x[track, 5])
    around = _sums_around(elements, (eta, phi), [hadrons, em, had])
    here = [each[cell] for each in (tracks, hadrons, electrons, hardest, em, had, had - hadrons, em - electrons)]
    features: NDArray[np.float32] = _signed_log(np.stack([*here, *around], axis=1)).astype(np.float32)
    return features


def _sums_around(elements: Ragged, position: tuple[Floats, Floats], sums: list[Any]) -> list[Floats]:
    """Return the sums over the eight cells around the cell of each element."""
    (eta, phi), grid = position, COARSE_GRID
    width_eta, width_phi = grid.widths(grid.index(eta, phi))
    around = [np.zeros(len(eta)) for _ in sums]
    for up in (-1, 0, 1):
        for along in (-1, 0, 1):
            if not up and not along:
                continue
            there = (phi + along * width_phi + np.pi) % (2 * np.pi) - np.pi
            other = elements.events * grid.towers + grid.index(eta + up * width_eta, there)
            inside = np.abs(eta + up * width_eta) < grid.eta_edges[-1]
            for total, each in zip(around, sums, strict=True):
                total += each[other] * inside
    return around


def _signed_log(values: Floats) -> Floats:
    result: Floats = np.sign(values) * np.log1p(np.abs(values))
    return result
