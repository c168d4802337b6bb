"""Particles for the simulation of ACTS events: muons, or a replacement for a ttbar event. NumPy only.

The pyacts of PyPI has no Pythia, so `ttbar-like` is a particle gun with numbers set by hand: soft particles and six
jets from one vertex. It is no event generator: it has no decays, no displaced vertices, no momentum balance. Its events
are
as crowded as ttbar events, and have nothing else of them. Units: mm, GeV.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.random import Generator
from pydantic import Field, model_validator

from clew import Section
from clew.recipes.tracking.geometry import Floats, Ints

BEAM_WIDTH, BEAM_LENGTH = 0.0125, 50.0  # spread of vertices across and along the beam, similar to the LHC
MUON_PT = (0.5, 50.0)
MUON_ETA = 2.5

SOFT_ETA = 3.0
SOFT_PT_FLOOR, SOFT_PT_SCALE, SOFT_PT_POWER = 0.1, 1.4, 8.0  # mean 0.66 GeV, a power-law tail
JETS, JET_SHARE = 6, 0.45  # jets per event, share of the particles that are in jets
JET_PT_FLOOR, JET_PT_MEAN = 20.0, 40.0
JET_ETA_SPREAD = 1.2
CHARGED_SHARE = 0.6  # of a jet's pT
FRAGMENTS = 0.5  # Dirichlet parameter of the shares of a jet's pT: below 1, a small part of the particles dominates
JET_KICK, JET_RADIUS = 0.4, 0.4  # GeV across the jet's axis; largest distance from it in eta and phi
SPECIES, SPECIES_SHARE = (211, 321, 2212), (0.80, 0.13, 0.07)  # pions, kaons, protons
CENTRAL = 1.645  # a normal distribution has 90% within this number of standard deviations

PILEUP_MEAN, PILEUP_SHAPE = 33.0, 1.5  # charged particles of a pile-up vertex: negative binomial, 5.5 per unit of eta


class GunParticles(NamedTuple):
    """Charged particles of one event: PDG ids (n,), start positions in mm (n, 3), momenta in GeV (n, 3)."""

    pdg: Ints
    position: Floats
    momentum: Floats


def muons(rng: Generator, multiplicity: tuple[int, int]) -> GunParticles:
    """Muons, each from its own vertex. Their number is uniform in `multiplicity` (lowest and highest).

    pT is log-uniform in MUON_PT, eta and phi are uniform. Both charges are equally likely.
    """
    size = int(rng.integers(multiplicity[0], multiplicity[1] + 1))
    pt = np.exp(rng.uniform(np.log(MUON_PT[0]), np.log(MUON_PT[1]), size))
    momentum = _momentum(pt, rng.uniform(-MUON_ETA, MUON_ETA, size), rng.uniform(-np.pi, np.pi, size))
    return GunParticles(13 * rng.choice([-1, 1], size), _vertices(rng, size), momentum)


def ttbar_like(rng: Generator, multiplicity: tuple[int, int]) -> GunParticles:
    """Soft hadrons and six jets from one vertex. In 90% of the events the number of particles is in `multiplicity`."""
    low, high = np.log(multiplicity)
    size = max(1, round(np.exp(rng.normal((low + high) / 2, (high - low) / (2 * CENTRAL)))))
    jet = np.sort(rng.integers(0, JETS, rng.binomial(size, JET_SHARE)))
    soft = _soft(rng, size - len(jet))
    momentum = np.concatenate([soft, jet_momenta(rng, jet)])
    pdg = rng.choice(SPECIES, size, p=SPECIES_SHARE) * rng.choice([-1, 1], size)
    return GunParticles(pdg, np.repeat(_vertices(rng, 1), size, axis=0), momentum)


Kind = Callable[[Generator, tuple[int, int]], GunParticles]
KINDS: dict[str, tuple[Kind, tuple[int, int]]] = {"muons": (muons, (50, 200)), "ttbar-like": (ttbar_like, (70, 230))}
"""The kinds of events by name: the function that generates them, and the default multiplicity."""


def pileup_particles(rng: Generator, mean: float) -> GunParticles:
    """Soft hadrons of a Poisson number of vertices. Numbers of particles per vertex are negative binomial."""
    vertices = int(rng.poisson(mean))
    sizes = rng.negative_binomial(PILEUP_SHAPE, PILEUP_SHAPE / (PILEUP_SHAPE + PILEUP_MEAN), vertices)
    size = int(sizes.sum())
    pdg = rng.choice(SPECIES, size, p=SPECIES_SHARE) * rng.choice([-1, 1], size)
    return GunParticles(pdg, np.repeat(_vertices(rng, vertices), sizes, axis=0), _soft(rng, size))


class ParticleGun(Section):
    """The particles of ACTS events (`clew data generate --detector acts`). Other detectors have their own particles."""

    particles: Literal["muons", "ttbar-like"] = "muons"
    """Single muons, or charged particles in jets as in ttbar events."""
    multiplicity: tuple[int, int] | None = None
    """Lowest and highest number of charged particles per event, for all muon events and for 90% of the ttbar-like
    events. Default: (50, 200) for muons, (70, 230) for ttbar-like."""

    pileup: Annotated[float, Field(ge=0)] = 0.0
    """Mean number of other vertices in the event (Poisson), each with 33 soft charged particles on average, up to
    abs(eta) = 3. An event of 100 vertices has about 50,000 hits in the whole detector."""

    lost_hits: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of hits that are removed at random, as in a detector with dead or inefficient modules."""

    @model_validator(mode="after")
    def _range(self) -> ParticleGun:
        low, high = self.bounds
        if not 1 <= low <= high:
            raise ValueError(f"multiplicity must be a range (low, high) with 1 <= low <= high, got {(low, high)}")
        return self

    @property
    def bounds(self) -> tuple[int, int]:
        """The multiplicity, or the default of the kind if it is not set."""
        return self.multiplicity or KINDS[self.particles][1]

    @property
    def label(self) -> str:
        """Kind, multiplicity, pile-up and losses, for file names."""
        pileup = f"-pileup{self.pileup:g}" if self.pileup else ""
        lost = f"-lost{self.lost_hits:g}" if self.lost_hits else ""
        return f"{self.particles}-{self.bounds[0]}to{self.bounds[1]}{pileup}{lost}"

    def generate(self, rng: Generator) -> GunParticles:
        """The particles of one event: those of the kind first, then those of pile-up."""
        hard = KINDS[self.particles][0](rng, self.bounds)
        if not self.pileup:
            return hard
        both = zip(hard, pileup_particles(rng, self.pileup), strict=True)
        return GunParticles(*(np.concatenate(parts) for parts in both))


