"""EDM4hep files of fast simulation for FCC: reconstructed particles, each of a track or a cluster, and their truth.

An element is one of `ReconstructedParticles`: a track (EFlowTrack) with its momentum, its last hit being its place at
the calorimeter; or a cluster, all of whose energy is electromagnetic (EFlowPhoton) or hadronic (EFlowNeutralHadron).
Truth are the `Particle`s that MCRecoAssociations joins to it: of a track the one with the most energy, of a cluster
their sum. Units of the file: GeV, mm.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clew import Table, readers
from clew.data.readers import Reader
from clew.recipes.particleflow import mapped, truth
from clew.recipes.particleflow.columns import ELECTRON, MUON
from clew.recipes.particleflow.truth import Array, Particles

RECO, MC, LINK = "ReconstructedParticles", "Particle", "MCRecoAssociations"
_SEEN = (
    *(f"{RECO}.{name}" for name in ("type", "energy", "charge", "momentum.x", "momentum.y", "momentum.z")),
    *(f"{RECO}.{name}" for name in ("tracks_begin", "tracks_end")),
    f"{RECO}#1.index",
    "EFlowTrack.trackerHits_end",
    *(f"TrackerHits.position.{axis}" for axis in "xyz"),
)
_TRUE = (
    *(f"{MC}.{name}" for name in ("PDG", "charge", "mass", "momentum.x", "momentum.y", "momentum.z")),
    f"{LINK}#0.index",
    f"{LINK}#1.index",
)
PHOTON = 22
"""The `type` of a cluster of a photon."""


class Edm4hep(mapped.Mapped):
    """Settings of the reader `edm4hep`."""

    def inner(self) -> Reader:
        columns = {"columns": _SEEN, "optional": _TRUE} if self.blind else {"columns": (*_SEEN, *_TRUE)}
        return readers.find("root").model_validate({"tree": "events", "chunk": self.chunk, **columns})

    def events(self, found: Table) -> Table:
        like = found.ragged(f"{RECO}.energy")
        own = _particles(found, RECO, found.ragged(f"{RECO}.energy").values, found.ragged(f"{RECO}.charge").values)
        track = found.ragged(f"{RECO}.tracks_end").values > found.ragged(f"{RECO}.tracks_begin").values
        em = (found.ragged(f"{RECO}.type").values == PHOTON).astype(np.float64)
        known = all(name in found for name in _TRUE)
        targets = _targets(found, track) if known else _Truth(np.zeros(len(track)), None)
        flags = (targets.pid == MUON, targets.pid == ELECTRON)
        made = mapped.elements(own, track, em, _outer(found, track, own), flags)
        return mapped.table(like, made, targets.rows)


class _Truth(NamedTuple):
    pid: Array
    rows: Array | None


def _particles(found: Table, of: str, energy: Array, charge: Array, pdg: Array | None = None) -> Particles:
    px, py, pz = (found.ragged(f"{of}.momentum.{axis}").values.astype(np.float64) for axis in "xyz")
    pt = np.maximum(np.hypot(px, py), 1e-9)
    kind = np.zeros(len(pt)) if pdg is None else truth.kinds(pdg, charge)
    return Particles(pt, np.arcsinh(pz / pt), np.arctan2(py, px), energy, charge, kind)


def _outer(found: Table, track: Array, own: Particles) -> tuple[Array, Array]:
    """Eta and phi of each track's last hit, as seen from the middle."""
    tracks, hits = found.ragged("EFlowTrack.trackerHits_end"), found.ragged("TrackerHits.position.x")
    links = found.ragged(f"{RECO}#1.index")
    number = mapped.counted(links, tracks)[mapped.counted(found.ragged(f"{RECO}.tracks_begin"), links, track)]
    last = mapped.counted(tracks.share(tracks.values.astype(np.int64) - 1), hits)[number]
    x, y, z = (found.ragged(f"TrackerHits.position.{axis}").values[last] for axis in "xyz")
    eta, phi = own.eta.copy(), own.phi.copy()
    eta[track], phi[track] = np.arcsinh(z / np.maximum(np.hypot(x, y), 1e-9)), np.arctan2(y, x)
    return eta, phi


def _targets(found: Table, track: Array) -> _Truth:
    """The target of every reconstructed particle."""
    charge = found.ragged(f"{MC}.charge").values
    energy = _energy(found)
    like, true = found.ragged(f"{RECO}.energy"), found.ragged(f"{MC}.charge")
    every = _particles(found, MC, energy, np.rint(charge), found.ragged(f"{MC}.PDG").values)
    of, to = (
        mapped.counted(found.ragged(f"{LINK}#0.index"), like),
        mapped.counted(found.ragged(f"{LINK}#1.index"), true),
    )
    rows = truth.of_towers(every.take(to), of, len(like.values))
    order = np.argsort(every.energy[to], kind="stable")
    best = np.full(len(like.values), -1)
    best[of[order]] = to[order]
    single = track & (best >= 0)
    rows[single] = truth.of_tracks(every.take(best[single]))
    return _Truth(rows[:, 0], rows)


def _energy(found: Table) -> Array:
    names = ("mass", *(f"momentum.{axis}" for axis in "xyz"))
    squares = [found.ragged(f"{MC}.{name}").values.astype(np.float64) ** 2 for name in names]
    return np.asarray(np.sqrt(np.sum(squares, axis=0)))
