"""The branches of EDM4hep files, in the names of several productions and of two generations of podio."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

RECONSTRUCTED = ("ReconstructedParticles", "PandoraPFOs", "MergedRecoParticles")
TRACKS = ("EFlowTrack", "SiTracks_Refitted", "SiTracks", "Tracks")
TRUTH = ("Particle", "MCParticles", "MCParticle")
_MEMBERS = ("energy", "charge", "momentum.x", "momentum.y", "momentum.z")
_TRUE_MEMBERS = ("PDG", "charge", "mass", "momentum.x", "momentum.y", "momentum.z", "generatorStatus")
_RANGES = ("trackerHits_end", "trackStates_begin", "trackStates_end")
_HITS = tuple(f"TrackerHits.position.{axis}" for axis in "xyz")
_STATE_MEMBERS = ("location", "referencePoint.x", "referencePoint.y", "referencePoint.z")
LINKS = (
    ("MCRecoAssociations#0.index", "MCRecoAssociations#1.index"),
    ("_MCRecoAssociations_rec.index", "_MCRecoAssociations_sim.index"),
    ("_RecoMCLink_from.index", "_RecoMCLink_to.index"),
    ("_RecoMCTruthLink_from.index", "_RecoMCTruthLink_to.index"),
    ("_RecoMCTruthLink_rec.index", "_RecoMCTruthLink_sim.index"),
)
"""Names of the indices of reconstructed and of true particles in the links between them."""


def _track_links(collection: str) -> tuple[str, str]:
    """The indices of tracks that reconstructed particles refer to, as old and new versions of podio write them."""
    return f"{collection}#1.index", f"_{collection}_tracks.index"


def _state_prefixes(tracks: str) -> tuple[str, str]:
    return f"{tracks}_1", f"_{tracks}_trackStates"


def _all_branches() -> Iterable[str]:
    for collection in RECONSTRUCTED:
        yield from (f"{collection}.{name}" for name in (*_MEMBERS, "type", "PDG", "tracks_begin", "tracks_end"))
        yield from _track_links(collection)
    for tracks in TRACKS:
        yield from (f"{tracks}.{name}" for name in _RANGES)
        yield from (f"{prefix}.{name}" for prefix in _state_prefixes(tracks) for name in _STATE_MEMBERS)
    yield from _HITS
    yield from (f"{collection}.{name}" for collection in TRUTH for name in _TRUE_MEMBERS)
    yield from (name for pair in LINKS for name in pair)


ALL_BRANCHES = tuple(_all_branches())


@dataclass(frozen=True)
class Edm4hepBranches:
    """The names that one file uses. A collection that it lacks has an empty name.

    Args:
        present: The names of `ALL_BRANCHES` that the file has.
        collection: The reconstructed particles.
        track_collection: Their tracks.
        truth_collection: The true particles.
    """

    present: Collection[str]
    collection: str
    track_collection: str
    truth_collection: str

    @classmethod
    def of(cls, present: Iterable[str]) -> Edm4hepBranches:
        """Choose the first known collection of each kind that is complete; of the reconstructed particles, the first
        that exists at all."""
        names = set(present)
        truth = [c for c in TRUTH if all(f"{c}.{name}" in names for name in _TRUE_MEMBERS)]
        tracks = [c for c in TRACKS if any(f"{c}.{name}" in names for name in _RANGES)]
        particles = [c for c in RECONSTRUCTED if any(name.startswith(f"{c}.") for name in names)]
        return cls(names, *((branches or [""])[0] for branches in (particles, tracks, truth)))

    def reconstructed(self, name: str) -> str:
        """Return the branch of a member of the reconstructed particles."""
        return f"{self.collection or RECONSTRUCTED[0]}.{name}"

    def tracks(self, name: str) -> str:
        """Return the branch of a member of the tracks."""
        return f"{self.track_collection}.{name}"

    def truth(self, name: str) -> str:
        """Return the branch of a member of the true particles."""
        return f"{self.truth_collection}.{name}"

    def states(self, name: str) -> str:
        """Return the branch of a member of the track states."""
        names = [f"{prefix}.{name}" for prefix in _state_prefixes(self.track_collection)]
        return next((each for each in names if each in self.present), names[0])

    @property
    def missing(self) -> str:
        """The first branch that every file needs and this one lacks; empty if there is none."""
        return next((name for name in map(self.reconstructed, _MEMBERS) if name not in self.present), "")

    @property
    def kind(self) -> str:
        """The branch of the type of a reconstructed particle; empty if there is none."""
        names = (self.reconstructed(name) for name in ("type", "PDG"))
        return next((name for name in names if name in self.present), "")

    @property
    def track_links(self) -> str:
        """The branch of the indices of tracks; empty if particles do not refer to tracks."""
        ranges = all(self.reconstructed(f"tracks_{side}") in self.present for side in ("begin", "end"))
        names = (name for name in _track_links(self.collection) if name in self.present)
        return next(names, "") if ranges and self.track_collection else ""

    @property
    def track_size(self) -> str:
        """A branch with one entry per track."""
        return next(name for name in map(self.tracks, _RANGES) if name in self.present)

    @property
    def links(self) -> tuple[str, str]:
        """The branches of the links to true particles; empty names if there are none."""
        return next((pair for pair in LINKS if all(name in self.present for name in pair)), ("", ""))

    @property
    def has_hits(self) -> bool:
        """Whether the hits of tracks are known."""
        return self.tracks("trackerHits_end") in self.present and all(name in self.present for name in _HITS)

    @property
    def has_states(self) -> bool:
        """Whether the states of tracks are known."""
        ranges = map(self.tracks, _RANGES[1:])
        return all(name in self.present for name in (*ranges, *map(self.states, _STATE_MEMBERS)))

    @property
    def has_truth(self) -> bool:
        """Whether there are true particles."""
        return bool(self.truth_collection)

    @property
    def has_links(self) -> bool:
        """Whether true particles are linked to reconstructed ones."""
        return bool(self.links[0])
