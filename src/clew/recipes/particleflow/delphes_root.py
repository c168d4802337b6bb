"""Reader of the ROOT trees that Delphes writes: `Track`, `Tower`, `EFlow*` and `Particle` of the tree `Delphes`.

Elements are towers (`Tower`), then tracks (`Track`), as in the public data set. A file without `Tower` has
`EFlowPhoton` and `EFlowNeutralHadron` instead, one without `Track` has `EFlowTrack`.

Targets follow the rules of the public set. The particle of a track is the one that `Track.Particle` refers to. A tower
has the particles of `Tower.Particles` that have no track. References are unique numbers (`Particle.fUniqueID`). An
element whose particles were removed from the file has the class none. A file without references is matched by
distance (`distance_matching`). Units: GeV, radians.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from clew import Ragged, Table, readers
from clew.data.readers import FilePiece, Reader
from clew.errors import DataError
from clew.recipes.particleflow import reader_base
from clew.recipes.particleflow.calorimeter import MIN_NEUTRAL_ENERGY
from clew.recipes.particleflow.columns import ELECTRON, GEN_MET, MUON, TARGET
from clew.recipes.particleflow.distance_matching import NEUTRINOS, EventParticles, match_targets
from clew.recipes.particleflow.targets import Array, VisibleParticles, particle_classes, tower_targets, track_targets

TREE = "Delphes"
TRACKS = (("Track",), ("EFlowTrack",))
TOWERS = (("Tower",), ("EFlowPhoton", "EFlowNeutralHadron"), ("EFlowTower",))
"""Collections of elements, in the order of preference."""
_TRACK_MEMBERS = ("PT", "Eta", "Phi", "Charge")
_OUTER = ("EtaOuter", "PhiOuter")
_TOWER_MEMBERS = ("Eta", "Phi", "E", "Eem", "Ehad")
_TRUE_MEMBERS = ("fUniqueID", "PID", "Status", "Charge", "E", "PT", "Eta", "Phi")
_MET = "GenMissingET.MET"
STABLE = 1
"""The status of a particle that does not decay before the detector."""
MAX_ETA = 10.0
"""Delphes writes 999.9 for the eta of a particle along the beam. Its hyperbolic sine is not finite."""
NO_TRUTH = "without truth the events can only be predicted: clew predict RUN --input FILE"


def _branches(collections: tuple[tuple[str, ...], ...], members: tuple[str, ...]) -> list[str]:
    return [f"{collection}.{name}" for group in collections for collection in group for name in members]


_ALL_BRANCHES = (
    *_branches(TRACKS, (*_TRACK_MEMBERS, *_OUTER)),
    *_branches(TOWERS, _TOWER_MEMBERS),
    *(f"Particle.{name}" for name in _TRUE_MEMBERS),
    _MET,
)


class References(NamedTuple):
    """Pairs of an element and the unique number of a particle."""

    element: Array
    unique_id: Array


class _Elements(NamedTuple):
    """Towers, then tracks, of all events, in the order of the file."""

    momenta: VisibleParticles
    event: Array
    track: Array
    em_fraction: Array
    outer: tuple[Array, Array]


class DelphesRootReader(reader_base.ParticleFlowReader):
    """The reader `delphes_root` and its settings."""

    def file_reader(self) -> Reader:
        return readers.find("root").model_validate({"tree": TREE, "chunk": self.chunk, "optional": _ALL_BRANCHES})

    def pieces(self, location: str) -> list[FilePiece]:
        self._check(self._names(location))
        return super().pieces(location)

    def file_notes(self, location: str) -> list[str]:
        names = self._names(location)
        tracks, towers = _collections(names)
        notes = [f"no {kind}" for kind, branches in (("tracks", tracks), ("towers", towers)) if not branches]
        if any(f"{name}.{_OUTER[0]}" not in names for name in tracks):
            notes.append(f"no {tracks[0]}.EtaOuter; the outer position of a track is the direction of its momentum")
        if _has_truth(names) and not _reference_branches(names):
            notes.append("no references (Track.Particle, Tower.Particles); true particles are matched by distance")
        return notes

    def load(self, location: str, piece: FilePiece) -> Table:
        columns = self.file_reader().load(location, piece)
        with _open_tree(location) as tree:
            references = _read_references(tree, piece, columns)
        events = self._build(columns, references)
        return events.join({"event": np.arange(piece.start, piece.start + len(columns))})

    def build_events(self, columns: Table) -> Table:
        return self._build(columns, None)

    def _build(self, columns: Table, references: References | None) -> Table:
        self._check(set(columns))
        elements = _read_elements(columns)
        rows = _make_targets(columns, elements, references) if _has_truth(columns) else None
        order = np.argsort(elements.event, kind="stable")
        pid = np.zeros(len(order)) if rows is None else rows[:, 0]
        matrix = reader_base.build_elements(
            elements.momenta, elements.track, elements.em_fraction, elements.outer, (pid == MUON, pid == ELECTRON)
        )
        like = Ragged.from_lengths(order, np.bincount(elements.event, minlength=len(columns)))
        fixed: dict[str, Any] = {}
        if _MET in columns and (columns.ragged(_MET).lengths == 1).all():
            fixed[GEN_MET] = columns.ragged(_MET).values.astype(np.float32)
        return reader_base.build_table(like, matrix[order], None if rows is None else rows[order], **fixed)

    def _names(self, location: str) -> set[str]:
        with _open_tree(location) as tree:
            return {name for name in (*_ALL_BRANCHES, *_REFERENCES) if name in tree}

    def _check(self, names: set[str]) -> None:
        if not any(_collections(names)):
            raise DataError(f"the tree '{TREE}' has none of Track, Tower, EFlowTrack, EFlowPhoton, EFlowNeutralHadron")
        if not _has_truth(names) and not self.allow_missing_truth:
            lacking = next(f"Particle.{name}" for name in _TRUE_MEMBERS if f"Particle.{name}" not in names)
            raise DataError(f"no branch '{lacking}' of true particles; {NO_TRUTH}")


_REFERENCES = (
    *(f"{name}.Particle" for group in TRACKS for name in group),
    *(f"{name}.Particles" for group in TOWERS for name in group),
)


def _open_tree(location: str) -> Any:
    return readers.find("root").model_validate({"tree": TREE}).open_tree(location)  # type: ignore[attr-defined]


def _has_truth(names: Any) -> bool:
    return all(f"Particle.{name}" in names for name in _TRUE_MEMBERS)


def _collections(names: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the collections of tracks and of towers; none if the file lacks them."""

    def first(groups: tuple[tuple[str, ...], ...], members: tuple[str, ...]) -> tuple[str, ...]:
        complete = [[c for c in group if all(f"{c}.{name}" in names for name in members)] for group in groups]
        return next((tuple(group) for group in complete if group), ())

    return first(TRACKS, _TRACK_MEMBERS), first(TOWERS, _TOWER_MEMBERS)


