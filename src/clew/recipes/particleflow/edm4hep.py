"""Reader of EDM4hep files of the FCC fast simulation: reconstructed particles and their truth.

An element is one of `ReconstructedParticles`. It is either a track (EFlowTrack), whose position at the calorimeter is
that of its last hit, or a cluster, whose energy is either electromagnetic (EFlowPhoton) or hadronic
(EFlowNeutralHadron). The target comes from the `Particle`s that MCRecoAssociations links to the element: the particle
of the largest energy for a track, their sum for a cluster. Units of the file: GeV, mm.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clew import Table, readers
from clew.data.readers import Reader
from clew.recipes.particleflow import reader_base
from clew.recipes.particleflow.columns import ELECTRON, MUON
from clew.recipes.particleflow.targets import Array, VisibleParticles, particle_classes, tower_targets, track_targets

RECONSTRUCTED, MC, LINK = "ReconstructedParticles", "Particle", "MCRecoAssociations"
_RECO_BRANCHES = (
    *(f"{RECONSTRUCTED}.{name}" for name in ("type", "energy", "charge", "momentum.x", "momentum.y", "momentum.z")),
    *(f"{RECONSTRUCTED}.{name}" for name in ("tracks_begin", "tracks_end")),
    f"{RECONSTRUCTED}#1.index",
    "EFlowTrack.trackerHits_end",
    *(f"TrackerHits.position.{axis}" for axis in "xyz"),
)
_TRUTH_BRANCHES = (
    *(f"{MC}.{name}" for name in ("PDG", "charge", "mass", "momentum.x", "momentum.y", "momentum.z")),
    f"{LINK}#0.index",
    f"{LINK}#1.index",
)
PHOTON = 22
"""The `type` of a photon cluster."""


class Edm4hepReader(reader_base.ParticleFlowReader):
    """The reader `edm4hep` and its settings."""

    def file_reader(self) -> Reader:
        columns = (
            {"columns": _RECO_BRANCHES, "optional": _TRUTH_BRANCHES}
            if self.allow_missing_truth
            else {"columns": (*_RECO_BRANCHES, *_TRUTH_BRANCHES)}
        )
        return readers.find("root").model_validate({"tree": "events", "chunk": self.chunk, **columns})

    def build_events(self, branches: Table) -> Table:
        like = branches.ragged(f"{RECONSTRUCTED}.energy")
        particles = _particles(
            branches,
            RECONSTRUCTED,
            branches.ragged(f"{RECONSTRUCTED}.energy").values,
            branches.ragged(f"{RECONSTRUCTED}.charge").values,
        )
        track = (
            branches.ragged(f"{RECONSTRUCTED}.tracks_end").values
            > branches.ragged(f"{RECONSTRUCTED}.tracks_begin").values
        )
        em_fraction = (branches.ragged(f"{RECONSTRUCTED}.type").values == PHOTON).astype(np.float64)
        has_truth = all(name in branches for name in _TRUTH_BRANCHES)
        targets = _make_targets(branches, track) if has_truth else _Truth(np.zeros(len(track)), None)
        flags = (targets.pid == MUON, targets.pid == ELECTRON)
        elements = reader_base.build_elements(
            particles, track, em_fraction, _outer_directions(branches, track, particles), flags
        )
        return reader_base.build_table(like, elements, targets.rows)


class _Truth(NamedTuple):
    pid: Array
    rows: Array | None


def _particles(
    branches: Table, collection: str, energy: Array, charge: Array, pdg: Array | None = None
) -> VisibleParticles:
    px, py, pz = (branches.ragged(f"{collection}.momentum.{axis}").values.astype(np.float64) for axis in "xyz")
    pt = np.maximum(np.hypot(px, py), 1e-9)
    kind = np.zeros(len(pt)) if pdg is None else particle_classes(pdg, charge)
    return VisibleParticles(pt, np.arcsinh(pz / pt), np.arctan2(py, px), energy, charge, kind)


def _outer_directions(branches: Table, track: Array, particles: VisibleParticles) -> tuple[Array, Array]:
    """Return eta and phi of the last hit of each track, as seen from the origin."""
    tracks, hits = branches.ragged("EFlowTrack.trackerHits_end"), branches.ragged("TrackerHits.position.x")
    links = branches.ragged(f"{RECONSTRUCTED}#1.index")
    number = reader_base.global_index(links, tracks)[
        reader_base.global_index(branches.ragged(f"{RECONSTRUCTED}.tracks_begin"), links, track)
    ]
    last = reader_base.global_index(tracks.share(tracks.values.astype(np.int64) - 1), hits)[number]
    x, y, z = (branches.ragged(f"TrackerHits.position.{axis}").values[last] for axis in "xyz")
    eta, phi = particles.eta.copy(), particles.phi.copy()
    eta[track], phi[track] = np.arcsinh(z / np.maximum(np.hypot(x, y), 1e-9)), np.arctan2(y, x)
    return eta, phi


def _make_targets(branches: Table, track: Array) -> _Truth:
    """Return the target of every reconstructed particle."""
    charge = branches.ragged(f"{MC}.charge").values
    energy = _particle_energies(branches)
    like, true = branches.ragged(f"{RECONSTRUCTED}.energy"), branches.ragged(f"{MC}.charge")
    particles = _particles(branches, MC, energy, np.rint(charge), branches.ragged(f"{MC}.PDG").values)
    reco_index, true_index = (
        reader_base.global_index(branches.ragged(f"{LINK}#0.index"), like),
        reader_base.global_index(branches.ragged(f"{LINK}#1.index"), true),
    )
    rows = tower_targets(particles.take(true_index), reco_index, len(like.values))
    order = np.argsort(particles.energy[true_index], kind="stable")
    best = np.full(len(like.values), -1)
    best[reco_index[order]] = true_index[order]
    single = track & (best >= 0)
    rows[single] = track_targets(particles.take(best[single]))
    return _Truth(rows[:, 0], rows)


def _particle_energies(branches: Table) -> Array:
    names = ("mass", *(f"momentum.{axis}" for axis in "xyz"))
    squares = [branches.ragged(f"{MC}.{name}").values.astype(np.float64) ** 2 for name in names]
    return np.asarray(np.sqrt(np.sum(squares, axis=0)))
