"""Decays, in flight or at rest: phase space of two or three bodies, and the spectrum of Michel electrons."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from clew.recipes.lartpc.generate import particles as p
from clew.recipes.lartpc.generate.particles import MASS, Floats, Ints, Stack

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
"""Shares and products. What is left out is below a percent; shares are scaled to add up to 1."""
_MIRROR = {p.PION_PLUS: p.PION_MINUS, p.ANTIMUON: p.MUON, p.POSITRON: p.ELECTRON, p.KAON_PLUS: p.KAON_MINUS}
_MIRROR |= {other: one for one, other in _MIRROR.items()}
MICHEL_END = (MASS[p.MUON] ** 2 + p.ELECTRON_MASS**2) / (2 * MASS[p.MUON])
"""Highest energy of the electron of a muon at rest, 52.8 MeV."""


def products(kind: int) -> tuple[tuple[float, tuple[int, ...]], ...]:
    """The channels of a kind; those of antiparticles are mirrored."""
    if kind in CHANNELS:
        return CHANNELS[kind]
    return tuple((share, tuple(_MIRROR.get(each, each) for each in made)) for share, made in CHANNELS[_MIRROR[kind]])


def decay(rng: Generator, stack: Stack) -> Stack:
    """What particles decay to, neutrinos left out."""
    made = [stack[np.zeros(0, dtype=np.int64)]]
    for kind in np.unique(stack.kind).tolist():
        own = stack[stack.kind == kind]
        if kind in (p.MUON, p.ANTIMUON):
            made.append(_michel(rng, own))
            continue
        shares = np.array([share for share, _ in products(kind)])
        channel = np.searchsorted(np.cumsum(shares) / shares.sum(), rng.random(len(own)), side="right")
        for place, (_, daughters) in enumerate(products(kind)):
            made.append(_phase_space(rng, own[channel == place], daughters))
    return p.join(made)


def _michel(rng: Generator, muons: Stack) -> Stack:
    share = michel(rng, len(muons))
    energy = np.maximum(share * MICHEL_END, 1.01 * p.ELECTRON_MASS)
    momentum = np.sqrt(energy**2 - p.ELECTRON_MASS**2)[:, None] * p.isotropic(rng, len(muons))
    kind = np.where(muons.kind == p.MUON, p.ELECTRON, p.POSITRON)
    return _boosted(muons, kind, energy, momentum)


def michel(rng: Generator, size: int) -> Floats:
    """Energies over their end point, by x^2 (3 - 2x): drawn by 3x^2, kept by 1 - 2x/3."""
    found = rng.random(size) ** (1 / 3)
    again = rng.random(size) > 1 - 2 * found / 3
    while again.any():
        new = rng.random(int(again.sum())) ** (1 / 3)
        found[again] = new
        again[again] = rng.random(len(new)) > 1 - 2 * new / 3
    return found


def _phase_space(rng: Generator, parents: Stack, daughters: Sequence[int]) -> Stack:
    size, masses = len(parents), MASS[list(daughters)]
    whole = MASS[parents.kind]
    if len(daughters) == 2:
        pair = p.isotropic(rng, size) * _momentum(whole, masses[0], masses[1])[:, None]
        momenta = [pair, -pair]
    else:
        momenta = _three(rng, whole, masses)
    made = []
    for kind, mass, momentum in zip(daughters, masses, momenta, strict=True):
        if kind != NU:
            energy = np.sqrt(mass**2 + (momentum**2).sum(axis=1))
            made.append(_boosted(parents, np.full(size, kind), energy, momentum))
    return p.join(made)


def _momentum(whole: Floats, first: Floats | float, second: Floats | float) -> Floats:
    """Of each of two bodies, in the frame where they are at rest together."""
    inner = (whole**2 - (first + second) ** 2) * (whole**2 - (first - second) ** 2)
    return np.sqrt(np.maximum(inner, 0)) / (2 * whole)


def _three(rng: Generator, whole: Floats, masses: Floats) -> list[Floats]:
    """Momenta of three bodies, every state equally likely: by the mass of the first two together."""
    low, high = masses[0] + masses[1], whole - masses[2]
    pair, todo = np.zeros(len(whole)), np.arange(len(whole))
    grid = np.linspace(low, high.max(initial=low), 200)
    top = whole.max(initial=high.max(initial=low) + masses[2])
    limit = 1.05 * (_momentum(top, grid, masses[2]) * _momentum(grid, masses[0], masses[1])).max()
    while len(todo):
        pair[todo] = rng.uniform(low, high[todo])
        weight = _momentum(whole[todo], pair[todo], masses[2]) * _momentum(pair[todo], masses[0], masses[1])
        todo = todo[rng.random(len(todo)) * limit > weight]
    third = p.isotropic(rng, len(whole)) * _momentum(whole, pair, masses[2])[:, None]
    inner = p.isotropic(rng, len(whole)) * _momentum(pair, masses[0], masses[1])[:, None]
    frame = np.sqrt(pair**2 + (third**2).sum(axis=1))
    return [
        *(_moved(each, mass, -third, frame, pair) for each, mass in ((inner, masses[0]), (-inner, masses[1]))),
        third,
    ]


def _moved(momentum: Floats, mass: float, frame: Floats, energy: Floats, rest: Floats) -> Floats:
    """Momenta seen from where the frame they are given in has this momentum, energy and mass."""
    own = np.sqrt(mass**2 + (momentum**2).sum(axis=1))
    along = (momentum * frame).sum(axis=1) / (rest * (energy + rest)) + own / rest
    return np.asarray(momentum + frame * along[:, None])


def _boosted(parents: Stack, kind: Ints, energy: Floats, momentum: Floats) -> Stack:
    rest = MASS[parents.kind]
    frame, whole = parents.direction * parents.momentum[:, None], rest + parents.energy
    along = (momentum * frame).sum(axis=1) / (rest * (whole + rest)) + energy / rest
    moved = momentum + frame * along[:, None]
    size = np.linalg.norm(moved, axis=1)
    mass = MASS[kind]
    kinetic = np.where(mass > 0, np.sqrt(size**2 + mass**2) - mass, size)
    return parents.make(kind, kinetic, moved / np.maximum(size, 1e-12)[:, None])
