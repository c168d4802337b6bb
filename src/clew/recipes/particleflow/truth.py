"""What an element should be told to be: the targets of tracks and of towers, by the rules of the public Delphes set."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clew.recipes.particleflow.columns import CHARGED_HADRON, ELECTRON, MUON, NEUTRAL_HADRON, NONE, PHOTON

Array = NDArray[Any]

TRACKER = 2.5
"""In eta: charged hadrons beyond it count as neutral ones."""


class Particles(NamedTuple):
    """Visible particles, GeV and radians; `kind` is a class of targets."""

    pt: Array
    eta: Array
    phi: Array
    energy: Array
    charge: Array
    kind: Array

    def take(self, rows: Any) -> Particles:
        """These of them."""
        return Particles(*(values[rows] for values in self))


def kinds(pdg: Array, charge: Array) -> Array:
    """Classes of visible particles by their PDG numbers."""
    kind = np.where(charge == 0, NEUTRAL_HADRON, CHARGED_HADRON).astype(np.int8)
    for number, name in ((22, PHOTON), (11, ELECTRON), (13, MUON)):
        kind[np.abs(pdg) == number] = name
    return kind


def of_tracks(own: Particles) -> Array:
    """The targets (n, 7) of tracks, one particle each."""
    columns = [own.kind, own.charge, own.pt, own.eta, np.sin(own.phi), np.cos(own.phi), own.energy]
    return np.stack(columns, axis=1).astype(np.float32)


def of_towers(own: Particles, tower: Array, towers: int, *, least_neutral: float = 0.0) -> Array:
    """The targets (towers, 7) of towers: the sum of the particles in each, the class that of the largest energy.

    Neutral hadrons with less energy than `least_neutral` and towers without particles are none: all zeros.
    """
    momenta = (own.pt * np.cos(own.phi), own.pt * np.sin(own.phi), own.pt * np.sinh(own.eta), own.energy)
    px, py, pz, energy = (np.bincount(tower, each, minlength=towers) for each in momenta)
    most = np.zeros(towers, dtype=own.energy.dtype)
    np.maximum.at(most, tower, own.energy)
    leading = np.flatnonzero(own.energy == most[tower])
    pid, charge = np.full(towers, NONE), np.zeros(towers)
    pid[tower[leading]], charge[tower[leading]] = own.kind[leading], own.charge[leading]
    pt = np.maximum(np.hypot(px, py), 1e-9)
    eta = np.arcsinh(pz / pt)
    pid[(pid == CHARGED_HADRON) & (np.abs(eta) > TRACKER)] = NEUTRAL_HADRON
    charge[pid == NEUTRAL_HADRON] = 0
    pid[(pid == NEUTRAL_HADRON) & (energy < least_neutral)] = NONE
    made = np.stack([pid, charge, pt, eta, py / pt, px / pt, energy], axis=1)
    made[pid == NONE] = 0
    return made.astype(np.float32)
