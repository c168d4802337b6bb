"""Reader of CMS PFNano: CMS particle-flow candidates as elements, generator particles in jets (GenCands) as targets.

A charged candidate is a track. The file has no position at the calorimeter, so the direction of the track is used
instead. A neutral candidate is a tower, which is electromagnetic if CMS identified a photon.

The file has no links between candidates and generator particles. They are matched by distance (`distance_matching`).
GenCands contain only particles of the hard collision that are in jets. All other candidates, such as those of pile-up,
have the class none.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from clew import Table, readers
from clew.data.readers import Reader
from clew.recipes.particleflow import reader_base
from clew.recipes.particleflow.columns import ELECTRON, GEN_MET, MUON
from clew.recipes.particleflow.distance_matching import (
    DEFAULT_DISTANCES,
    NEUTRINOS,
    EventParticles,
    MatchDistances,
    match_targets,
)
from clew.recipes.particleflow.targets import Array, VisibleParticles, particle_classes

CANDIDATES, GEN_CANDIDATES = "PFCands", "GenCands"
_MOMENTUM = ("pt", "eta", "phi", "mass", "charge", "pdgId")
_MET = "GenMET_pt"
ELECTROMAGNETIC = (22, 2)
"""PDG numbers that CMS uses for photons and for electromagnetic energy in the forward calorimeter."""

Distance = Annotated[float, Field(gt=0)]


class PfNanoReader(reader_base.ParticleFlowReader):
    """The reader `pfnano` and its settings."""

    track_distance: Distance = DEFAULT_DISTANCES.track
    """Maximum distance in eta-phi between a track and its particle."""
    tower_distance: Distance = DEFAULT_DISTANCES.tower
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
        """Return the targets of all candidates."""
        like, true = branches.ragged(f"{CANDIDATES}_pt"), branches.ragged(f"{GEN_CANDIDATES}_pt")
        particles, pdg = _particles(branches, GEN_CANDIDATES), np.abs(branches.ragged(f"{GEN_CANDIDATES}_pdgId").values)
        visible = ~np.isin(pdg, NEUTRINOS)
        distances = MatchDistances(self.track_distance, self.tower_distance)
        return match_targets(
            EventParticles(candidates, like.events),
            track,
            EventParticles(particles, true.events).take(visible),
            distances,
        )


def _particles(branches: Table, collection: str) -> VisibleParticles:
    pt, eta, phi, mass, charge, pdg = (
        branches.ragged(f"{collection}_{name}").values.astype(np.float64) for name in _MOMENTUM
    )
    return VisibleParticles(pt, eta, phi, np.hypot(pt * np.cosh(eta), mass), charge, particle_classes(pdg, charge))
