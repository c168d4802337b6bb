"""Jets and missing transverse momentum of predicted against true particles."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clew import Table, metrics
from clew.recipes.particleflow.columns import NONE, TARGETS
from clew.recipes.particleflow.curves import Response

if TYPE_CHECKING:
    from clew.recipes.particleflow.metrics import Judging

Floats = NDArray[np.float64]
RATIO = np.linspace(0, 2, 81)
PARTICLES = ("pid", "pt", "eta", "phi", "energy")


def tallies(samples: Table, truth: dict[str, Floats], objects: Table, settings: Judging) -> dict[str, metrics.Metric]:
    """`jet_response` (with fastjet), `jet_efficiency`, `met_response`: histograms whose values are medians."""
    offsets, weights = samples.ragged(TARGETS).offsets, samples.weights
    found = {name: objects.ragged(name).values.astype(np.float64) for name in PARTICLES}
    events = [slice(int(a), int(b)) for a, b in itertools.pairwise(offsets)]
    met = [np.array([missing(each, own) for own in events]) for each in (truth, found)]
    ratio = met[1] / np.maximum(met[0], 1e-6)
    made: dict[str, metrics.Metric] = {
        "met_response": Response.of(ratio, RATIO, axis="predicted / true", what="missing pT", weights=weights)
    }
    if settings.jets and importlib.util.find_spec("fastjet"):
        made |= _jets(truth, found, events, weights, settings)
    return made


def missing(particles: dict[str, Floats], own: slice) -> float:
    """Missing pT of an event, GeV: that of all its particles, the other way."""
    pt, phi = (particles[name][own] * (particles["pid"][own] != NONE) for name in ("pt", "phi"))
    return float(np.hypot((pt * np.cos(phi)).sum(), (pt * np.sin(phi)).sum()))


def cluster(particles: dict[str, Floats], own: slice, radius: float, least: float) -> Floats:
    """(jets, 3): pT, eta, phi of anti-kt jets above a pT, hardest first. Particles are taken as massless."""
    import fastjet

    there = particles["pid"][own] != NONE
    pt, eta, phi = (particles[name][own][there] for name in ("pt", "eta", "phi"))
    pt, eta = np.clip(pt, 1e-6, 1e5), np.clip(eta, -8, 8)
    inputs = [
        fastjet.PseudoJet(*four)
        for four in np.stack([pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta), pt * np.cosh(eta)], 1).tolist()
    ]
    _greet()
    sequence = fastjet.ClusterSequence(inputs, fastjet.JetDefinition(fastjet.antikt_algorithm, radius))
    jets = fastjet.sorted_by_pt(sequence.inclusive_jets(least))
    return np.array([(jet.pt(), jet.eta(), jet.phi()) for jet in jets], dtype=np.float64).reshape(-1, 3)


def _jets(
    truth: dict[str, Floats], found: dict[str, Floats], events: list[slice], weights: Floats, settings: Judging
) -> dict[str, metrics.Metric]:
    ratios: list[Any] = []
    for own in events:
        true = cluster(truth, own, settings.jet_radius, settings.jet_pt)
        said = cluster(found, own, settings.jet_radius, settings.jet_pt / 4)
        ratios.append(matched(true, said, settings.jet_match))
    ratio = np.concatenate([np.zeros(0), *ratios])
    weight = np.repeat(weights, [len(each) for each in ratios])
    there = np.isfinite(ratio)
    return {
        "jet_response": Response.of(
            ratio[there],
            RATIO,
            axis="predicted / true",
            what=f"pT of jets above {settings.jet_pt:g} GeV",
            weights=weight[there],
        ),
        "jet_efficiency": metrics.Ratio.of(there, weight),
    }


def matched(true: Floats, said: Floats, far: float) -> Floats:
    """pT of the nearest predicted jet over that of each true one; NaN where none is near. The hardest choose first."""
    ratio, free = np.full(len(true), np.nan), np.ones(len(said), dtype=bool)
    for place, (pt, eta, phi) in enumerate(true):
        turn = np.abs((said[:, 2] - phi + np.pi) % (2 * np.pi) - np.pi)
        apart = np.where(free, np.hypot(said[:, 1] - eta, turn), np.inf)
        if len(said) and apart.min() < far:
            best = int(apart.argmin())
            ratio[place], free[best] = said[best, 0] / pt, False
    return ratio


@functools.cache
def _greet() -> None:
    """Let fastjet print, past Python and at its first clustering, the banner that nobody needs to see."""
    import fastjet

    sys.stdout.flush()
    kept = os.dup(1)
    with open(os.devnull, "w") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 1)
    try:
        one = [fastjet.PseudoJet(1.0, 0.0, 0.0, 1.0)]
        fastjet.ClusterSequence(one, fastjet.JetDefinition(fastjet.antikt_algorithm, 0.4))
    finally:
        os.dup2(kept, 1)
        os.close(kept)
