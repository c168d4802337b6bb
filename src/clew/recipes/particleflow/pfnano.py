"""Reader of CMS PFNano: CMS particle-flow candidates as elements, generator particles in jets (GenCands) as targets.

A charged candidate is a track. The file has no position at the calorimeter, so the direction of the track is used
instead. A neutral candidate is a tower, which is electromagnetic if CMS identified a photon.

The file has no links between candidates and generator particles. They are matched by distance. A charged particle is
matched to a track of the same charge if each is the nearest of the other in direction and momentum, within
`track_distance` and half the momentum of the particle. All other particles except muons are added to the nearest tower
within `tower_distance`. GenCands contain only particles of the hard collision that are in jets. All other candidates,
such as those of pile-up, have the class none.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from clew import Table, readers
from clew.data.readers import Reader
from clew.recipes.particleflow import reader_base
from clew.recipes.particleflow.columns import ELECTRON, GEN_MET, MUON, TARGET
from clew.recipes.particleflow.targets import Array, VisibleParticles, particle_classes, tower_targets, track_targets

CANDIDATES, GEN_CANDIDATES = "PFCands", "GenCands"
_MOMENTUM = ("pt", "eta", "phi", "mass", "charge", "pdgId")
_MET = "GenMET_pt"
ELECTROMAGNETIC = (22, 2)
"""PDG numbers that CMS uses for photons and for electromagnetic energy in the forward calorimeter."""
NEUTRINOS = (12, 14, 16)

Distance = Annotated[float, Field(gt=0)]


class PfNanoReader(reader_base.ParticleFlowReader):
    """The reader `pfnano` and its settings."""

    track_distance: Distance = 0.02
    """Maximum distance in eta-phi between a track and its particle."""
    tower_distance: Distance = 0.05
    """Maximum distance in eta-phi between a tower and its particles."""

    def file_reader(self) -> Reader:
        candidates = tuple(f"{CANDIDATES}_{name}" for name in _MOMENTUM)
        true = (*(f"{GEN_CANDIDATES}_{name}" for name in _MOMENTUM), _MET)
        columns = (
            {"columns": candidates, "optional": true} if self.allow_missing_truth else {"columns": (*candidates, *true)}
        )
        return readers.find("root").model_validate({"tree": "Events", "chunk": self.chunk, **columns})

    def build_events(self, branches: Table) -> Table:
        like = branches.ragged(f"{CANDIDATES}_pt")
        candidates, track = _particles(branches, CANDIDATES), branches.ragged(f"{CANDIDATES}_charge").values != 0
        em_fraction = np.isin(np.abs(branches.ragged(f"{CANDIDATES}_pdgId").values), ELECTROMAGNETIC).astype(np.float64)
        targets = self._all_targets(branches, candidates, track) if f"{GEN_CANDIDATES}_pt" in branches else None
        pid = np.zeros(len(track)) if targets is None else targets[:, 0]
        elements = reader_base.build_elements(
            candidates, track, em_fraction, (candidates.eta, candidates.phi), (pid == MUON, pid == ELECTRON)
        )
        fixed: dict[str, Any] = {GEN_MET: branches.fixed(_MET).astype(np.float32)} if _MET in branches else {}
        return reader_base.build_table(like, elements, targets, **fixed)

    def _all_targets(self, branches: Table, candidates: VisibleParticles, track: Array) -> Array:
        """Return the targets of all candidates. Particles are matched event by event."""
        like, true = branches.ragged(f"{CANDIDATES}_pt"), branches.ragged(f"{GEN_CANDIDATES}_pt")
        particles, pdg = _particles(branches, GEN_CANDIDATES), np.abs(branches.ragged(f"{GEN_CANDIDATES}_pdgId").values)
        rows = np.zeros((len(track), TARGET), dtype=np.float32)
        for event in range(len(branches)):
            event_candidates = slice(like.offsets[event], like.offsets[event + 1])
            visible = np.arange(true.offsets[event], true.offsets[event + 1])
            visible = visible[~np.isin(pdg[visible], NEUTRINOS)]
            rows[event_candidates] = self._event_targets(
                candidates.take(event_candidates), track[event_candidates], particles.take(visible)
            )
        return rows

    def _event_targets(self, candidates: VisibleParticles, track: Array, particles: VisibleParticles) -> Array:
        rows = np.zeros((len(track), TARGET), dtype=np.float32)
        tracks, towers = np.flatnonzero(track), np.flatnonzero(~track)
        matched_particles, matched_tracks = match_tracks(particles, candidates.take(tracks), self.track_distance)
        rows[tracks[matched_tracks]] = track_targets(particles.take(matched_particles))
        unmatched = np.ones(len(particles.pt), dtype=bool)
        unmatched[matched_particles] = False
        unmatched &= particles.kind != MUON
        rest = particles.take(unmatched)
        if len(towers) and len(rest.pt):
            distance = _distance(rest, candidates.take(towers))
            nearest, near = distance.argmin(axis=1), distance.min(axis=1) < self.tower_distance
            rows[towers] = tower_targets(rest.take(near), nearest[near], len(towers))
        return rows


def match_tracks(particles: VisibleParticles, tracks: VisibleParticles, max_distance: float) -> tuple[Array, Array]:
    """Return the indices of charged particles and of their tracks, for pairs that are nearest to each other."""
    if not len(particles.pt) or not len(tracks.pt):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    momentum_error = np.abs(tracks.pt[None] / np.maximum(particles.pt[:, None], 1e-9) - 1)
    separation = _distance(particles, tracks)
    cost = separation / max_distance + momentum_error
    cost[(particles.charge[:, None] != tracks.charge[None]) | (separation > max_distance) | (momentum_error > 0.5)] = (
        np.inf
    )
    nearest_track, nearest_particle = cost.argmin(axis=1), cost.argmin(axis=0)
    matched = np.flatnonzero(
        (nearest_particle[nearest_track] == np.arange(len(nearest_track))) & np.isfinite(cost.min(axis=1))
    )
    return matched, nearest_track[matched]


def _distance(one: VisibleParticles, other: VisibleParticles) -> Array:
    """Return the distance in eta-phi of all pairs."""
    delta_phi = np.abs(one.phi[:, None] - other.phi[None])
    return np.asarray(np.hypot(one.eta[:, None] - other.eta[None], np.minimum(delta_phi, 2 * np.pi - delta_phi)))


def _particles(branches: Table, collection: str) -> VisibleParticles:
    pt, eta, phi, mass, charge, pdg = (
        branches.ragged(f"{collection}_{name}").values.astype(np.float64) for name in _MOMENTUM
    )
    return VisibleParticles(pt, eta, phi, np.hypot(pt * np.cosh(eta), mass), charge, particle_classes(pdg, charge))
