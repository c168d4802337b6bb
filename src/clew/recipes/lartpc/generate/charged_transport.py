"""Transport of charged particles: energy loss with fluctuations, multiple scattering, delta rays.

A leg is the path to the next interaction. The energies along a leg come from the range table, so all steps of all legs
are computed at once. A collision that transfers more than DELTA_RAY_ENERGY makes the electron a particle of its own.
Collisions above MIN_COLLISION_ENERGY are drawn one by one, and the remaining energy loss is continuous. Directions are
the exponential map of a random walk in the two transverse angles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from clew.recipes.lartpc.generate import liquid_argon, particles
from clew.recipes.lartpc.generate.particles import ELECTRON_MASS, MASS, Floats, Ints, ParticleStack

STEP = 0.15
MIN_COLLISION_ENERGY, DELTA_RAY_ENERGY = 0.02, 1.0
SCATTERING = 13.6, 0.038
"""Constants of the Highland formula: MeV, and the weight of the logarithm of the leg in radiation lengths."""
STRAGGLING = 0.015
"""Relative spread of the range of particles heavier than electrons."""


@dataclass(frozen=True)
class Deposits:
    """Energy deposits: event, midpoint of the step (n, 3) in cm, energy in MeV, and length of the step in cm."""

    event: Ints
    place: Floats
    energy: Floats
    length: Floats


class LegEnds(NamedTuple):
    """The ends of legs: position, direction and kinetic energy."""

    place: Floats
    direction: Floats
    energy: Floats


class _Steps(NamedTuple):
    """The steps of all legs, one after the other.

    `leg` is the leg of each step, `first` and `last` are the first and last step of every leg. The other fields are the
    length of each step, the energies before and after it, and the kind of the particle.
    """

    leg: Ints
    first: Ints
    last: Ints
    length: Floats
    before: Floats
    after: Floats
    kind: Ints


def remaining(stack: ParticleStack, quantity: str) -> Floats:
    """Return the `range`, `depth` or `age` that charged particles have left (see `liquid_argon.RangeTable`)."""
    result = np.zeros(len(stack))
    for kind in np.unique(stack.kind).tolist():
        rows, table = stack.kind == kind, liquid_argon.range_table(kind)
        result[rows] = np.interp(stack.energy[rows], table.energy, getattr(table, quantity))
    return result


def path_until(stack: ParticleStack, quantity: str, spent: Floats) -> Floats:
    """Return the path (cm) until `spent` of the `depth` or `age` is used up; infinite if the particle stops before."""
    left = remaining(stack, quantity) - spent
    full_range, result = remaining(stack, "range"), np.full(len(stack), np.inf)
    for kind in np.unique(stack.kind).tolist():
        rows, table = (stack.kind == kind) & (left > 0), liquid_argon.range_table(kind)
        result[rows] = full_range[rows] - np.interp(left[rows], getattr(table, quantity), table.range)
    return result


def travel(rng: Generator, stack: ParticleStack, length: Floats) -> tuple[Deposits, LegEnds, ParticleStack]:
    """Move particles by `length` (cm), with the relative spread STRAGGLING.

    Returns:
        The energy deposits, the ends of the legs, and the delta rays.
    """
    steps = _make_steps(stack, length, _draw_straggling(rng, stack))
    place, direction, ends = _draw_path(rng, stack, steps)
    lost = steps.before - steps.after
    soft, rays = _draw_collisions(rng, stack, steps, place, direction, lost)
    end = LegEnds(ends, direction[steps.last], steps.after[steps.last])
    return Deposits(stack.event[steps.leg], place, np.maximum(soft, 0.02 * lost), steps.length), end, rays


def _draw_straggling(rng: Generator, stack: ParticleStack) -> Floats:
    heavy = MASS[stack.kind] > ELECTRON_MASS
    return np.where(heavy, np.clip(1 + STRAGGLING * rng.standard_normal(len(stack)), 0.9, 1.1), 1.0)


def _make_steps(stack: ParticleStack, length: Floats, stretch: Floats) -> _Steps:
    step_count = np.maximum(np.ceil(length / STEP), 1).astype(np.int64)
    first = np.cumsum(step_count) - step_count
    leg = np.repeat(np.arange(len(stack)), step_count)
    size = (length * stretch / step_count)[leg]
    number = np.arange(len(leg)) - first[leg]
    full_range, kind = remaining(stack, "range")[leg], stack.kind[leg]
    step_range = (length / step_count)[leg]
    left = full_range - number * step_range
    before, after = _energy_from_range(kind, left), _energy_from_range(kind, np.maximum(left - step_range, 0))
    before[first] = stack.energy
    return _Steps(leg, first, first + step_count - 1, size, before, np.minimum(after, before), kind)


def _energy_from_range(kind: Ints, left: Floats) -> Floats:
    """Return the kinetic energy of particles from their remaining range."""
    energy = np.zeros(len(left))
    for each in np.unique(kind).tolist():
        rows, table = kind == each, liquid_argon.range_table(each)
        energy[rows] = np.interp(left[rows], table.range, table.energy)
    return np.where(left > 1e-9, energy, 0.0)


def _draw_path(rng: Generator, stack: ParticleStack, steps: _Steps) -> tuple[Floats, Floats, Floats]:
    """Return the midpoints of steps, the directions there, and the end points of legs."""
    energy, mass = np.maximum((steps.before + steps.after) / 2, 0.02), MASS[steps.kind]
    beta_momentum = energy * (energy + 2 * mass) / (energy + mass)  # beta times momentum
    width = np.minimum(
        _highland_factor(steps) / beta_momentum * np.sqrt(steps.length / liquid_argon.RADIATION_LENGTH), 1.0
    )
    angles = _running_sum_per_leg(rng.standard_normal((len(energy), 2)) * width[:, None], steps)
    size = np.hypot(angles[:, 0], angles[:, 1])
    sine = np.sinc(size / np.pi)[:, None] * angles
    first, second = particles.perpendicular(stack.direction)
    leg = steps.leg
    direction = np.cos(size)[:, None] * stack.direction[leg] + sine[:, :1] * first[leg] + sine[:, 1:] * second[leg]
    moved = direction * steps.length[:, None]
    after = stack.place[leg] + _running_sum_per_leg(moved, steps)
    return after - moved / 2, direction, after[steps.last]


def _highland_factor(steps: _Steps) -> Floats:
    """Return the Highland factor of each step, MeV. The steps of a leg add up to the value of the leg."""
    constant, weight = SCATTERING
    leg = np.bincount(steps.leg, steps.length)
    factor = 1 + weight * np.log(np.maximum(leg, 1e-3) / liquid_argon.RADIATION_LENGTH)
    return np.asarray(constant * factor[steps.leg])


def _running_sum_per_leg(values: Floats, steps: _Steps) -> Floats:
    """Return running sums that restart with every leg."""
    total = np.cumsum(values, axis=0)
    before = total[steps.first] - values[steps.first]
    return total - before[steps.leg]


def _draw_collisions(
    rng: Generator, stack: ParticleStack, steps: _Steps, place: Floats, direction: Floats, lost: Floats
) -> tuple[Floats, ParticleStack]:
    """Return the energy deposited in each step, and the delta rays."""
    energy = np.maximum(steps.before, 1e-3)
    max_transfer = liquid_argon.max_energy_transfer(steps.kind, energy)
    gamma = 1 + energy / MASS[steps.kind]
    beta2 = 1 - 1 / gamma**2
    strength = liquid_argon.COLLISION_LOSS / 2 / beta2 * steps.length
    can_transfer = max_transfer > 2 * MIN_COLLISION_ENERGY
    mean = np.where(
        can_transfer, strength * (1 / MIN_COLLISION_ENERGY - 1 / np.maximum(max_transfer, MIN_COLLISION_ENERGY)), 0.0
    )
    of_step = np.repeat(np.arange(len(energy)), rng.poisson(mean))
    transfer = 1 / (
        1 / MIN_COLLISION_ENERGY - rng.random(len(of_step)) * (1 / MIN_COLLISION_ENERGY - 1 / max_transfer[of_step])
    )
    accepted = rng.random(len(of_step)) < 1 - beta2[of_step] * transfer / max_transfer[of_step]
    of_step, transfer = of_step[accepted], transfer[accepted]
    logs = np.log(np.maximum(max_transfer, 2 * MIN_COLLISION_ENERGY) / MIN_COLLISION_ENERGY) - beta2 * (
        1 - MIN_COLLISION_ENERGY / np.maximum(max_transfer, 2 * MIN_COLLISION_ENERGY)
    )
    continuous = lost - np.where(can_transfer, strength * logs, 0.0)
    stays = transfer < DELTA_RAY_ENERGY
    soft = continuous + np.bincount(of_step[stays], transfer[stays], minlength=len(energy))
    hard, ray = of_step[~stays], transfer[~stays]
    cosine = np.sqrt(ray * (max_transfer[hard] + 2 * ELECTRON_MASS) / (max_transfer[hard] * (ray + 2 * ELECTRON_MASS)))
    away = particles.deflect(rng, direction[hard], np.minimum(cosine, 1.0))
    electrons = np.full(len(hard), particles.ELECTRON)
    return soft, ParticleStack(stack.event[steps.leg[hard]], electrons, ray, place[hard], away)