def _reference_branches(names: Any) -> list[str]:
    """Return the branches of references of the collections in use; none unless all of them have one."""
    tracks, towers = _collections(names)
    branches = [*(f"{name}.Particles" for name in towers), *(f"{name}.Particle" for name in tracks)]
    return branches if all(branch in names for branch in branches) else []


def _read_elements(columns: Table) -> _Elements:
    tracks, towers = _collections(columns)
    parts = [_read_towers(columns, name) for name in towers] + [_read_tracks(columns, name) for name in tracks]
    momenta = VisibleParticles(*(np.concatenate(each) for each in zip(*(part.momenta for part in parts), strict=True)))
    event, track, em_fraction = (np.concatenate([part[place] for part in parts]) for place in (1, 2, 3))
    outer = (np.concatenate([part.outer[0] for part in parts]), np.concatenate([part.outer[1] for part in parts]))
    return _Elements(momenta, event, track, em_fraction, outer)


def _read_tracks(columns: Table, collection: str) -> _Elements:
    pt, eta, phi, charge = _values(columns, collection, _TRACK_MEMBERS)
    outer = _values(columns, collection, _OUTER) if f"{collection}.{_OUTER[0]}" in columns else [eta, phi]
    zero = np.zeros(len(pt))
    momenta = VisibleParticles(pt, eta, phi, pt * np.cosh(eta), charge, zero)
    event = columns.ragged(f"{collection}.PT").events
    return _Elements(momenta, event, np.ones(len(pt), dtype=bool), zero, (outer[0], outer[1]))


def _read_towers(columns: Table, collection: str) -> _Elements:
    eta, phi, energy, em, hadronic = _values(columns, collection, _TOWER_MEMBERS)
    zero = np.zeros(len(eta))
    momenta = VisibleParticles(energy / np.cosh(eta), eta, phi, energy, zero, zero)
    event = columns.ragged(f"{collection}.E").events
    em_fraction = em / np.maximum(em + hadronic, 1e-9)
    return _Elements(momenta, event, np.zeros(len(eta), dtype=bool), em_fraction, (eta, phi))


