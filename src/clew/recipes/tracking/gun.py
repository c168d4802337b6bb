"""Particles for the simulation of ACTS events: muons, or a stand-in for a ttbar event. NumPy only.

PyPI's pyacts has no Pythia, so `ttbar-like` is a particle gun with hand-set numbers of roughly the right size: many
soft particles and six jets from one vertex. No generator stands behind it: no decays, no displaced vertices, no
balance of momentum. It is meant to be as crowded as a ttbar event, not to be one. Units: mm, GeV.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.random import Generator
from pydantic import model_validator

from clew import Section
from clew.recipes.tracking.geometry import Floats, Ints

BEAM_WIDTH, BEAM_LENGTH = 0.0125, 50.0  # spread of vertices across and along the beam, about that of the LHC
MUON_PT = (0.5, 50.0)
MUON_ETA = 2.5

SOFT_ETA = 3.0
SOFT_PT_FLOOR, SOFT_PT_SCALE, SOFT_PT_POWER = 0.1, 1.4, 8.0  # mean 0.66 GeV, a power-law tail
JETS, JET_SHARE = 6, 0.45  # jets in an event, share of the particles that are in them
JET_PT_FLOOR, JET_PT_MEAN = 20.0, 40.0
JET_ETA_SPREAD = 1.2
CHARGED_SHARE = 0.6  # of a jet's pT
FRAGMENTS = 0.5  # Dirichlet parameter of the shares of a jet's pT: below 1, few particles carry most
JET_KICK, JET_RADIUS = 0.4, 0.4  # GeV across the jet's axis; largest distance from it in eta and phi
SPECIES, SPECIES_SHARE = (211, 321, 2212), (0.80, 0.13, 0.07)  # pions, kaons, protons
CENTRAL = 1.645  # standard deviations that hold 90% of a normal distribution


class Particles(NamedTuple):
    """Charged particles of one event: PDG ids (n,), where they start in mm (n, 3), momenta in GeV (n, 3)."""

    pdg: Ints
    position: Floats
    momentum: Floats


def muons(rng: Generator, multiplicity: tuple[int, int]) -> Particles:
    """As many muons as a uniform draw of `multiplicity` says, each from a vertex of its own.

    pT is log-uniform in MUON_PT, eta and phi are uniform; positive and negative are equally likely.
    """
    size = int(rng.integers(multiplicity[0], multiplicity[1] + 1))
    pt = np.exp(rng.uniform(np.log(MUON_PT[0]), np.log(MUON_PT[1]), size))
    momentum = _momentum(pt, rng.uniform(-MUON_ETA, MUON_ETA, size), rng.uniform(-np.pi, np.pi, size))
    return Particles(13 * rng.choice([-1, 1], size), _vertices(rng, size), momentum)


def ttbar_like(rng: Generator, multiplicity: tuple[int, int]) -> Particles:
    """Soft hadrons and six jets from one vertex; 90% of events have a number of particles within `multiplicity`."""
    low, high = np.log(multiplicity)
    size = max(1, round(np.exp(rng.normal((low + high) / 2, (high - low) / (2 * CENTRAL)))))
    jet = np.sort(rng.integers(0, JETS, rng.binomial(size, JET_SHARE)))
    soft = _soft(rng, size - len(jet))
    momentum = np.concatenate([soft, _jets(rng, jet)])
    pdg = rng.choice(SPECIES, size, p=SPECIES_SHARE) * rng.choice([-1, 1], size)
    return Particles(pdg, np.repeat(_vertices(rng, 1), size, axis=0), momentum)


Kind = Callable[[Generator, tuple[int, int]], Particles]
KINDS: dict[str, tuple[Kind, tuple[int, int]]] = {"muons": (muons, (50, 200)), "ttbar-like": (ttbar_like, (70, 230))}
"""The kinds of events by name: what makes them, and the usual multiplicity."""


class Gun(Section):
    """What ACTS events are made of (`clew data generate --detector acts`); other detectors have their own particles."""

    particles: Literal["muons", "ttbar-like"] = "muons"
    multiplicity: tuple[int, int] | None = None
    """Fewest and most charged particles an event: all muon events, 90% of ttbar-like ones. Default: (50, 200) muons,
    (70, 230) ttbar-like."""

    @model_validator(mode="after")
    def _range(self) -> Gun:
        low, high = self.bounds
        if not 1 <= low <= high:
            raise ValueError(f"multiplicity must be a range (low, high) with 1 <= low <= high, got {(low, high)}")
        return self

    @property
    def bounds(self) -> tuple[int, int]:
        """The multiplicity, given or usual."""
        return self.multiplicity or KINDS[self.particles][1]

    @property
    def label(self) -> str:
        """For the names of files: kind and multiplicity."""
        return f"{self.particles}-{self.bounds[0]}to{self.bounds[1]}"

    def fire(self, rng: Generator) -> Particles:
        """The particles of one event."""
        return KINDS[self.particles][0](rng, self.bounds)


MUONS = Gun()


def _vertices(rng: Generator, size: int) -> Floats:
    return rng.normal(0, (BEAM_WIDTH, BEAM_WIDTH, BEAM_LENGTH), (size, 3))


def _momentum(pt: Floats, eta: Floats, phi: Floats) -> Floats:
    return np.stack([pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta)], axis=1)


def _soft(rng: Generator, size: int) -> Floats:
    # a ratio of gamma variables falls as pT / (1 + pT/scale)**power, the usual fit to minimum-bias spectra
    ratio = rng.gamma(2.0, 1.0, size) / rng.gamma(SOFT_PT_POWER - 2, 1.0, size)
    pt = SOFT_PT_FLOOR + SOFT_PT_SCALE * ratio
    return _momentum(pt, rng.uniform(-SOFT_ETA, SOFT_ETA, size), rng.uniform(-np.pi, np.pi, size))


def _jets(rng: Generator, jet: Ints) -> Floats:
    """Particles of jets, given the jet each belongs to: shares of its pT, near its axis, the hard ones nearest."""
    jet_pt = JET_PT_FLOOR + rng.exponential(JET_PT_MEAN, JETS)
    axis = np.stack([np.clip(rng.normal(0, JET_ETA_SPREAD, JETS), -2.5, 2.5), rng.uniform(-np.pi, np.pi, JETS)])
    part = rng.gamma(FRAGMENTS, 1.0, len(jet)) + 1e-3
    share = part / np.bincount(jet, weights=part, minlength=JETS)[jet]
    pt = SOFT_PT_FLOOR + CHARGED_SHARE * jet_pt[jet] * share
    away = np.minimum(rng.exponential(JET_KICK, len(jet)) / pt, JET_RADIUS)
    turn = rng.uniform(0, 2 * np.pi, len(jet))
    eta, phi = axis[:, jet] + away * np.stack([np.cos(turn), np.sin(turn)])
    return _momentum(pt, eta, phi)
