"""Collisions of pions, kaons and nucleons with argon nuclei.

The fractions of absorption, charge exchange and pion production are rough tables near measurements on nuclei of similar
size. The energy that goes to nucleons is distributed at random, minus 8 MeV of binding energy each. The model imitates
the pattern of a broken nucleus (short heavy tracks, neutral energy, kinks). It does not predict cross-sections.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from clew.recipes.lartpc.generate import liquid_argon
from clew.recipes.lartpc.generate import particles as p
from clew.recipes.lartpc.generate.particles import MASS, Bools, Floats, ParticleStack

BINDING = 8.0
_GRID = (0.0, 50.0, 100.0, 200.0, 300.0, 500.0, 1000.0, 2000.0)
PION_ABSORBED = (0.70, 0.50, 0.40, 0.33, 0.26, 0.16, 0.08, 0.05)
PION_EXCHANGED = (0.05, 0.08, 0.10, 0.13, 0.15, 0.14, 0.10, 0.07)
PION_MAKES_PION = (0.0, 0.0, 0.0, 0.0, 0.05, 0.25, 0.55, 0.75)
KAON_EXCHANGED = 0.2
KAON_MAKES_PION = (0.0, 0.0, 0.0, 0.0, 0.0, 0.05, 0.25, 0.5)
HYPERON_FRACTION = 0.6
"""Fraction of the inelastic collisions of a negative kaon that make a Lambda."""
ELASTIC_TRANSVERSE_MOMENTUM = 60.0
"""Width of the transverse momentum of elastic scattering, MeV: about one over the radius of the nucleus."""
NEUTRON_RATE = liquid_argon.ATOM_DENSITY * 0.5
MUON_CAPTURE_FRACTION = 0.755
"""Fraction of negative muons at rest that are captured, from their mean life in argon of 537 ns."""


class InelasticResult(NamedTuple):
    """The products of inelastic collisions, and which were absorptions or charge exchanges to a neutral pion."""

    products: ParticleStack
    absorbed: Bools
    exchanged: Bools


def scatter_elastic(rng: Generator, stack: ParticleStack) -> ParticleStack:
    """Scatter hadrons elastically, which changes their direction."""
    push = ELASTIC_TRANSVERSE_MOMENTUM * np.sqrt(2 * rng.standard_exponential(len(stack)))
    angle = np.minimum(push / np.maximum(stack.momentum, 1.0), np.pi)
    return stack.make(stack.kind, stack.energy, p.deflect(rng, stack.direction, np.cos(angle)))


def scatter_inelastic(rng: Generator, stack: ParticleStack) -> InelasticResult:
    """Collide charged hadrons inelastically with nuclei."""
    absorbed = np.zeros(len(stack), dtype=bool)
    exchanged, products = absorbed.copy(), []
    pions, protons = stack.of(p.PION_MINUS, p.PION_PLUS), stack.of(p.PROTON)
    draw = rng.random(len(stack))
    absorption, exchange, production = _channel_fractions(stack, pions)
    hyperon = stack.of(p.KAON_MINUS) & (draw < HYPERON_FRACTION)
    absorbed |= pions & (draw < absorption)
    exchanged |= ~protons & ~hyperon & ~absorbed & (draw < absorption + exchange)
    makes_pion = ~protons & ~hyperon & ~absorbed & ~exchanged & (draw < absorption + exchange + production)
    rest = ~absorbed & ~hyperon
    products += [_absorb_pions(rng, stack[absorbed], stack.energy[absorbed] + MASS[p.PION_PLUS])]
    products += [_make_hyperons(rng, stack[hyperon]), _scatter(rng, stack[rest], exchanged[rest], makes_pion[rest])]
    return InelasticResult(p.join(products), absorbed, exchanged & pions)


def _channel_fractions(stack: ParticleStack, pions: Bools) -> tuple[Floats, Floats, Floats]:
    def interpolate(table: tuple[float, ...]) -> Floats:
        return np.interp(stack.energy, _GRID, table)

    kaon_changes = np.where(stack.of(p.KAON_PLUS), KAON_EXCHANGED, 0.0)
    kaon_dies = np.where(stack.of(p.KAON_MINUS), HYPERON_FRACTION, 0.0)
    return (
        np.where(pions, interpolate(PION_ABSORBED), kaon_dies),
        np.where(pions, interpolate(PION_EXCHANGED), kaon_changes),
        np.where(pions, interpolate(PION_MAKES_PION), interpolate(KAON_MAKES_PION)),
    )


def _scatter(rng: Generator, stack: ParticleStack, exchanged: Bools, makes_pion: Bools) -> ParticleStack:
    """Return the scattered hadron (neutral after charge exchange), new pions, and nucleons."""
    leading_energy = stack.energy * rng.uniform(0.3, 0.9, len(stack))
    cost = np.where(makes_pion, MASS[p.PION_PLUS], 0.0)
    available = stack.energy - leading_energy
    pion = np.where(makes_pion, np.maximum(available - cost, 0.0) * rng.uniform(0.2, 0.9, len(stack)), 0.0)
    born = makes_pion & (pion > 1.0)
    nuclear = np.maximum(available - np.where(born, pion + cost, 0.0), 0.0)
    kind = np.where(exchanged, np.where(stack.kind == p.KAON_PLUS, p.KAON_SHORT, p.PION_ZERO), stack.kind)
    unseen = (kind == p.KAON_SHORT) & (rng.random(len(stack)) < 0.5)  # the other half are long-lived neutral kaons
    leading = stack.make(kind, leading_energy, _forward_directions(rng, stack, leading_energy))[~unseen]
    others = rng.choice([p.PION_PLUS, p.PION_MINUS, p.PION_ZERO], len(stack))
    extra = stack.make(others, pion, _forward_directions(rng, stack, pion))[born]
    return p.join([leading, extra, _emit_nucleons(rng, stack, nuclear, np.full(len(stack), 0.5), 1.0)])


def _forward_directions(rng: Generator, stack: ParticleStack, energy: Floats) -> Floats:
    """Draw directions of products: slower products have larger angles."""
    width = np.minimum(250.0 / np.sqrt(np.maximum(energy, 1) * (np.maximum(energy, 1) + 280)), 2.0)
    angle = np.minimum(width * np.sqrt(2 * rng.standard_exponential(len(stack))), np.pi)
    return p.deflect(rng, stack.direction, np.cos(angle))


def _make_hyperons(rng: Generator, stack: ParticleStack) -> ParticleStack:
    """A negative kaon and a nucleon make a Lambda and a pion. Sigmas are not simulated: they look similar."""
    available = stack.energy + MASS[p.KAON_PLUS] + MASS[p.NEUTRON] - MASS[p.LAMBDA] - MASS[p.PION_PLUS] - 20.0
    share = rng.uniform(0.55, 0.95, len(stack))
    pion = rng.choice([p.PION_MINUS, p.PION_ZERO, p.PION_PLUS], len(stack), p=[0.5, 0.3, 0.2])
    away = np.where(
        (stack.energy < 5)[:, None], p.isotropic_directions(rng, len(stack)), _forward_directions(rng, stack, available)
    )
    lambdas = stack.make(p.LAMBDA, 0.6 * (1 - share) * available, _forward_directions(rng, stack, available))
    nucleons = _emit_nucleons(rng, stack, 0.4 * (1 - share) * available, np.full(len(stack), 0.5), 0.5)
    return p.join([stack.make(pion, share * available, away), lambdas, nucleons])


def _absorb_pions(rng: Generator, stack: ParticleStack, available: Floats) -> ParticleStack:
    """Distribute the energy of absorbed pions to nucleons."""
    proton_fraction = np.where(stack.kind == p.PION_PLUS, 0.65, 0.35)
    return _emit_nucleons(rng, stack, available, proton_fraction, 2.5)


def _emit_nucleons(
    rng: Generator, stack: ParticleStack, available: Floats, proton_fraction: Floats, mean_extra: float
) -> ParticleStack:
    """Distribute energy to 1 + Poisson(`mean_extra`) nucleons. A tenth of the energy stays with the nucleus."""
    count = 1 + rng.poisson(mean_extra, len(stack))
    rows = np.repeat(np.arange(len(stack)), count)
    part = rng.standard_exponential(len(rows))
    share = part / np.bincount(rows, part, minlength=len(stack))[rows]
    energy = 0.9 * available[rows] * share - BINDING
    kind = np.where(rng.random(len(rows)) < proton_fraction[rows], p.PROTON, p.NEUTRON)
    forward = np.minimum(stack.momentum[rows] / 800.0, 1.0)
    away = p.isotropic_directions(rng, len(rows)) + forward[:, None] * stack.direction[rows]
    away /= np.maximum(np.linalg.norm(away, axis=1, keepdims=True), 1e-9)
    nucleons = stack.make(kind, np.maximum(energy, 0.1), away, rows)
    return nucleons[energy > 1.0]


def capture_hadrons(rng: Generator, stack: ParticleStack) -> ParticleStack:
    """Capture negative pions and kaons at rest by nuclei."""
    pions, kaons = stack[stack.of(p.PION_MINUS)], stack[stack.of(p.KAON_MINUS)]
    return p.join([_absorb_pions(rng, pions, np.full(len(pions), MASS[p.PION_PLUS])), _make_hyperons(rng, kaons)])


def capture_muons(rng: Generator, stack: ParticleStack) -> ParticleStack:
    """Capture negative muons: a neutron of a few MeV, and often a photon of the nucleus."""
    neutrons = stack.make(p.NEUTRON, 1 + rng.exponential(6.0, len(stack)), p.isotropic_directions(rng, len(stack)))
    photons = stack.make(p.GAMMA, 0.5 + rng.exponential(1.5, len(stack)), p.isotropic_directions(rng, len(stack)))
    return p.join([neutrons, photons[rng.random(len(stack)) < 0.6]])


def interact_neutrons(rng: Generator, stack: ParticleStack) -> ParticleStack:
    """Interact neutrons after their free path: fast ones knock out nucleons, slow ones make a photon or nothing."""
    free = rng.standard_exponential(len(stack)) / NEUTRON_RATE
    place = stack.place + free[:, None] * stack.direction
    moved = ParticleStack(stack.event, stack.kind, stack.energy, place, stack.direction)
    fast = stack.energy > 25.0
    transfer = stack.energy * rng.uniform(0.2, 1.0, len(stack))
    continues = (stack.energy - transfer > 25.0) & fast
    after = moved.make(p.NEUTRON, stack.energy - transfer, p.isotropic_directions(rng, len(stack)))[continues]
    radiates = ~fast & (rng.random(len(stack)) < 0.4)
    photons = moved.make(p.GAMMA, np.full(len(stack), 1.46), p.isotropic_directions(rng, len(stack)))[radiates]
    hit = moved[fast]
    return p.join([after, photons, _emit_nucleons(rng, hit, transfer[fast], np.full(len(hit), 0.6), 0.5)])
