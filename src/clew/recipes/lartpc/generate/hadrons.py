"""Pions, kaons and nucleons meeting argon nuclei.

Shares of absorption, charge exchange and pion production follow measurements on nuclei of about this size in rough
tables; the energy that is given to nucleons is dealt out at random, 8 MeV each for leaving the nucleus. Meant to look
like a nucleus broken up (short heavy tracks, neutral energy, kinks), not to predict a cross-section.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from clew.recipes.lartpc.generate import argon
from clew.recipes.lartpc.generate import particles as p
from clew.recipes.lartpc.generate.particles import MASS, Bools, Floats, Stack

BINDING = 8.0
_GRID = (0.0, 50.0, 100.0, 200.0, 300.0, 500.0, 1000.0, 2000.0)
PION_ABSORBED = (0.70, 0.50, 0.40, 0.33, 0.26, 0.16, 0.08, 0.05)
PION_EXCHANGED = (0.05, 0.08, 0.10, 0.13, 0.15, 0.14, 0.10, 0.07)
PION_MAKES_PION = (0.0, 0.0, 0.0, 0.0, 0.05, 0.25, 0.55, 0.75)
KAON_EXCHANGED = 0.2
KAON_MAKES_PION = (0.0, 0.0, 0.0, 0.0, 0.0, 0.05, 0.25, 0.5)
HYPERON = 0.6
"""Share of the inelastic collisions of a negative kaon that make a Lambda."""
ELASTIC_PUSH = 60.0
"""MeV: width of the sideways push of elastic scattering, about 1 over the radius of the nucleus."""
NEUTRON_RATE = argon.ATOMS * 0.5
MUON_CAPTURED = 0.755
"""Of negative muons at rest, by their mean life in argon of 537 ns."""


class Happened(NamedTuple):
    """What hadronic collisions made, and which were absorption, and which gave a neutral pion by exchange."""

    made: Stack
    absorbed: Bools
    exchanged: Bools


def elastic(rng: Generator, stack: Stack) -> Stack:
    """A kink."""
    push = ELASTIC_PUSH * np.sqrt(2 * rng.standard_exponential(len(stack)))
    angle = np.minimum(push / np.maximum(stack.momentum, 1.0), np.pi)
    return stack.make(stack.kind, stack.energy, p.turned(rng, stack.direction, np.cos(angle)))


def inelastic(rng: Generator, stack: Stack) -> Happened:
    """Collisions of charged hadrons with a nucleus."""
    absorbed = np.zeros(len(stack), dtype=bool)
    exchanged, made = absorbed.copy(), []
    pions, protons = stack.of(p.PION_MINUS, p.PION_PLUS), stack.of(p.PROTON)
    draw = rng.random(len(stack))
    dies, changes, makes = _shares(stack, pions)
    hyperon = stack.of(p.KAON_MINUS) & (draw < HYPERON)
    absorbed |= pions & (draw < dies)
    exchanged |= ~protons & ~hyperon & ~absorbed & (draw < dies + changes)
    more = ~protons & ~hyperon & ~absorbed & ~exchanged & (draw < dies + changes + makes)
    rest = ~absorbed & ~hyperon
    made += [_star(rng, stack[absorbed], stack.energy[absorbed] + MASS[p.PION_PLUS])]
    made += [_hyperon(rng, stack[hyperon]), _scattered(rng, stack[rest], exchanged[rest], more[rest])]
    return Happened(p.join(made), absorbed, exchanged & pions)


def _shares(stack: Stack, pions: Bools) -> tuple[Floats, Floats, Floats]:
    def of(table: tuple[float, ...]) -> Floats:
        return np.interp(stack.energy, _GRID, table)

    kaon_changes = np.where(stack.of(p.KAON_PLUS), KAON_EXCHANGED, 0.0)
    kaon_dies = np.where(stack.of(p.KAON_MINUS), HYPERON, 0.0)
    return (
        np.where(pions, of(PION_ABSORBED), kaon_dies),
        np.where(pions, of(PION_EXCHANGED), kaon_changes),
        np.where(pions, of(PION_MAKES_PION), of(KAON_MAKES_PION)),
    )


def _scattered(rng: Generator, stack: Stack, exchanged: Bools, more: Bools) -> Stack:
    """The hadron goes on with part of its energy, perhaps as a neutral one, perhaps with a new pion."""
    kept = stack.energy * rng.uniform(0.3, 0.9, len(stack))
    cost = np.where(more, MASS[p.PION_PLUS], 0.0)
    pool = stack.energy - kept
    pion = np.where(more, np.maximum(pool - cost, 0.0) * rng.uniform(0.2, 0.9, len(stack)), 0.0)
    born = more & (pion > 1.0)
    nuclear = np.maximum(pool - np.where(born, pion + cost, 0.0), 0.0)
    kind = np.where(exchanged, np.where(stack.kind == p.KAON_PLUS, p.KAON_SHORT, p.PION_ZERO), stack.kind)
    unseen = (kind == p.KAON_SHORT) & (rng.random(len(stack)) < 0.5)  # the other half of neutral kaons lives long
    leading = stack.make(kind, kept, _forward(rng, stack, kept))[~unseen]
    others = rng.choice([p.PION_PLUS, p.PION_MINUS, p.PION_ZERO], len(stack))
    extra = stack.make(others, pion, _forward(rng, stack, pion))[born]
    return p.join([leading, extra, _nucleons(rng, stack, nuclear, np.full(len(stack), 0.5), 1.0)])


def _forward(rng: Generator, stack: Stack, energy: Floats) -> Floats:
    """Directions of products: the slower, the wider."""
    width = np.minimum(250.0 / np.sqrt(np.maximum(energy, 1) * (np.maximum(energy, 1) + 280)), 2.0)
    angle = np.minimum(width * np.sqrt(2 * rng.standard_exponential(len(stack))), np.pi)
    return p.turned(rng, stack.direction, np.cos(angle))


def _hyperon(rng: Generator, stack: Stack) -> Stack:
    """A negative kaon and a nucleon make a Lambda and a pion; those of Sigmas look much the same here."""
    pool = stack.energy + MASS[p.KAON_PLUS] + MASS[p.NEUTRON] - MASS[p.LAMBDA] - MASS[p.PION_PLUS] - 20.0
    share = rng.uniform(0.55, 0.95, len(stack))
    pion = rng.choice([p.PION_MINUS, p.PION_ZERO, p.PION_PLUS], len(stack), p=[0.5, 0.3, 0.2])
    away = np.where((stack.energy < 5)[:, None], p.isotropic(rng, len(stack)), _forward(rng, stack, pool))
    lambdas = stack.make(p.LAMBDA, 0.6 * (1 - share) * pool, _forward(rng, stack, pool))
    spread = _nucleons(rng, stack, 0.4 * (1 - share) * pool, np.full(len(stack), 0.5), 0.5)
    return p.join([stack.make(pion, share * pool, away), lambdas, spread])


def _star(rng: Generator, stack: Stack, pool: Floats) -> Stack:
    """A pion's whole energy in nucleons: two at least."""
    chance = np.where(stack.kind == p.PION_PLUS, 0.65, 0.35)
    return _nucleons(rng, stack, pool, chance, 2.5)


