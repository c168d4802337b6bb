"""Decays in flight or at rest: phase space of two or three bodies, and the spectrum of Michel electrons."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from clew.recipes.lartpc.generate import particles as p
from clew.recipes.lartpc.generate.particles import MASS, Floats, Ints, ParticleStack

NU = p.NEUTRINO
CHANNELS: dict[int, tuple[tuple[float, tuple[int, ...]], ...]] = {
    p.PION_PLUS: ((1.0, (p.ANTIMUON, NU)),),
    p.KAON_PLUS: (
        (0.6356, (p.ANTIMUON, NU)),
        (0.2067, (p.PION_PLUS, p.PION_ZERO)),
        (0.05583, (p.PION_PLUS, p.PION_PLUS, p.PION_MINUS)),
        (0.0507, (p.PION_ZERO, p.POSITRON, NU)),
        (0.03352, (p.PION_ZERO, p.ANTIMUON, NU)),
        (0.0176, (p.PION_PLUS, p.PION_ZERO, p.PION_ZERO)),
    ),
    p.PION_ZERO: ((1.0, (p.GAMMA, p.GAMMA)),),
    p.KAON_SHORT: ((0.6920, (p.PION_PLUS, p.PION_MINUS)), (0.3069, (p.PION_ZERO, p.PION_ZERO))),
    p.LAMBDA: ((0.641, (p.PROTON, p.PION_MINUS)), (0.359, (p.NEUTRON, p.PION_ZERO))),
}
"""Branching ratios and products. Omitted channels are below one percent; the ratios are scaled to add up to 1."""
_MIRROR = {p.PION_PLUS: p.PION_MINUS, p.ANTIMUON: p.MUON, p.POSITRON: p.ELECTRON, p.KAON_PLUS: p.KAON_MINUS}
_MIRROR |= {other: one for one, other in _MIRROR.items()}
MICHEL_END_POINT = (MASS[p.MUON] ** 2 + p.ELECTRON_MASS**2) / (2 * MASS[p.MUON])
"""Maximum energy of the electron of a muon at rest, 52.8 MeV."""


def decay_channels(kind: int) -> tuple[tuple[float, tuple[int, ...]], ...]:
    """Return the decay channels of a kind. Those of antiparticles are the charge conjugates."""
    if kind in CHANNELS:
        return CHANNELS[kind]
    return tuple(
        (share, tuple(_MIRROR.get(each, each) for each in daughters)) for share, daughters in CHANNELS[_MIRROR[kind]]
    )


def decay(rng: Generator, stack: ParticleStack) -> ParticleStack:
    """Return the decay products of particles, without neutrinos."""
    daughters_of_kind = [stack[np.zeros(0, dtype=np.int64)]]
    for kind in np.unique(stack.kind).tolist():
        parents = stack[stack.kind == kind]
        if kind in (p.MUON, p.ANTIMUON):
            daughters_of_kind.append(_decay_muons(rng, parents))
            continue
        shares = np.array([share for share, _ in decay_channels(kind)])
        channel = np.searchsorted(np.cumsum(shares) / shares.sum(), rng.random(len(parents)), side="right")
        for place, (_, daughters) in enumerate(decay_channels(kind)):
            daughters_of_kind.append(_decay_to_bodies(rng, parents[channel == place], daughters))
    return p.join(daughters_of_kind)


def _decay_muons(rng: Generator, muons: ParticleStack) -> ParticleStack:
    share = draw_michel_fractions(rng, len(muons))
    energy = np.maximum(share * MICHEL_END_POINT, 1.01 * p.ELECTRON_MASS)
    momentum = np.sqrt(energy**2 - p.ELECTRON_MASS**2)[:, None] * p.isotropic_directions(rng, len(muons))
    kind = np.where(muons.kind == p.MUON, p.ELECTRON, p.POSITRON)
    return _boost_daughters(muons, kind, energy, momentum)


def draw_michel_fractions(rng: Generator, size: int) -> Floats:
    """Draw energies relative to the end point from x^2 (3 - 2x): from 3x^2, accepted with probability 1 - 2x/3."""
    fraction = rng.random(size) ** (1 / 3)
    rejected = rng.random(size) > 1 - 2 * fraction / 3
    while rejected.any():
        new = rng.random(int(rejected.sum())) ** (1 / 3)
        fraction[rejected] = new
        rejected[rejected] = rng.random(len(new)) > 1 - 2 * new / 3
    return fraction


def _decay_to_bodies(rng: Generator, parents: ParticleStack, daughters: Sequence[int]) -> ParticleStack:
    size, masses = len(parents), MASS[list(daughters)]
    parent_mass = MASS[parents.kind]
    if len(daughters) == 2:
        pair = p.isotropic_directions(rng, size) * _two_body_momentum(parent_mass, masses[0], masses[1])[:, None]
        momenta = [pair, -pair]
    else:
        momenta = _three_body_momenta(rng, parent_mass, masses)
    stacks = []
    for kind, mass, momentum in zip(daughters, masses, momenta, strict=True):
        if kind != NU:
            energy = np.sqrt(mass**2 + (momentum**2).sum(axis=1))
            stacks.append(_boost_daughters(parents, np.full(size, kind), energy, momentum))
    return p.join(stacks)


def _two_body_momentum(mass: Floats, first: Floats | float, second: Floats | float) -> Floats:
    """Return the momentum of each of two bodies in their common rest frame."""
    inner = (mass**2 - (first + second) ** 2) * (mass**2 - (first - second) ** 2)
    return np.sqrt(np.maximum(inner, 0)) / (2 * mass)


def _three_body_momenta(rng: Generator, parent_mass: Floats, masses: Floats) -> list[Floats]:
    """Draw the momenta of three bodies uniformly in phase space, through the mass of the first two bodies."""
    low, high = masses[0] + masses[1], parent_mass - masses[2]
    pair, todo = np.zeros(len(parent_mass)), np.arange(len(parent_mass))
    grid = np.linspace(low, high.max(initial=low), 200)
    top = parent_mass.max(initial=high.max(initial=low) + masses[2])
    limit = 1.05 * (_two_body_momentum(top, grid, masses[2]) * _two_body_momentum(grid, masses[0], masses[1])).max()
    while len(todo):
        pair[todo] = rng.uniform(low, high[todo])
        weight = _two_body_momentum(parent_mass[todo], pair[todo], masses[2]) * _two_body_momentum(
            pair[todo], masses[0], masses[1]
        )
        todo = todo[rng.random(len(todo)) * limit > weight]
    third = p.isotropic_directions(rng, len(parent_mass)) * _two_body_momentum(parent_mass, pair, masses[2])[:, None]
    inner = p.isotropic_directions(rng, len(parent_mass)) * _two_body_momentum(pair, masses[0], masses[1])[:, None]
    frame = np.sqrt(pair**2 + (third**2).sum(axis=1))
    return [
        *(_boost_momenta(each, mass, -third, frame, pair) for each, mass in ((inner, masses[0]), (-inner, masses[1]))),
        third,
    ]


def _boost_momenta(momentum: Floats, mass: float, frame: Floats, energy: Floats, rest: Floats) -> Floats:
    """Boost momenta from a rest frame that has the given momentum (`frame`), energy and mass (`rest`)."""
    own_energy = np.sqrt(mass**2 + (momentum**2).sum(axis=1))
    along = (momentum * frame).sum(axis=1) / (rest * (energy + rest)) + own_energy / rest
    return np.asarray(momentum + frame * along[:, None])


def _boost_daughters(parents: ParticleStack, kind: Ints, energy: Floats, momentum: Floats) -> ParticleStack:
    rest = MASS[parents.kind]
    frame, parent_energy = parents.direction * parents.momentum[:, None], rest + parents.energy
    along = (momentum * frame).sum(axis=1) / (rest * (parent_energy + rest)) + energy / rest
    moved = momentum + frame * along[:, None]
    size = np.linalg.norm(moved, axis=1)
    mass = MASS[kind]
    kinetic = np.where(mass > 0, np.sqrt(size**2 + mass**2) - mass, size)
    return parents.make(kind, kinetic, moved / np.maximum(size, 1e-12)[:, None])