MUON_GUN = ParticleGun()


def _vertices(rng: Generator, size: int) -> Floats:
    return rng.normal(0, (BEAM_WIDTH, BEAM_WIDTH, BEAM_LENGTH), (size, 3))


def _momentum(pt: Floats, eta: Floats, phi: Floats) -> Floats:
    return np.stack([pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta)], axis=1)


def _soft(rng: Generator, size: int) -> Floats:
    # a ratio of gamma variables falls as pT / (1 + pT/scale)**power, the standard fit to minimum-bias spectra
    ratio = rng.gamma(2.0, 1.0, size) / rng.gamma(SOFT_PT_POWER - 2, 1.0, size)
    pt = SOFT_PT_FLOOR + SOFT_PT_SCALE * ratio
    return _momentum(pt, rng.uniform(-SOFT_ETA, SOFT_ETA, size), rng.uniform(-np.pi, np.pi, size))


def jet_momenta(rng: Generator, jet: Ints) -> Floats:
    """Momenta of particles in jets, given the jet of each. Harder particles are closer to the axis of the jet."""
    jet_pt = JET_PT_FLOOR + rng.exponential(JET_PT_MEAN, JETS)
    axis = np.stack([np.clip(rng.normal(0, JET_ETA_SPREAD, JETS), -2.5, 2.5), rng.uniform(-np.pi, np.pi, JETS)])
    part = rng.gamma(FRAGMENTS, 1.0, len(jet)) + 1e-3
    share = part / np.bincount(jet, weights=part, minlength=JETS)[jet]
    pt = SOFT_PT_FLOOR + CHARGED_SHARE * jet_pt[jet] * share
    away = np.minimum(rng.exponential(JET_KICK, len(jet)) / pt, JET_RADIUS)
    turn = rng.uniform(0, 2 * np.pi, len(jet))
    eta, phi = axis[:, jet] + away * np.stack([np.cos(turn), np.sin(turn)])
    return _momentum(pt, eta, phi)
