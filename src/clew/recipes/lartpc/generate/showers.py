"""Electromagnetic showers, particle by particle: photons convert or scatter, electrons radiate.

The lengths, widths and fluctuations of showers follow from these processes; nothing is parametrised. There are no
photonuclear reactions, no Landau-Pomeranchuk-Migdal effect, and no Rayleigh scattering.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from clew.recipes.lartpc.generate import liquid_argon
from clew.recipes.lartpc.generate import particles as p
from clew.recipes.lartpc.generate.particles import ELECTRON_MASS, Bools, Floats, ParticleStack

ABSORPTION_ENERGY = 0.1
"""Photons below this energy (MeV) are absorbed at their position."""


def interact_photons(rng: Generator, stack: ParticleStack) -> tuple[ParticleStack, Bools]:
    """Interact photons after their free path. Returns the products, and which photons converted."""
    pair, scatter = liquid_argon.photon_rates(stack.energy)
    free = np.where(stack.energy > ABSORPTION_ENERGY, rng.standard_exponential(len(stack)) / (pair + scatter), 0.0)
    moved = ParticleStack(
        stack.event, stack.kind, stack.energy, stack.place + free[:, None] * stack.direction, stack.direction
    )
    converts = (rng.random(len(stack)) * (pair + scatter) < pair) & (stack.energy > 2.1 * ELECTRON_MASS)
    absorbed = stack.energy <= ABSORPTION_ENERGY
    soft = moved[absorbed]
    products = [_produce_pairs(rng, moved[converts]), _scatter_compton(rng, moved[~converts & ~absorbed])]
    return p.join([*products, soft.make(p.ELECTRON, soft.energy, soft.direction)]), converts


def _produce_pairs(rng: Generator, stack: ParticleStack) -> ParticleStack:
    kinetic = stack.energy - 2 * ELECTRON_MASS
    share = rng.random(len(stack))
    stacks = []
    for kind, kind_energy in ((p.ELECTRON, share * kinetic), (p.POSITRON, (1 - share) * kinetic)):
        stacks.append(stack.make(kind, kind_energy, _narrow_directions(rng, stack.direction, kind_energy)))
    return p.join(stacks)


def _narrow_directions(rng: Generator, direction: Floats, kinetic: Floats) -> Floats:
    """Draw directions at angles of about mass over energy."""
    angle = np.minimum(rng.exponential(ELECTRON_MASS / (kinetic + ELECTRON_MASS)), np.pi / 2)
    return p.deflect(rng, direction, np.cos(angle))


def _scatter_compton(rng: Generator, stack: ParticleStack) -> ParticleStack:
    """Return the photons and electrons of Compton scatters."""
    a = stack.energy / ELECTRON_MASS
    share = _draw_klein_nishina(rng, a)
    cosine = np.clip(1 - (1 / share - 1) / a, -1, 1)
    away = p.deflect(rng, stack.direction, cosine)
    left = (stack.energy[:, None] * stack.direction) - (share * stack.energy)[:, None] * away
    struck = left / np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-12)
    return p.join(
        [stack.make(p.GAMMA, share * stack.energy, away), stack.make(p.ELECTRON, (1 - share) * stack.energy, struck)]
    )


def _draw_klein_nishina(rng: Generator, a: Floats) -> Floats:
    """Draw the fraction of its energy that a photon of energy `a` (in electron masses) keeps."""
    min_fraction = 1 / (1 + 2 * a)
    log, square = -np.log(min_fraction), (1 - min_fraction**2) / 2
    fraction, todo = np.ones(len(a)), np.arange(len(a))
    while len(todo):
        first = rng.random(len(todo)) * (log[todo] + square[todo]) < log[todo]
        draw = rng.random(len(todo))
        share = np.where(
            first, min_fraction[todo] ** (1 - draw), np.sqrt(min_fraction[todo] ** 2 + 2 * square[todo] * draw)
        )
        turn = (1 / share - 1) / a[todo]
        sine2 = np.maximum(turn * (2 - turn), 0)
        fraction[todo] = share
        todo = todo[rng.random(len(todo)) > 1 - share * sine2 / (1 + share**2)]
    return fraction


def radiate(rng: Generator, stack: ParticleStack) -> ParticleStack:
    """Radiate one photon per electron. Returns the electrons and the photons."""
    total = stack.energy + ELECTRON_MASS
    min_fraction = np.minimum(liquid_argon.MIN_RADIATED_ENERGY / total, 0.999)
    share, todo = np.zeros(len(stack)), np.arange(len(stack))
    while len(todo):
        share[todo] = min_fraction[todo] ** (1 - rng.random(len(todo)))
        y = share[todo]
        todo = todo[rng.random(len(todo)) > 1 - y + 0.75 * y**2]
    photon = np.minimum(share * total, 0.999 * stack.energy)
    after = stack.make(stack.kind, stack.energy - photon, stack.direction)
    return p.join([after, stack.make(p.GAMMA, photon, _narrow_directions(rng, stack.direction, stack.energy))])


def annihilate(rng: Generator, stack: ParticleStack) -> ParticleStack:
    """Annihilate positrons at rest: two photons back to back."""
    away = p.isotropic_directions(rng, len(stack))
    energy = np.full(len(stack), ELECTRON_MASS)
    return p.join([stack.make(p.GAMMA, energy, away), stack.make(p.GAMMA, energy, -away)])
