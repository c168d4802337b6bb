"""Jets of one event at a time, from one object of fastjet per particle: what clustering of whole batches must equal."""

from __future__ import annotations

import itertools

import fastjet
import numpy as np
from numpy.typing import NDArray

from clew.recipes.particleflow.columns import NONE

Floats = NDArray[np.float64]


def cluster_one_by_one(
    particles: dict[str, Floats], offsets: NDArray[np.int64], radius: float, min_pt: float
) -> list[Floats]:
    """pT, eta, phi (jets, 3) of the anti-kt jets of every event, hardest first."""
    definition = fastjet.JetDefinition(fastjet.antikt_algorithm, radius)
    events = []
    for first, last in itertools.pairwise(offsets.tolist()):
        present = particles["pid"][first:last] != NONE
        pt, eta, phi = (particles[name][first:last][present] for name in ("pt", "eta", "phi"))
        pt, eta = np.clip(pt, 1e-6, 1e5), np.clip(eta, -8, 8)
        four = np.stack([pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta), pt * np.cosh(eta)], 1)
        sequence = fastjet.ClusterSequence([fastjet.PseudoJet(*each) for each in four.tolist()], definition)
        jets = fastjet.sorted_by_pt(sequence.inclusive_jets(min_pt))
        events.append(np.array([(jet.pt(), jet.eta(), jet.phi()) for jet in jets], dtype=np.float64).reshape(-1, 3))
    return events
