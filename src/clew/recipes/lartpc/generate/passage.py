"""Charged particles on their way: energy loss with its fluctuations, multiple scattering, delta rays.

A leg is a path to the next thing that happens. Energies along it come from the range table, so all steps of all legs
are made at once. Collisions that give an electron more than HARD make it a particle; those above SOFT are drawn one by
one; the rest is continuous. Directions are the exponential map of a random walk in the two angles across.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from clew.recipes.lartpc.generate import argon, particles
from clew.recipes.lartpc.generate.particles import ELECTRON_MASS, MASS, Floats, Ints, Stack

STEP = 0.15
SOFT, HARD = 0.02, 1.0
SCATTERING = 13.6, 0.038
"""Highland's constants: MeV, and the weight of the logarithm of the whole leg in radiation lengths."""
STRAGGLING = 0.015
"""Spread of the range of particles heavier than electrons."""


@dataclass(frozen=True)
class Deposits:
    """Energy left in the argon: the event, the middle of the step (n, 3) in cm, MeV, and the step's length in cm."""

    event: Ints
    place: Floats
    energy: Floats
    length: Floats


class Ends(NamedTuple):
    """How legs ended: where, in which direction, with what kinetic energy."""

    place: Floats
    direction: Floats
    energy: Floats


class _Steps(NamedTuple):
    """Of all legs, one after the other: the leg of each, the first and last of every leg; lengths, energies
    before and after, and kinds."""

    leg: Ints
    first: Ints
    last: Ints
    length: Floats
    before: Floats
    after: Floats
    kind: Ints


def ahead(stack: Stack, what: str) -> Floats:
    """`range`, `depth` or `age` (see `argon.Table`) of charged particles."""
    found = np.zeros(len(stack))
    for kind in np.unique(stack.kind).tolist():
        rows, table = stack.kind == kind, argon.table(kind)
        found[rows] = np.interp(stack.energy[rows], table.energy, getattr(table, what))
    return found


def path(stack: Stack, what: str, spent: Floats) -> Floats:
    """cm until so much of a particle's `depth` or `age` is spent; infinite where it stops before."""
    left = ahead(stack, what) - spent
    whole, found = ahead(stack, "range"), np.full(len(stack), np.inf)
    for kind in np.unique(stack.kind).tolist():
        rows, table = (stack.kind == kind) & (left > 0), argon.table(kind)
        found[rows] = whole[rows] - np.interp(left[rows], getattr(table, what), table.range)
    return found


def travel(rng: Generator, stack: Stack, length: Floats) -> tuple[Deposits, Ends, Stack]:
    """Particles go so many cm, give or take STRAGGLING: what they leave, how they end, the delta rays they make."""
    steps = _steps(stack, length, _stretch(rng, stack))
    place, direction, ends = _walk(rng, stack, steps)
    lost = steps.before - steps.after
    soft, rays = _collisions(rng, stack, steps, place, direction, lost)
    end = Ends(ends, direction[steps.last], steps.after[steps.last])
    return Deposits(stack.event[steps.leg], place, np.maximum(soft, 0.02 * lost), steps.length), end, rays


def _stretch(rng: Generator, stack: Stack) -> Floats:
    heavy = MASS[stack.kind] > ELECTRON_MASS
    return np.where(heavy, np.clip(1 + STRAGGLING * rng.standard_normal(len(stack)), 0.9, 1.1), 1.0)


def _steps(stack: Stack, length: Floats, stretch: Floats) -> _Steps:
    many = np.maximum(np.ceil(length / STEP), 1).astype(np.int64)
    first = np.cumsum(many) - many
    leg = np.repeat(np.arange(len(stack)), many)
    size = (length * stretch / many)[leg]
    number = np.arange(len(leg)) - first[leg]
    whole, kind = ahead(stack, "range")[leg], stack.kind[leg]
    used = (length / many)[leg]
    left = whole - number * used
    before, after = _energy(kind, left), _energy(kind, np.maximum(left - used, 0))
    before[first] = stack.energy
    return _Steps(leg, first, first + many - 1, size, before, np.minimum(after, before), kind)


