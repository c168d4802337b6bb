"""Follows all particles of a block of events, and all their products, generation by generation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from clew.recipes.lartpc.generate import charged_transport, decays, hadrons, liquid_argon, showers
from clew.recipes.lartpc.generate import particles as p
from clew.recipes.lartpc.generate.charged_transport import Deposits
from clew.recipes.lartpc.generate.particles import Bools, Floats, Ints, ParticleStack

MICHEL, CAPTURE, STAR, INELASTIC, ABSORPTION, EXCHANGE, PION_DECAY, KAON_DECAY, CONVERSION = (1 << n for n in range(9))
HISTORY = {
    "a muon decays": MICHEL,
    "a muon is captured": CAPTURE,
    "a negative hadron is captured": STAR,
    "an inelastic collision": INELASTIC,
    "a pion is absorbed": ABSORPTION,
    "a pion becomes neutral": EXCHANGE,
    "a pion decays": PION_DECAY,
    "a kaon decays": KAON_DECAY,
    "a photon converts": CONVERSION,
}
"""The bits of the column `history`, by their meaning."""
_STOPS, _COLLIDES, _DECAYS, _LEAVES = range(4)


@dataclass(frozen=True)
class World:
    """The box in which particles are followed: lowest and highest corner, cm."""

    low: Floats
    high: Floats

    def contains(self, place: Floats) -> Bools:
        """Return which positions are inside."""
        return np.asarray(((place >= self.low) & (place <= self.high)).all(axis=1))

    def distance_to_wall(self, stack: ParticleStack) -> Floats:
        """Return the straight distance to just beyond the wall, cm."""
        with np.errstate(divide="ignore", invalid="ignore"):
            distances = np.where(stack.direction > 0, self.high - stack.place, self.low - stack.place) / stack.direction
        return np.asarray(np.where(np.isfinite(distances), distances, np.inf).min(axis=1) + 1.0)


class Transport:
    """The transport of one block of events: call `run` once, then read `history`."""

    def __init__(self, rng: Generator, world: World, events: int) -> None:
        self._rng, self._world = rng, world
        self.history: Ints = np.zeros(events, dtype=np.int64)
        """Bits of HISTORY of every event."""

    def run(self, stack: ParticleStack) -> Deposits:
        """Follow particles and their products until none is left."""
        deposits: list[Deposits] = []
        while len(stack):
            stack = stack[self._world.contains(stack.place)]
            charged = stack.of(*p.CHARGED)
            photons, neutrons = stack.of(p.GAMMA), stack.of(p.NEUTRON)
            products = [self._photons(stack[photons]), hadrons.interact_neutrons(self._rng, stack[neutrons])]
            products.append(self._neutral(stack[~charged & ~photons & ~neutrons]))
            leg_deposits, after = self._charged(stack[charged])
            deposits.append(leg_deposits)
            stack = p.join([*products, after])
        return Deposits(
            *(
                np.concatenate([getattr(each, name) for each in deposits])
                for name in ("event", "place", "energy", "length")
            )
        )

    def _record(self, stack: ParticleStack, bit: int) -> None:
        self.history[stack.event] |= bit

    def _photons(self, stack: ParticleStack) -> ParticleStack:
        products, converts = showers.interact_photons(self._rng, stack)
        self._record(stack[converts], CONVERSION)
        return products

    def _neutral(self, stack: ParticleStack) -> ParticleStack:
        """Move short-lived neutral particles by their flight distance, and decay them."""
        distance = (
            stack.momentum
            / p.MASS[stack.kind]
            * p.DECAY_LENGTH[stack.kind]
            * self._rng.standard_exponential(len(stack))
        )
        place = stack.place + distance[:, None] * stack.direction
        return decays.decay(self._rng, ParticleStack(stack.event, stack.kind, stack.energy, place, stack.direction))

    def _charged(self, stack: ParticleStack) -> tuple[Deposits, ParticleStack]:
        distances = np.stack(
            [
                charged_transport.remaining(stack, "range"),
                charged_transport.path_until(stack, "depth", self._rng.standard_exponential(len(stack))),
                charged_transport.path_until(stack, "age", self._rng.standard_exponential(len(stack))),
                self._world.distance_to_wall(stack),
            ]
        )
        fate = np.argmin(distances, axis=0)
        deposits, end, rays = charged_transport.travel(self._rng, stack, distances.min(axis=0))
        energy = np.where(fate == _STOPS, 0.0, end.energy)
        ends = ParticleStack(stack.event, stack.kind, energy, end.place, end.direction)
        after = [rays, self._collide(ends[fate == _COLLIDES]), self._decay(ends[fate == _DECAYS])]
        after += [self._stop(ends[fate == _STOPS]), ends[(fate == _LEAVES) & (energy > liquid_argon.MIN_ENERGY)]]
        return deposits, p.join(after)

    def _collide(self, stack: ParticleStack) -> ParticleStack:
        light = stack.of(p.ELECTRON, p.POSITRON)
        bounces = ~light & (
            self._rng.random(len(stack)) < liquid_argon.ELASTIC_RATIO / (1 + liquid_argon.ELASTIC_RATIO)
        )
        hit = stack[~light & ~bounces]
        happened = hadrons.scatter_inelastic(self._rng, hit)
        self._record(hit[~hit.of(p.PROTON)], INELASTIC)
        self._record(hit[happened.absorbed], ABSORPTION)
        self._record(hit[happened.exchanged], EXCHANGE)
        return p.join(
            [
                showers.radiate(self._rng, stack[light]),
                hadrons.scatter_elastic(self._rng, stack[bounces]),
                happened.products,
            ]
        )

    def _decay(self, stack: ParticleStack) -> ParticleStack:
        for bit, kinds in ((MICHEL, (p.MUON, p.ANTIMUON)), (PION_DECAY, (p.PION_MINUS, p.PION_PLUS))):
            self._record(stack[stack.of(*kinds)], bit)
        self._record(stack[stack.of(p.KAON_MINUS, p.KAON_PLUS)], KAON_DECAY)
        return decays.decay(self._rng, stack)

    def _stop(self, stack: ParticleStack) -> ParticleStack:
        """Handle particles at rest: positrons annihilate, positive ones decay, negative ones may be captured first."""
        positrons, taken = stack.of(p.POSITRON), stack.of(p.PION_MINUS, p.KAON_MINUS)
        muons = stack.of(p.MUON) & (self._rng.random(len(stack)) < hadrons.MUON_CAPTURE_FRACTION)
        self._record(stack[taken], STAR)
        self._record(stack[muons], CAPTURE)
        return p.join(
            [
                showers.annihilate(self._rng, stack[positrons]),
                hadrons.capture_hadrons(self._rng, stack[taken]),
                hadrons.capture_muons(self._rng, stack[muons]),
                self._decay(stack[stack.of(p.MUON, p.ANTIMUON, p.PION_PLUS, p.KAON_PLUS) & ~muons]),
            ]
        )
