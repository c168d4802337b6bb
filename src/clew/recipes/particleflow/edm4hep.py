"""Reader of EDM4hep files: reconstructed particles and their truth. Units of the file: GeV, mm.

An element is one of the reconstructed particles. It is either a track, or a cluster, whose energy is either
electromagnetic (of type or PDG number 22) or hadronic.

The position of a track at the calorimeter is the first of these that the file has: its last hit (`TrackerHits`); its
state at the calorimeter or at the last hit (track states); the direction of its momentum.

The target comes from the true particles that are linked to the element: the particle of the largest energy for a track,
their sum for a cluster. Without links, stable true particles are matched by distance (`distance_matching`).

Productions name collections differently, and podio changed the names of relations (`_tracks` was `#1`). All known names
are tried (`edm4hep_branches`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clew import Ragged, Table, readers
from clew.data.readers import FilePiece, Reader
from clew.errors import DataError
from clew.recipes.particleflow import reader_base
from clew.recipes.particleflow.columns import ELECTRON, MUON
from clew.recipes.particleflow.distance_matching import NEUTRINOS, EventParticles, match_targets
from clew.recipes.particleflow.edm4hep_branches import ALL_BRANCHES, Edm4hepBranches
from clew.recipes.particleflow.targets import Array, VisibleParticles, particle_classes, tower_targets, track_targets

TREE = "events"
PHOTON = 22
"""The type, or PDG number, of a photon cluster."""
AT_LAST_HIT = 3
"""The number of a track state at the last hit. The next one, 4, is at the calorimeter."""
STABLE = 1
"""The status of a particle that does not decay before the detector."""
NO_TRUTH = "without truth the events can only be predicted: clew predict RUN --input FILE"


class Edm4hepReader(reader_base.ParticleFlowReader):
    """The reader `edm4hep` and its settings."""

    def file_reader(self) -> Reader:
        return readers.find("root").model_validate({"tree": TREE, "chunk": self.chunk, "optional": ALL_BRANCHES})

    def pieces(self, location: str) -> list[FilePiece]:
        self._check(self._branches(location))
        return super().pieces(location)

    def file_notes(self, location: str) -> list[str]:
        names = self._branches(location)
        notes = []
        if not names.has_hits:
            state = "its state at the calorimeter, else " if names.has_states else ""
            other = f"{state}the direction of its momentum"
            notes.append(f"no hits of tracks (TrackerHits); the outer position of a track is {other}")
        if names.has_truth and not names.has_links:
            notes.append("no links to true particles (MCRecoAssociations); true particles are matched by distance")
        return notes

    def build_events(self, branches: Table) -> Table:
        names = Edm4hepBranches.of(branches)
        self._check(names)
        like = branches.ragged(names.reconstructed("energy"))
        charge = branches.ragged(names.reconstructed("charge")).values
        particles = _particles(branches, names.collection, like.values, charge)
        track = _is_track(branches, names, charge)
        kind = branches.ragged(names.kind).values if names.kind else np.zeros(len(track))
        em_fraction = (kind == PHOTON).astype(np.float64)
        rows = _make_targets(branches, names, EventParticles(particles, like.events), track)
        pid = np.zeros(len(track)) if rows is None else rows[:, 0]
        elements = reader_base.build_elements(
            particles,
            track,
            em_fraction,
            _outer_directions(branches, names, track, particles),
            (pid == MUON, pid == ELECTRON),
        )
        return reader_base.build_table(like, elements, rows)

    def _branches(self, location: str) -> Edm4hepBranches:
        with readers.find("root").model_validate({"tree": TREE}).open_tree(location) as tree:  # type: ignore[attr-defined]
            return Edm4hepBranches.of({name for name in ALL_BRANCHES if name in tree})

    def _check(self, names: Edm4hepBranches) -> None:
        if names.missing:
            raise DataError(f"no branch {names.missing}, which every reconstructed particle needs")
        if not names.has_truth and not self.allow_missing_truth:
            raise DataError(f"no true particles (Particle or MCParticles); {NO_TRUTH}")


def _particles(
    branches: Table, collection: str, energy: Array, charge: Array, pdg: Array | None = None
) -> VisibleParticles:
    px, py, pz = (branches.ragged(f"{collection}.momentum.{axis}").values.astype(np.float64) for axis in "xyz")
    pt = np.maximum(np.hypot(px, py), 1e-9)
    kind = np.zeros(len(pt)) if pdg is None else particle_classes(pdg, charge)
    return VisibleParticles(pt, np.arcsinh(pz / pt), np.arctan2(py, px), energy, charge, kind)


def _is_track(branches: Table, names: Edm4hepBranches, charge: Array) -> Array:
    """Return which particles have a track. A file without relations to tracks has one for every charged particle."""
    if not names.track_links:
        return np.asarray(charge != 0)
    begin, end = (branches.ragged(names.reconstructed(f"tracks_{side}")).values for side in ("begin", "end"))
    return np.asarray(end > begin)


class _Points(NamedTuple):
    """Positions of tracks in mm, and which tracks have one."""

    x: Array
    y: Array
    z: Array
    exists: Array


def _outer_directions(
    branches: Table, names: Edm4hepBranches, track: Array, particles: VisibleParticles
) -> tuple[Array, Array]:
    """Return eta and phi of each track at the calorimeter, as seen from the origin."""
    eta, phi = particles.eta.copy(), particles.phi.copy()
    if not names.track_links or not (names.has_hits or names.has_states):
        return eta, phi
    links, size = branches.ragged(names.track_links), branches.ragged(names.track_size)
    begin = branches.ragged(names.reconstructed("tracks_begin"))
    number = reader_base.global_index(links, size)[reader_base.global_index(begin, links, track)]
    points = _last_hits(branches, names) if names.has_hits else _outer_states(branches, names)
    usable = points.exists[number]
    rows, number = np.flatnonzero(track)[usable], number[usable]
    x, y, z = (each[number] for each in points[:3])
    eta[rows], phi[rows] = np.arcsinh(z / np.maximum(np.hypot(x, y), 1e-9)), np.arctan2(y, x)
    return eta, phi


def _last_hits(branches: Table, names: Edm4hepBranches) -> _Points:
    tracks, hits = branches.ragged(names.tracks("trackerHits_end")), branches.ragged("TrackerHits.position.x")
    last = reader_base.global_index(tracks.share(tracks.values.astype(np.int64) - 1), hits)
    x, y, z = (branches.ragged(f"TrackerHits.position.{axis}").values[last] for axis in "xyz")
    return _Points(x, y, z, np.ones(len(last), dtype=bool))


def _outer_states(branches: Table, names: Edm4hepBranches) -> _Points:
    """Return the reference points of the outermost states. A track whose states are all at the origin has none."""
    location = branches.ragged(names.states("location"))
    begin, end = (branches.ragged(names.tracks(f"trackStates_{side}")) for side in ("begin", "end"))
    first = begin.values.astype(np.int64) + location.offsets[begin.events]
    count = end.values.astype(np.int64) - begin.values.astype(np.int64)
    state_track = np.repeat(np.arange(len(count)), count)
    state = np.arange(len(state_track)) + np.repeat(first - np.append(0, np.cumsum(count)[:-1]), count)
    outer = location.values[state] >= AT_LAST_HIT
    state, state_track = state[outer], state_track[outer]
    order = np.argsort(location.values[state], kind="stable")
    best = np.full(len(count), -1)
    best[state_track[order]] = state[order]
    x, y, z = (branches.ragged(names.states(f"referencePoint.{axis}")).values[best] for axis in "xyz")
    return _Points(x, y, z, best >= 0)


def _make_targets(branches: Table, names: Edm4hepBranches, elements: EventParticles, track: Array) -> Array | None:
    """Return the target of every reconstructed particle; None without truth."""
    if not names.has_truth:
        return None
    like, true = branches.ragged(names.reconstructed("energy")), branches.ragged(names.truth("charge"))
    pdg = branches.ragged(names.truth("PDG")).values
    energy = _particle_energies(branches, names)
    particles = _particles(branches, names.truth_collection, energy, np.rint(true.values), pdg)
    if not names.has_links:
        stable = branches.ragged(names.truth("generatorStatus")).values == STABLE
        visible = stable & ~np.isin(np.abs(pdg), NEUTRINOS)
        return match_targets(elements, track, EventParticles(particles, true.events).take(visible))
    reco_link, true_link = names.links
    return _linked_targets(
        particles,
        reader_base.global_index(branches.ragged(reco_link), like),
        reader_base.global_index(branches.ragged(true_link), true),
        track,
    )


def _linked_targets(particles: VisibleParticles, reco_index: Array, true_index: Array, track: Array) -> Array:
    rows = tower_targets(particles.take(true_index), reco_index, len(track))
    order = np.argsort(particles.energy[true_index], kind="stable")
    best = np.full(len(track), -1)
    best[reco_index[order]] = true_index[order]
    single = track & (best >= 0)
    rows[single] = track_targets(particles.take(best[single]))
    return rows


def _particle_energies(branches: Table, names: Edm4hepBranches) -> Array:
    columns: list[Ragged] = [
        branches.ragged(names.truth(name)) for name in ("mass", "momentum.x", "momentum.y", "momentum.z")
    ]
    return np.asarray(np.sqrt(np.sum([column.values.astype(np.float64) ** 2 for column in columns], axis=0)))
