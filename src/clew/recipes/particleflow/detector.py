"""A parametric detector of the kind of Delphes' CMS card: particles of a collision in, towers and tracks out.

The calorimeter is a cylinder (CALORIMETER) in a field of 3.8 T; particles go there on helices or straight, and leave
their energy in the tower they meet: photons and electrons in its electromagnetic half, hadrons in the other, no muons.
Both halves have a resolution, a least energy and a least significance. Charged particles with |eta| < 2.5 become tracks
with an efficiency, the momentum smeared, directions exact.

Targets are made by `truth`, of towers by the particles without a track. Units: GeV, m, radians.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.random import Generator as Random
from numpy.typing import NDArray
from pydantic import Field

from clew import Section
from clew.recipes.particleflow.columns import ELECTRON, FEATURES, MUON, PHOTON, TOWER, TRACK
from clew.recipes.particleflow.truth import TRACKER, Particles, of_towers, of_tracks

Array = NDArray[Any]

BEND = 0.299792458 * 3.8
"""GeV of transverse momentum for a metre of radius."""
CALORIMETER = (1.29, 3.0)
"""Radius and half-length."""
_FINE = np.arange(21) * 0.087
_COARSE = (1.83, 1.93, 2.043, 2.172, 2.322, 2.5, 2.65, 2.868, 2.95, 3.125, 3.3, 3.475, 3.65, 3.825, 4.0, 4.175)
_HALF = np.array([*_FINE, *_COARSE, 4.35, 4.525, 4.7, 5.0])
EDGES = np.concatenate([-_HALF[:0:-1], _HALF])
"""Of towers in eta; they are 5 degrees wide in phi up to 1.74, 10 beyond."""
ROWS = np.where(np.abs(EDGES[:-1] + EDGES[1:]) / 2 < 1.74, 72, 36)
"""Towers around, at each eta."""
FIRST = np.append(0, np.cumsum(ROWS))
"""The number of the first tower at each eta; the last is the number of towers."""
SOFT_LEPTONS = 0.3
"""Chance of a track for electrons and muons under 1 GeV. Less than in the card: so many as published are left."""
LEAST_NEUTRAL = 9.0
"""Energy of a neutral hadron that is still a target."""


class Detector(Section):
    """What of the detector can be set."""

    least_pt: Annotated[float, Field(ge=0)] = 0.44
    """Of tracks, as measured; below it there are none."""
    electromagnetic: Annotated[float, Field(ge=0)] = 0.5
    """Least energy of the electromagnetic half of a tower."""
    hadronic: Annotated[float, Field(ge=0)] = 1.0
    """Least energy of the other half."""
    electromagnetic_significance: Annotated[float, Field(ge=0)] = 1.0
    """Least energy of the electromagnetic half, in units of its resolution."""
    hadronic_significance: Annotated[float, Field(ge=0)] = 2.0
    """Least energy of the other half, in units of its resolution."""


class Seen(NamedTuple):
    """An event: elements (n, 12) and targets (n, 7), towers first, then tracks; see `columns`."""

    elements: NDArray[np.float32]
    targets: NDArray[np.float32]


class _Exit(NamedTuple):
    """Where particles meet the calorimeter."""

    eta: Array
    phi: Array


def observe(particles: Particles, z: Array, settings: Detector, random: Random) -> Seen:
    """What the detector makes of the particles of an event; `z` is where along the beam each comes from."""
    out = _propagated(particles, z)
    tracked = _tracked(particles, random)
    tracks, tracked = _tracks(particles, out, tracked, settings, random)
    towers = _towers(particles, out, tracked, settings, random)
    return Seen(*(np.concatenate(pair) for pair in zip(towers, tracks, strict=True)))


def _propagated(particles: Particles, z: Array) -> _Exit:
    """On a helix, turned by half the angle that the particle has flown around its centre when it leaves."""
    radius, length = CALORIMETER
    pt, slope = particles.pt, np.sinh(particles.eta)
    curve = np.where(particles.charge == 0, np.float32(1e6), pt / np.float32(BEND))
    ahead = np.maximum(np.where(slope > 0, length - z, length + z), 0) / np.maximum(np.abs(slope), 1e-6)
    around = np.where(radius > 2 * curve, np.inf, np.arcsin(np.minimum(radius / (2 * curve), 1)))
    half = np.minimum(around, ahead / (2 * curve))
    away = 2 * curve * np.sin(half)
    far = np.maximum(np.abs(away), 1e-6)
    eta = np.arcsinh((z + slope * 2 * curve * half) / far)
    phi = particles.phi - particles.charge * half + np.where(away < 0, np.float32(np.pi), np.float32(0))
    return _Exit(eta.astype(np.float32), _turned(phi).astype(np.float32))


def _tracked(particles: Particles, random: Random) -> Array:
    """Which particles leave a track: the efficiencies of the card."""
    pt, eta = particles.pt, np.abs(particles.eta)
    hard = np.where(eta < 1.5, 0.95, 0.85)
    chance = np.where(pt < 1, np.where(eta < 1.5, 0.70, 0.60), hard)
    muon, electron = particles.kind == MUON, particles.kind == ELECTRON
    chance[(muon | electron) & (pt < 1)] = SOFT_LEPTONS
    chance[muon & (pt >= 1)] = 0.98
    chance[(particles.charge == 0) | (pt < 0.1) | (eta >= TRACKER)] = 0
    return random.random(len(pt), dtype=np.float32) < chance


def _tracks(particles: Particles, out: _Exit, tracked: Array, settings: Detector, random: Random) -> tuple[Seen, Array]:
    """Tracks, and which particles they are of."""
    rows = np.flatnonzero(tracked)
    own = particles.take(rows)
    eta = np.abs(own.eta)
    floor = np.select([eta < 0.5, eta < 1.5], [0.01, 0.015], 0.025)
    slope = np.select([eta < 0.5, eta < 1.5], [1e-4, 1.5e-4], 3.5e-4)
    pt = own.pt * np.exp(np.hypot(floor, slope * own.pt) * random.standard_normal(len(rows)))
    keep = pt > settings.least_pt
    rows, own, pt = rows[keep], own.take(keep), pt[keep]
    found = np.zeros_like(tracked)
    found[rows] = True
    elements = np.stack(
        [
            np.full(len(rows), TRACK),
            pt,
            own.eta,
            np.sin(own.phi),
            np.cos(own.phi),
            pt * np.cosh(own.eta),
            out.eta[rows],
            np.sin(out.phi[rows]),
            np.cos(out.phi[rows]),
            own.charge,
            own.kind == MUON,
            own.kind == ELECTRON,
        ],
        axis=1,
    )
    return Seen(elements.astype(np.float32), of_tracks(own)), found


def _towers(particles: Particles, out: _Exit, tracked: Array, settings: Detector, random: Random) -> Seen:
    rows = np.flatnonzero((np.abs(out.eta) < EDGES[-1]) & (particles.kind != MUON))
    cell, own = _cell(out.eta[rows], out.phi[rows]), particles.take(rows)
    light = (own.kind == PHOTON) | (own.kind == ELECTRON)
    em, had = (np.bincount(cell[which], own.energy[which], minlength=FIRST[-1]) for which in (light, ~light))
    eta, phi, edges = _centres()
    em = _measured(em, _em_resolution, eta, settings.electromagnetic, settings.electromagnetic_significance, random)
    had = _measured(had, _had_resolution, eta, settings.hadronic, settings.hadronic_significance, random)
    kept = np.flatnonzero(em + had > 0)
    alone = ~tracked[rows]
    targets = of_towers(own.take(alone), cell[alone], FIRST[-1], least_neutral=LEAST_NEUTRAL)[kept]
    blur = random.random((2, len(kept))) - 0.5
    eta = eta[kept] + blur[0] * edges[0][kept]
    phi = phi[kept] + blur[1] * edges[1][kept]
    energy, zero = (em + had)[kept], np.zeros(len(kept))
    told = [
        np.full(len(kept), TOWER),
        energy / np.cosh(eta),
        eta,
        np.sin(phi),
        np.cos(phi),
        energy,
        em[kept],
        had[kept],
    ]
    elements = np.stack([*told, *[zero] * (FEATURES - len(told))], axis=1)
    return Seen(elements.astype(np.float32), targets)


def _cell(eta: Array, phi: Array) -> Array:
    """The number of the tower at a place."""
    row: Array = np.clip(np.searchsorted(EDGES, eta, side="right") - 1, 0, len(ROWS) - 1)
    around = ((phi + np.pi) * (ROWS[row] / (2 * np.pi))).astype(np.int64)
    cell: Array = FIRST[row] + np.minimum(around, ROWS[row] - 1)
    return cell


def _centres() -> tuple[Array, Array, tuple[Array, Array]]:
    """Of towers: eta, phi, and how wide they are in both."""
    row = np.repeat(np.arange(len(ROWS)), ROWS)
    width = 2 * np.pi / ROWS[row]
    phi = (np.arange(len(row)) - FIRST[row] + 0.5) * width - np.pi
    return ((EDGES[1:] + EDGES[:-1]) / 2)[row], phi, (np.diff(EDGES)[row], width)


def _measured(energy: Array, resolution: Any, eta: Array, least: float, significance: float, random: Random) -> Array:
    """Energies with the resolution of a half, log-normal so that none is negative; 0 where it is too little."""
    sigma = resolution(energy, eta)
    width = np.sqrt(np.log1p((sigma / np.maximum(energy, 1e-9)) ** 2))
    smeared: Array = energy * np.exp(width * random.standard_normal(len(energy)) - width**2 / 2)
    smeared[(smeared < least) | (smeared < significance * resolution(smeared, eta))] = 0
    return smeared


def _em_resolution(energy: Array, eta: Array) -> Array:
    eta = np.abs(eta)
    inner = np.sqrt((0.008 * energy) ** 2 + 0.11**2 * energy + 0.40**2)
    factor = np.where(eta <= 1.5, 1 + 0.64 * eta**2, 2.16 + 5.6 * (eta - 2) ** 2)
    return np.where(eta <= TRACKER, factor * inner, np.sqrt((0.107 * energy) ** 2 + 2.08**2 * energy))


def _had_resolution(energy: Array, eta: Array) -> Array:
    central = np.abs(eta) <= 3
    return np.where(
        central, np.hypot(0.05 * energy, 1.5 * np.sqrt(energy)), np.hypot(0.11 * energy, 2.8 * np.sqrt(energy))
    )


def _turned(phi: Array) -> Array:
    return (phi + np.pi) % (2 * np.pi) - np.pi