def _values(columns: Table, collection: str, names: tuple[str, ...]) -> list[Array]:
    values = [columns.ragged(f"{collection}.{name}").values.astype(np.float64) for name in names]
    return [
        np.clip(each, -MAX_ETA, MAX_ETA) if "Eta" in name else each for each, name in zip(values, names, strict=True)
    ]


def _make_targets(columns: Table, elements: _Elements, references: References | None) -> Array:
    charge, energy, pt, eta, phi, pdg = _values(columns, "Particle", ("Charge", "E", "PT", "Eta", "Phi", "PID"))
    particles = VisibleParticles(pt, eta, phi, energy, charge, particle_classes(pdg, charge))
    event = columns.ragged("Particle.PID").events
    if references is not None:
        true_index = _resolve(columns, elements.event[references.element], references.unique_id)
        return _referred_targets(particles, elements.track, references.element, true_index)
    stable = columns.ragged("Particle.Status").values == STABLE
    visible = np.flatnonzero(stable & ~np.isin(np.abs(pdg), NEUTRINOS))
    order = np.argsort(elements.event, kind="stable")
    rows = np.zeros((len(order), TARGET), dtype=np.float32)
    sorted_elements = EventParticles(elements.momenta, elements.event).take(order)
    rows[order] = match_targets(sorted_elements, elements.track[order], EventParticles(particles, event).take(visible))
    return rows


def _referred_targets(particles: VisibleParticles, track: Array, element: Array, true_index: Array) -> Array:
    """Return the targets of elements, from the particles that they refer to; -1 is a particle that was removed."""
    element, true_index = element[true_index >= 0], true_index[true_index >= 0]
    of_track = track[element]
    tracked = np.zeros(len(particles.pt), dtype=bool)
    tracked[true_index[of_track]] = True
    deposits = ~of_track & ~tracked[true_index] & (particles.kind[true_index] != MUON)
    rows = tower_targets(
        particles.take(true_index[deposits]), element[deposits], len(track), min_neutral_energy=MIN_NEUTRAL_ENERGY
    )
    rows[element[of_track]] = track_targets(particles.take(true_index[of_track]))
    return rows


def _resolve(columns: Table, event: Array, unique_id: Array) -> Array:
    """Return the index over all particles of each unique number of an event; -1 if there is no such particle."""
    numbers = columns.ragged("Particle.fUniqueID")
    keys = (numbers.events.astype(np.int64) << 32) + numbers.values.astype(np.int64)
    order = np.argsort(keys, kind="stable")
    wanted = (event.astype(np.int64) << 32) + unique_id.astype(np.int64)
    place = np.minimum(np.searchsorted(keys, wanted, sorter=order), max(len(keys) - 1, 0))
    index = order[place] if len(keys) else np.zeros(len(wanted), dtype=np.int64)
    return np.where(keys[index] == wanted, index, -1) if len(keys) else np.full(len(wanted), -1)


def _read_references(tree: Any, piece: FilePiece, columns: Table) -> References | None:
    """Return the references of all elements, in the order of `_read_elements`; None if the file has none."""
    names = {name for name in (*_ALL_BRANCHES, *_REFERENCES) if name in tree}
    branches = _reference_branches(names)
    if not branches or not _has_truth(columns):
        return None
    return reference_pairs(
        [tree[branch].array(entry_start=piece.start, entry_stop=piece.stop, library="ak") for branch in branches]
    )


def reference_pairs(arrays: Sequence[Any]) -> References:
    """Return the references of the elements of several collections. Elements are counted over all of them.

    Args:
        arrays: Arrays of uproot, lists per event: of `TRef`, of `TRefArray`, or of plain numbers.
    """
    import awkward as ak

    element, unique_id, first = [], [], 0
    for array in arrays:
        field = next((name for name in ("ref", "refs") if name in array.fields), "")
        numbers = ak.flatten(array[field] if field else array, axis=1)
        counts = ak.to_numpy(ak.num(numbers)) if numbers.ndim > 1 else np.ones(len(numbers), dtype=np.int64)
        element.append(np.repeat(np.arange(first, first + len(counts)), counts))
        unique_id.append(ak.to_numpy(ak.flatten(numbers, axis=None)).astype(np.int64))
        first += len(counts)
    return References(np.concatenate(element), np.concatenate(unique_id))
