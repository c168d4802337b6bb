"""Liquid argon: ranges and energy loss of particles, and cross-sections.

The constants are those of the Particle Data Group (87.3 K, 1.396 g/cm3). The energy loss is the Bethe formula with the
density effect of Sternheimer, for electrons with the Moller cross-section. Hadronic and photon cross-sections are
interpolated in short tables, which were set by hand near published measurements. They are accurate to about ten
percent, and they are not a fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from clew.recipes.lartpc.generate import particles
from clew.recipes.lartpc.generate.particles import DECAY_LENGTH, ELECTRON_MASS, MASS, Floats

DENSITY = 1.396
ATOMIC_NUMBER, ATOMIC_MASS = 18, 39.948
EXCITATION = 188.0e-6
RADIATION_LENGTH = 14.0
MOLIERE = 9.04
ATOM_DENSITY = 6.02214076e23 * DENSITY / ATOMIC_MASS * 1e-24
"""Atoms per cm and barn."""
COLLISION_LOSS = 0.307075 * DENSITY * ATOMIC_NUMBER / ATOMIC_MASS
"""K Z/A times the density, MeV/cm."""
STERNHEIMER = (5.2146, 0.2000, 3.0000, 0.19559, 3.0000)
"""C, x0, x1, a, k of the density effect."""

MIN_ENERGY, MAX_ENERGY = 0.01, 3e4
MIN_RADIATED_ENERGY = 0.5
"""Photons that an electron radiates below this energy (MeV) are not followed: the energy stays at its position."""

_HADRON_GRID = np.array([0.0, 30, 60, 100, 150, 200, 300, 400, 600, 1000, 2000, 20000])
INELASTIC = {
    particles.PION_MINUS: [0.10, 0.22, 0.36, 0.55, 0.68, 0.72, 0.68, 0.58, 0.52, 0.50, 0.47, 0.45],
    particles.PION_PLUS: [0.05, 0.18, 0.34, 0.53, 0.67, 0.71, 0.68, 0.58, 0.52, 0.50, 0.47, 0.45],
    particles.KAON_MINUS: [1.00, 0.95, 0.85, 0.75, 0.68, 0.64, 0.60, 0.58, 0.55, 0.52, 0.48, 0.45],
    particles.KAON_PLUS: [0.05, 0.14, 0.18, 0.20, 0.22, 0.24, 0.26, 0.29, 0.33, 0.36, 0.37, 0.37],
    particles.PROTON: [0.00, 0.35, 0.52, 0.52, 0.49, 0.48, 0.48, 0.48, 0.49, 0.52, 0.53, 0.53],
}
"""Inelastic cross-sections per argon nucleus, barn, at the kinetic energies of `_HADRON_GRID` in MeV."""
ELASTIC_RATIO = 0.5
"""Cross-section of elastic scattering on the nucleus, relative to inelastic."""

_PAIR_GRID = np.log([1.022, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 10000])
_PAIR_SHARE = [0, 0.02, 0.055, 0.14, 0.29, 0.45, 0.65, 0.77, 0.85, 0.92, 0.95, 1.0]
_RADIATED_GRID = np.log([0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0])
_RADIATED_SHARE = [0.30, 0.36, 0.65, 0.89, 0.97, 1.0]
"""Fraction of the energy radiated per radiation length, set by hand near stopping powers of water and aluminium."""


def beta_gamma(kind: int, energy: Floats) -> Floats:
    """Return momentum over mass at the given kinetic energies (MeV)."""
    ratio = energy / MASS[kind]
    return np.asarray(np.sqrt(ratio * (ratio + 2)))


def max_energy_transfer(kind: int | np.ndarray, energy: Floats) -> Floats:
    """Return the maximum energy that one collision transfers to an electron, MeV."""
    mass = MASS[kind]
    gamma = 1 + energy / mass
    ratio = ELECTRON_MASS / mass
    heavy = 2 * ELECTRON_MASS * (gamma**2 - 1) / (1 + 2 * gamma * ratio + ratio**2)
    return np.where(mass == ELECTRON_MASS, energy / 2, heavy)


def density_effect(momentum: Floats) -> Floats:
    """Return the density correction delta, from momentum over mass."""
    c, x0, x1, a, k = STERNHEIMER
    x = np.log10(momentum)
    high = 2 * np.log(10) * x - c
    return np.where(x < x0, 0.0, np.where(x < x1, high + a * np.maximum(x1 - x, 0) ** k, high))


def energy_loss(kind: int, energy: Floats) -> Floats:
    """Return the mean energy loss by collisions, MeV/cm, at the given kinetic energies (MeV)."""
    momentum = beta_gamma(kind, energy)
    beta2 = momentum**2 / (1 + momentum**2)
    delta = density_effect(momentum)
    if MASS[kind] == ELECTRON_MASS:
        gamma = 1 + energy / ELECTRON_MASS
        inner = ELECTRON_MASS * np.sqrt(momentum**2 * (gamma - 1) / 2) / EXCITATION
        rest = (1 - (2 * gamma - 1) / gamma**2 * np.log(2) + ((gamma - 1) / gamma) ** 2 / 8) / 2
        return np.asarray(np.maximum(COLLISION_LOSS / beta2 * (np.log(inner) + rest - delta / 2), 0.5))
    inner = 2 * ELECTRON_MASS * momentum**2 * max_energy_transfer(kind, energy) / EXCITATION**2
    bethe = COLLISION_LOSS / beta2 * (np.log(np.maximum(inner, 1.1)) / 2 - beta2 - delta / 2)
    return np.where(energy < _SLOWEST * MASS[kind], np.maximum(bethe, _PEAK), np.maximum(bethe, 1.0))


_SLOWEST, _PEAK = 1e-3, 300.0
"""The formula is not valid below a beta of 0.045: there the loss is set to about its maximum."""


def compton_cross_section(energy: Floats) -> Floats:
    """Return the Klein-Nishina cross-section per electron, barn."""
    a = np.maximum(energy, 1e-3) / ELECTRON_MASS
    log = np.log(1 + 2 * a)
    first = (1 + a) / a**2 * (2 * (1 + a) / (1 + 2 * a) - log / a)
    return 0.49893 * (first + log / (2 * a) - (1 + 3 * a) / (1 + 2 * a) ** 2)


def photon_rates(energy: Floats) -> tuple[Floats, Floats]:
    """Return the rates of conversions and of Compton scatters per cm. The first approaches 7/9 per radiation length."""
    share = np.interp(np.log(np.maximum(energy, 1e-3)), _PAIR_GRID, _PAIR_SHARE)
    return 7 / 9 / RADIATION_LENGTH * share, ATOM_DENSITY * ATOMIC_NUMBER * compton_cross_section(energy)


def radiation_rate(energy: Floats) -> Floats:
    """Return the number of photons above MIN_RADIATED_ENERGY that an electron radiates per cm."""
    total = energy + ELECTRON_MASS
    y = np.minimum(MIN_RADIATED_ENERGY / total, 1.0)
    spectrum_integral = 4 / 3 * (-np.log(y) - (1 - y)) + (1 - y**2) / 2
    share = np.interp(np.log(energy), _RADIATED_GRID, _RADIATED_SHARE)
    return np.where(energy > MIN_RADIATED_ENERGY, spectrum_integral * share / RADIATION_LENGTH, 0.0)


def inelastic_rate(kind: int, energy: Floats) -> Floats:
    """Return the rate of inelastic collisions with nuclei per cm."""
    return ATOM_DENSITY * np.interp(energy, _HADRON_GRID, INELASTIC[kind])


@dataclass(frozen=True)
class RangeTable:
    """Integrals from a kinetic energy to the stop of a charged particle. All increase with the energy."""

    energy: Floats
    range: Floats
    """cm."""
    depth: Floats
    """Mean number of discrete collisions (hadronic, or radiated photons)."""
    age: Floats
    """Proper time, in units of the mean life."""


@cache
def range_table(kind: int) -> RangeTable:
    """Return the range table of a kind of particle, from 0.01 MeV to 30 GeV."""
    energy = np.geomspace(MIN_ENERGY, MAX_ENERGY, 3000)
    slope = 1 / energy_loss(kind, energy)
    if kind in INELASTIC:
        rate = inelastic_rate(kind, energy) * (1 + ELASTIC_RATIO)
    else:
        rate = radiation_rate(energy) if MASS[kind] == ELECTRON_MASS else np.zeros_like(energy)
    ageing = 1 / (beta_gamma(kind, energy) * DECAY_LENGTH[kind])
    return RangeTable(energy, *(_integral(energy, slope * each) for each in (np.ones_like(energy), rate, ageing)))


def _integral(energy: Floats, slope: Floats) -> Floats:
    parts = np.diff(energy) * (slope[1:] + slope[:-1]) / 2
    return np.asarray(np.append(0.0, np.cumsum(parts)) + energy[0] * slope[0])
