"""CMS PFNano: candidates of CMS' own particle flow as elements, generator particles in jets (GenCands) as targets.

A candidate with a charge is a track; the file has no place of it at the calorimeter, so its direction stands there. Any
other is a tower, electromagnetic if CMS took it for a photon. The file does not say whose a candidate is, so that is
found by distance: a charged particle goes to the track of its charge that is nearest in direction and momentum, within
`track_distance` and half its momentum, if it is the nearest to that too; all others but muons add up in the nearest
tower within `tower_distance`. GenCands are of the hard collision and in jets: other candidates, most of all where there
is pile-up, are of class none.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from clew import Table, readers
from clew.data.readers import Reader
from clew.recipes.particleflow import mapped, truth
from clew.recipes.particleflow.columns import ELECTRON, GEN_MET, MUON, TARGET
from clew.recipes.particleflow.truth import Array, Particles

SEEN, TRUE = "PFCands", "GenCands"
_MOMENTUM = ("pt", "eta", "phi", "mass", "charge", "pdgId")
_MET = "GenMET_pt"
ELECTROMAGNETIC = (22, 2)
"""What CMS calls photons, and electromagnetic energy in the forward calorimeter."""
NEUTRINOS = (12, 14, 16)

Distance = Annotated[float, Field(gt=0)]


class PfNano(mapped.Mapped):
    """Settings of the reader `pfnano`."""

    track_distance: Distance = 0.02
    """In eta and phi, from a track to its particle."""
    tower_distance: Distance = 0.05
    """From a tower to its particles."""

    def inner(self) -> Reader:
        seen = tuple(f"{SEEN}_{name}" for name in _MOMENTUM)
        true = (*(f"{TRUE}_{name}" for name in _MOMENTUM), _MET)
        columns = {"columns": seen, "optional": true} if self.blind else {"columns": (*seen, *true)}
        return readers.find("root").model_validate({"tree": "Events", "chunk": self.chunk, **columns})

    def events(self, found: Table) -> Table:
        like = found.ragged(f"{SEEN}_pt")
        own, track = _particles(found, SEEN), found.ragged(f"{SEEN}_charge").values != 0
        em = np.isin(np.abs(found.ragged(f"{SEEN}_pdgId").values), ELECTROMAGNETIC).astype(np.float64)
        targets = self._targets(found, own, track) if f"{TRUE}_pt" in found else None
        pid = np.zeros(len(track)) if targets is None else targets[:, 0]
        made = mapped.elements(own, track, em, (own.eta, own.phi), (pid == MUON, pid == ELECTRON))
        more: dict[str, Any] = {GEN_MET: found.fixed(_MET).astype(np.float32)} if _MET in found else {}
        return mapped.table(like, made, targets, **more)

    def _targets(self, found: Table, own: Particles, track: Array) -> Array:
        """Event by event: matching is among the particles of one."""
        like, true = found.ragged(f"{SEEN}_pt"), found.ragged(f"{TRUE}_pt")
        every, pdg = _particles(found, TRUE), np.abs(found.ragged(f"{TRUE}_pdgId").values)
        rows = np.zeros((len(track), TARGET), dtype=np.float32)
        for event in range(len(found)):
            mine = slice(like.offsets[event], like.offsets[event + 1])
            there = np.arange(true.offsets[event], true.offsets[event + 1])
            there = there[~np.isin(pdg[there], NEUTRINOS)]
            rows[mine] = self._matched(own.take(mine), track[mine], every.take(there))
        return rows

    def _matched(self, seen: Particles, track: Array, true: Particles) -> Array:
        rows = np.zeros((len(track), TARGET), dtype=np.float32)
        tracks, towers = np.flatnonzero(track), np.flatnonzero(~track)
        mine, theirs = pairs(true, seen.take(tracks), self.track_distance)
        rows[tracks[theirs]] = truth.of_tracks(true.take(mine))
        left = np.ones(len(true.pt), dtype=bool)
        left[mine] = False
        left &= true.kind != MUON
        rest = true.take(left)
        if len(towers) and len(rest.pt):
            away = _distance(rest, seen.take(towers))
            nearest, near = away.argmin(axis=1), away.min(axis=1) < self.tower_distance
            rows[towers] = truth.of_towers(rest.take(near), nearest[near], len(towers))
        return rows


def pairs(true: Particles, tracks: Particles, distance: float) -> tuple[Array, Array]:
    """Charged particles and the tracks that are nearest to each other, by number."""
    if not len(true.pt) or not len(tracks.pt):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    off = np.abs(tracks.pt[None] / np.maximum(true.pt[:, None], 1e-9) - 1)
    away = _distance(true, tracks)
    cost = away / distance + off
    cost[(true.charge[:, None] != tracks.charge[None]) | (away > distance) | (off > 0.5)] = np.inf
    best, back = cost.argmin(axis=1), cost.argmin(axis=0)
    mine = np.flatnonzero((back[best] == np.arange(len(best))) & np.isfinite(cost.min(axis=1)))
    return mine, best[mine]


def _distance(one: Particles, other: Particles) -> Array:
    """In eta and phi, of all pairs."""
    turn = np.abs(one.phi[:, None] - other.phi[None])
    return np.asarray(np.hypot(one.eta[:, None] - other.eta[None], np.minimum(turn, 2 * np.pi - turn)))


def _particles(found: Table, of: str) -> Particles:
    pt, eta, phi, mass, charge, pdg = (found.ragged(f"{of}_{name}").values.astype(np.float64) for name in _MOMENTUM)
    return Particles(pt, eta, phi, np.hypot(pt * np.cosh(eta), mass), charge, truth.kinds(pdg, charge))
