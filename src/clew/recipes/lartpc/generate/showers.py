"""Electromagnetic cascades, particle by particle: photons convert or scatter, electrons radiate.

Showers' lengths, widths and fluctuations follow from these; nothing is parametrised. No photonuclear reactions, no
Landau-Pomeranchuk-Migdal effect, no Rayleigh scattering.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from clew.recipes.lartpc.generate import argon
from clew.recipes.lartpc.generate import particles as p
from clew.recipes.lartpc.generate.particles import ELECTRON_MASS, Bools, Floats, Stack

ABSORBED = 0.1
"""MeV: below this a photon is absorbed where it is."""


def photons(rng: Generator, stack: Stack) -> tuple[Stack, Bools]:
    """What photons become at the end of their free path, and which of them converted."""
    pair, scatter = argon.photon_rates(stack.energy)
    free = np.where(stack.energy > ABSORBED, rng.standard_exponential(len(stack)) / (pair + scatter), 0.0)
    there = Stack(stack.event, stack.kind, stack.energy, stack.place + free[:, None] * stack.direction, stack.direction)
    converts = (rng.random(len(stack)) * (pair + scatter) < pair) & (stack.energy > 2.1 * ELECTRON_MASS)
    absorbed = stack.energy <= ABSORBED
    soft = there[absorbed]
    made = [_pairs(rng, there[converts]), _scattered(rng, there[~converts & ~absorbed])]
    return p.join([*made, soft.make(p.ELECTRON, soft.energy, soft.direction)]), converts


def _pairs(rng: Generator, stack: Stack) -> Stack:
    kinetic = stack.energy - 2 * ELECTRON_MASS
    share = rng.random(len(stack))
    made = []
    for kind, own in ((p.ELECTRON, share * kinetic), (p.POSITRON, (1 - share) * kinetic)):
        made.append(stack.make(kind, own, _narrow(rng, stack.direction, own)))
    return p.join(made)


def _narrow(rng: Generator, direction: Floats, kinetic: Floats) -> Floats:
    """Directions at angles of about mass over energy."""
    angle = np.minimum(rng.exponential(ELECTRON_MASS / (kinetic + ELECTRON_MASS)), np.pi / 2)
    return p.turned(rng, direction, np.cos(angle))


def _scattered(rng: Generator, stack: Stack) -> Stack:
    """The photon and the electron of Compton scatters."""
    a = stack.energy / ELECTRON_MASS
    share = _klein_nishina(rng, a)
    cosine = np.clip(1 - (1 / share - 1) / a, -1, 1)
    away = p.turned(rng, stack.direction, cosine)
    left = (stack.energy[:, None] * stack.direction) - (share * stack.energy)[:, None] * away
    struck = left / np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-12)
    return p.join(
        [stack.make(p.GAMMA, share * stack.energy, away), stack.make(p.ELECTRON, (1 - share) * stack.energy, struck)]
    )


def _klein_nishina(rng: Generator, a: Floats) -> Floats:
    """The share of its energy that a photon of `a` electron masses keeps."""
    least = 1 / (1 + 2 * a)
    log, square = -np.log(least), (1 - least**2) / 2
    found, todo = np.ones(len(a)), np.arange(len(a))
    while len(todo):
        first = rng.random(len(todo)) * (log[todo] + square[todo]) < log[todo]
        draw = rng.random(len(todo))
        share = np.where(first, least[todo] ** (1 - draw), np.sqrt(least[todo] ** 2 + 2 * square[todo] * draw))
        turn = (1 / share - 1) / a[todo]
        sine2 = np.maximum(turn * (2 - turn), 0)
        found[todo] = share
        todo = todo[rng.random(len(todo)) > 1 - share * sine2 / (1 + share**2)]
    return found


def radiate(rng: Generator, stack: Stack) -> Stack:
    """Electrons that radiate a photon: both, after it."""
    total = stack.energy + ELECTRON_MASS
    least = np.minimum(argon.SOFTEST_GAMMA / total, 0.999)
    share, todo = np.zeros(len(stack)), np.arange(len(stack))
    while len(todo):
        share[todo] = least[todo] ** (1 - rng.random(len(todo)))
        y = share[todo]
        todo = todo[rng.random(len(todo)) > 1 - y + 0.75 * y**2]
    photon = np.minimum(share * total, 0.999 * stack.energy)
    after = stack.make(stack.kind, stack.energy - photon, stack.direction)
    return p.join([after, stack.make(p.GAMMA, photon, _narrow(rng, stack.direction, stack.energy))])


def annihilate(rng: Generator, stack: Stack) -> Stack:
    """Positrons at rest: two photons, back to back."""
    away = p.isotropic(rng, len(stack))
    energy = np.full(len(stack), ELECTRON_MASS)
    return p.join([stack.make(p.GAMMA, energy, away), stack.make(p.GAMMA, energy, -away)])