def _nucleons(rng: Generator, stack: Stack, pool: Floats, chance: Floats, more: float) -> Stack:
    """Energy dealt out to 1 + Poisson(more) nucleons, protons by `chance`; a tenth stays with the nucleus."""
    many = 1 + rng.poisson(more, len(stack))
    rows = np.repeat(np.arange(len(stack)), many)
    part = rng.standard_exponential(len(rows))
    share = part / np.bincount(rows, part, minlength=len(stack))[rows]
    energy = 0.9 * pool[rows] * share - BINDING
    kind = np.where(rng.random(len(rows)) < chance[rows], p.PROTON, p.NEUTRON)
    forward = np.minimum(stack.momentum[rows] / 800.0, 1.0)
    away = p.isotropic(rng, len(rows)) + forward[:, None] * stack.direction[rows]
    away /= np.maximum(np.linalg.norm(away, axis=1, keepdims=True), 1e-9)
    made = stack.make(kind, np.maximum(energy, 0.1), away, rows)
    return made[energy > 1.0]


def captured(rng: Generator, stack: Stack) -> Stack:
    """Negative pions and kaons at rest, taken by a nucleus."""
    pions, kaons = stack[stack.of(p.PION_MINUS)], stack[stack.of(p.KAON_MINUS)]
    return p.join([_star(rng, pions, np.full(len(pions), MASS[p.PION_PLUS])), _hyperon(rng, kaons)])


def muon_captured(rng: Generator, stack: Stack) -> Stack:
    """A neutron of some MeV, and often a photon of the nucleus."""
    neutrons = stack.make(p.NEUTRON, 1 + rng.exponential(6.0, len(stack)), p.isotropic(rng, len(stack)))
    photons = stack.make(p.GAMMA, 0.5 + rng.exponential(1.5, len(stack)), p.isotropic(rng, len(stack)))
    return p.join([neutrons, photons[rng.random(len(stack)) < 0.6]])


def neutrons(rng: Generator, stack: Stack) -> Stack:
    """At the end of their free path the fast ones knock out nucleons, slow ones leave a photon, or nothing."""
    free = rng.standard_exponential(len(stack)) / NEUTRON_RATE
    place = stack.place + free[:, None] * stack.direction
    there = Stack(stack.event, stack.kind, stack.energy, place, stack.direction)
    fast = stack.energy > 25.0
    given = stack.energy * rng.uniform(0.2, 1.0, len(stack))
    going = (stack.energy - given > 25.0) & fast
    after = there.make(p.NEUTRON, stack.energy - given, p.isotropic(rng, len(stack)))[going]
    lit = ~fast & (rng.random(len(stack)) < 0.4)
    photons = there.make(p.GAMMA, np.full(len(stack), 1.46), p.isotropic(rng, len(stack)))[lit]
    hit = there[fast]
    return p.join([after, photons, _nucleons(rng, hit, given[fast], np.full(len(hit), 0.6), 0.5)])