def _energy(kind: Ints, left: Floats) -> Floats:
    """Kinetic energy by the range left."""
    found = np.zeros(len(left))
    for each in np.unique(kind).tolist():
        rows, table = kind == each, argon.table(each)
        found[rows] = np.interp(left[rows], table.range, table.energy)
    return np.where(left > 1e-9, found, 0.0)


def _walk(rng: Generator, stack: Stack, steps: _Steps) -> tuple[Floats, Floats, Floats]:
    """The middles of steps and the directions there; then where legs end."""
    energy, mass = np.maximum((steps.before + steps.after) / 2, 0.02), MASS[steps.kind]
    push = energy * (energy + 2 * mass) / (energy + mass)  # beta times momentum
    width = np.minimum(_highland(steps) / push * np.sqrt(steps.length / argon.RADIATION_LENGTH), 1.0)
    angles = _sum_within(rng.standard_normal((len(energy), 2)) * width[:, None], steps)
    size = np.hypot(angles[:, 0], angles[:, 1])
    sine = np.sinc(size / np.pi)[:, None] * angles
    first, second = particles.across(stack.direction)
    leg = steps.leg
    direction = np.cos(size)[:, None] * stack.direction[leg] + sine[:, :1] * first[leg] + sine[:, 1:] * second[leg]
    moved = direction * steps.length[:, None]
    after = stack.place[leg] + _sum_within(moved, steps)
    return after - moved / 2, direction, after[steps.last]


def _highland(steps: _Steps) -> Floats:
    """Highland's factor of each step, MeV: steps of a leg add up to what he says of the leg."""
    constant, weight = SCATTERING
    leg = np.bincount(steps.leg, steps.length)
    factor = 1 + weight * np.log(np.maximum(leg, 1e-3) / argon.RADIATION_LENGTH)
    return np.asarray(constant * factor[steps.leg])


def _sum_within(values: Floats, steps: _Steps) -> Floats:
    """Running sums that begin anew with every leg."""
    total = np.cumsum(values, axis=0)
    before = total[steps.first] - values[steps.first]
    return total - before[steps.leg]


def _collisions(
    rng: Generator, stack: Stack, steps: _Steps, place: Floats, direction: Floats, lost: Floats
) -> tuple[Floats, Stack]:
    """What stays in each step, and the electrons that do not."""
    energy = np.maximum(steps.before, 1e-3)
    most = argon.hardest(steps.kind, energy)
    gamma = 1 + energy / MASS[steps.kind]
    beta2 = 1 - 1 / gamma**2
    strength = argon.COLLISIONS / 2 / beta2 * steps.length
    able = most > 2 * SOFT
    mean = np.where(able, strength * (1 / SOFT - 1 / np.maximum(most, SOFT)), 0.0)
    of_step = np.repeat(np.arange(len(energy)), rng.poisson(mean))
    given = 1 / (1 / SOFT - rng.random(len(of_step)) * (1 / SOFT - 1 / most[of_step]))
    kept = rng.random(len(of_step)) < 1 - beta2[of_step] * given / most[of_step]
    of_step, given = of_step[kept], given[kept]
    logs = np.log(np.maximum(most, 2 * SOFT) / SOFT) - beta2 * (1 - SOFT / np.maximum(most, 2 * SOFT))
    continuous = lost - np.where(able, strength * logs, 0.0)
    stays = given < HARD
    soft = continuous + np.bincount(of_step[stays], given[stays], minlength=len(energy))
    hard, ray = of_step[~stays], given[~stays]
    cosine = np.sqrt(ray * (most[hard] + 2 * ELECTRON_MASS) / (most[hard] * (ray + 2 * ELECTRON_MASS)))
    away = particles.turned(rng, direction[hard], np.minimum(cosine, 1.0))
    electrons = np.full(len(hard), particles.ELECTRON)
    return soft, Stack(stack.event[steps.leg[hard]], electrons, ray, place[hard], away)
