"""The targets of tracks and towers, by the rules of the public Delphes data set."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clew.recipes.particleflow.columns import CHARGED_HADRON, ELECTRON, MUON, NEUTRAL_HADRON, NONE, PHOTON

Array = NDArray[Any]

TRACKER_ETA = 2.5
"""Coverage of the tracker in |eta|. Charged hadrons beyond it count as neutral hadrons."""
TOWER_CLASSES = (NEUTRAL_HADRON, CHARGED_HADRON, PHOTON, ELECTRON, MUON)
"""The classes that the particles of a tower can have."""


class VisibleParticles(NamedTuple):
    """Visible particles. Units: GeV, radians. `kind` is the class of the target (see `columns.CLASSES`)."""

    pt: Array
    eta: Array
    phi: Array
    energy: Array
    charge: Array
    kind: Array

    def take(self, rows: Any) -> VisibleParticles:
        """Return the particles of the given rows."""
        return VisibleParticles(*(values[rows] for values in self))


def particle_classes(pdg: Array, charge: Array) -> Array:
    """Return the classes of visible particles, from their PDG numbers and charges."""
    kind = np.where(charge == 0, NEUTRAL_HADRON, CHARGED_HADRON).astype(np.int8)
    for number, name in ((22, PHOTON), (11, ELECTRON), (13, MUON)):
        kind[np.abs(pdg) == number] = name
    return kind


def track_targets(particles: VisibleParticles) -> Array:
    """Return the targets (n, 7) of tracks, from the particle of each track."""
    columns = [
        particles.kind,
        particles.charge,
        particles.pt,
        particles.eta,
        np.sin(particles.phi),
        np.cos(particles.phi),
        particles.energy,
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def tower_targets(particles: VisibleParticles, tower: Array, towers: int, *, min_neutral_energy: float = 0.0) -> Array:
    """Return the targets (towers, 7) of towers.

    The momentum of a tower is the sum over its particles, its class is the one whose particles have the largest sum of
    energies, and its charge that of the hardest particle of this class.
    Neutral hadrons below `min_neutral_energy` and towers without particles have the class none and all zeros.

    Args:
        particles: The particles that hit towers.
        tower: The tower index of each particle.
        towers: The number of towers.
        min_neutral_energy: Minimum energy of a neutral hadron, GeV.
    """
    momenta = (
        particles.pt * np.cos(particles.phi),
        particles.pt * np.sin(particles.phi),
        particles.pt * np.sinh(particles.eta),
        particles.energy,
    )
    px, py, pz, energy = (np.bincount(tower, each, minlength=towers) for each in momenta)
    pid, charge = np.full(towers, NONE), np.zeros(towers)
    filled = np.flatnonzero(np.bincount(tower, minlength=towers))
    class_energy = np.stack(
        [np.bincount(tower, particles.energy * (particles.kind == k), towers) for k in TOWER_CLASSES]
    )
    pid[filled] = np.array(TOWER_CLASSES)[class_energy[:, filled].argmax(axis=0)]
    of_class = np.where(particles.kind == pid[tower], particles.energy, -1.0)
    rising = np.argsort(of_class, kind="stable")
    charge[tower[rising]] = particles.charge[rising]
    pt = np.maximum(np.hypot(px, py), 1e-9)
    eta = np.arcsinh(pz / pt)
    pid[(pid == CHARGED_HADRON) & (np.abs(eta) > TRACKER_ETA)] = NEUTRAL_HADRON
    charge[pid == NEUTRAL_HADRON] = 0
    pid[(pid == NEUTRAL_HADRON) & (energy < min_neutral_energy)] = NONE
    targets = np.stack([pid, charge, pt, eta, py / pt, px / pt, energy], axis=1)
    targets[pid == NONE] = 0
    return targets.astype(np.float32)
