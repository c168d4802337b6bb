"""Particles to the end: everything that happens to the particles of a block of events, generation by generation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from clew.recipes.lartpc.generate import argon, decays, hadrons, passage, showers
from clew.recipes.lartpc.generate import particles as p
from clew.recipes.lartpc.generate.particles import Bools, Floats, Ints, Stack
from clew.recipes.lartpc.generate.passage import Deposits

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
"""Bits of the column `history`, by what they say."""
_STOPS, _COLLIDES, _DECAYS, _LEAVES = range(4)


@dataclass(frozen=True)
class World:
    """The box that particles are followed in: lowest and highest corner, cm."""

    low: Floats
    high: Floats

    def holds(self, place: Floats) -> Bools:
        """Which places are inside."""
        return np.asarray(((place >= self.low) & (place <= self.high)).all(axis=1))

    def way_out(self, stack: Stack) -> Floats:
        """cm to the wall, straight on, and a little beyond."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ways = np.where(stack.direction > 0, self.high - stack.place, self.low - stack.place) / stack.direction
        return np.asarray(np.where(np.isfinite(ways), ways, np.inf).min(axis=1) + 1.0)


class Transport:
    """One block of events: `run` once, then look at `history`."""

    def __init__(self, rng: Generator, world: World, events: int) -> None:
        self._rng, self._world = rng, world
        self.history: Ints = np.zeros(events, dtype=np.int64)
        """Bits of HISTORY of every event."""

    def run(self, stack: Stack) -> Deposits:
        """Follow particles, and all they make, until nothing is left."""
        found: list[Deposits] = []
        while len(stack):
            stack = stack[self._world.holds(stack.place)]
            charged = stack.of(*p.CHARGED)
            photons, neutrons = stack.of(p.GAMMA), stack.of(p.NEUTRON)
            made = [self._photons(stack[photons]), hadrons.neutrons(self._rng, stack[neutrons])]
            made.append(self._neutral(stack[~charged & ~photons & ~neutrons]))
            left, after = self._charged(stack[charged])
            found.append(left)
            stack = p.join([*made, after])
        return Deposits(
            *(
                np.concatenate([getattr(each, name) for each in found])
                for name in ("event", "place", "energy", "length")
            )
        )

    def _note(self, stack: Stack, bit: int) -> None:
        self.history[stack.event] |= bit

    def _photons(self, stack: Stack) -> Stack:
        made, converts = showers.photons(self._rng, stack)
        self._note(stack[converts], CONVERSION)
        return made

    def _neutral(self, stack: Stack) -> Stack:
        """Short-lived ones go as far as they live."""
        way = stack.momentum / p.MASS[stack.kind] * p.REACH[stack.kind] * self._rng.standard_exponential(len(stack))
        place = stack.place + way[:, None] * stack.direction
        return decays.decay(self._rng, Stack(stack.event, stack.kind, stack.energy, place, stack.direction))

    def _charged(self, stack: Stack) -> tuple[Deposits, Stack]:
        ways = np.stack(
            [
                passage.ahead(stack, "range"),
                passage.path(stack, "depth", self._rng.standard_exponential(len(stack))),
                passage.path(stack, "age", self._rng.standard_exponential(len(stack))),
                self._world.way_out(stack),
            ]
        )
        fate = np.argmin(ways, axis=0)
        deposits, end, rays = passage.travel(self._rng, stack, ways.min(axis=0))
        energy = np.where(fate == _STOPS, 0.0, end.energy)
        there = Stack(stack.event, stack.kind, energy, end.place, end.direction)
        after = [rays, self._collide(there[fate == _COLLIDES]), self._decay(there[fate == _DECAYS])]
        after += [self._stop(there[fate == _STOPS]), there[(fate == _LEAVES) & (energy > argon.LOWEST)]]
        return deposits, p.join(after)

    def _collide(self, stack: Stack) -> Stack:
        light = stack.of(p.ELECTRON, p.POSITRON)
        bounces = ~light & (self._rng.random(len(stack)) < argon.ELASTIC_SHARE / (1 + argon.ELASTIC_SHARE))
        hit = stack[~light & ~bounces]
        happened = hadrons.inelastic(self._rng, hit)
        self._note(hit[~hit.of(p.PROTON)], INELASTIC)
        self._note(hit[happened.absorbed], ABSORPTION)
        self._note(hit[happened.exchanged], EXCHANGE)
        return p.join(
            [showers.radiate(self._rng, stack[light]), hadrons.elastic(self._rng, stack[bounces]), happened.made]
        )

    def _decay(self, stack: Stack) -> Stack:
        for bit, kinds in ((MICHEL, (p.MUON, p.ANTIMUON)), (PION_DECAY, (p.PION_MINUS, p.PION_PLUS))):
            self._note(stack[stack.of(*kinds)], bit)
        self._note(stack[stack.of(p.KAON_MINUS, p.KAON_PLUS)], KAON_DECAY)
        return decays.decay(self._rng, stack)

    def _stop(self, stack: Stack) -> Stack:
        """At rest: positrons annihilate, positive particles decay, negative ones may be captured first."""
        positrons, taken = stack.of(p.POSITRON), stack.of(p.PION_MINUS, p.KAON_MINUS)
        muons = stack.of(p.MUON) & (self._rng.random(len(stack)) < hadrons.MUON_CAPTURED)
        self._note(stack[taken], STAR)
        self._note(stack[muons], CAPTURE)
        return p.join(
            [
                showers.annihilate(self._rng, stack[positrons]),
                hadrons.captured(self._rng, stack[taken]),
                hadrons.muon_captured(self._rng, stack[muons]),
                self._decay(stack[stack.of(p.MUON, p.ANTIMUON, p.PION_PLUS, p.KAON_PLUS) & ~muons]),
            ]
        )
