"""A parametric detector similar to the CMS card of Delphes: particles in, calorimeter towers and tracks out.

The calorimeter is a cylinder (CALORIMETER) in a field of 3.8 T. Particles reach it on helices or straight lines and
deposit their energy in the tower that they hit: photons and electrons in the electromagnetic part, hadrons in the
hadronic part. Muons deposit no energy. `calorimeter` makes the towers. Charged particles with |eta| < 2.5 become tracks
with an efficiency below one. The momentum of tracks is smeared, their directions are exact.

`targets` makes the targets; those of towers are made of the particles without a track. Units: GeV, m, radians.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.random import Generator as Random
from numpy.typing import NDArray
from pydantic import Field

from clew import Section
from clew.recipes.particleflow.calorimeter import COARSE_GRID, make_towers
from clew.recipes.particleflow.columns import ELECTRON, MUON, TRACK
from clew.recipes.particleflow.targets import TRACKER_ETA, VisibleParticles, track_targets

Array = NDArray[Any]

GEV_PER_METRE = 0.299792458 * 3.8
"""Transverse momentum per radius of curvature, GeV/m."""
CALORIMETER = (1.29, 3.0)
"""Radius and half-length, m."""
SOFT_LEPTON_EFFICIENCY = 0.3
"""Track efficiency of electrons and muons below 1 GeV. It is lower than in the card, to match the published counts."""


class ParticleFlowDetectorConfig(Section):
    """Layout of the calorimeter, and thresholds of the detector."""

    calorimeter: Literal["separate", "combined"] = "separate"
    """`separate`: electromagnetic and hadronic towers are elements of their own, the former fine, as in the card of
    the public Delphes set. `combined`: both parts have the same coarse towers, and a tower is one element."""
    min_track_pt: Annotated[float, Field(ge=0)] = 0.44
    """Minimum measured pT of tracks, GeV."""
    min_em_energy: Annotated[float, Field(ge=0)] = 0.5
    """Minimum energy of the electromagnetic part of a tower, GeV."""
    min_hadronic_energy: Annotated[float, Field(ge=0)] = 1.0
    """Minimum energy of the hadronic part of a tower, GeV."""
    min_em_significance: Annotated[float, Field(ge=0)] = 2.0
    """Minimum energy of the electromagnetic part, in units of its resolution."""
    min_hadronic_significance: Annotated[float, Field(ge=0)] = 2.0
    """Minimum energy of the hadronic part, in units of its resolution."""


class DetectorEvent(NamedTuple):
    """A detected event: elements (n, 12) and targets (n, 7), towers first, then tracks; see `columns`."""

    elements: NDArray[np.float32]
    targets: NDArray[np.float32]


class _CalorimeterPosition(NamedTuple):
    """Directions of the points where particles reach the calorimeter."""

    eta: Array
    phi: Array


def simulate_detector(
    particles: VisibleParticles, z: Array, settings: ParticleFlowDetectorConfig, random: Random
) -> DetectorEvent:
    """Simulate the detector for the particles of one event.

    Args:
        particles: The particles.
        z: Position along the beam from which each particle comes, m.
        settings: Layout and thresholds of the detector.
        random: Random number generator of the event.
    """
    exit_ = propagate(particles, z)
    tracked = _has_track(particles, random)
    tracks, tracked = _make_tracks(particles, exit_, tracked, settings, random)
    towers = _make_towers(particles, exit_, tracked, settings, random)
    return DetectorEvent(*(np.concatenate(pair) for pair in zip(towers, tracks, strict=True)))


def propagate(particles: VisibleParticles, z: Array) -> _CalorimeterPosition:
    """Return where particles reach the calorimeter.

    On a helix, the direction of the exit point differs from that of the momentum by half the angle that the particle
    has turned around the centre of the helix.
    """
    radius, length = CALORIMETER
    pt, slope = particles.pt, np.sinh(particles.eta)
    curve = np.where(particles.charge == 0, np.float32(1e6), pt / np.float32(GEV_PER_METRE))
    ahead = np.maximum(np.where(slope > 0, length - z, length + z), 0) / np.maximum(np.abs(slope), 1e-6)
    around = np.where(radius > 2 * curve, np.inf, np.arcsin(np.minimum(radius / (2 * curve), 1)))
    half = np.minimum(around, ahead / (2 * curve))
    away = 2 * curve * np.sin(half)
    far = np.maximum(np.abs(away), 1e-6)
    eta = np.arcsinh((z + slope * 2 * curve * half) / far)
    phi = particles.phi - particles.charge * half + np.where(away < 0, np.float32(np.pi), np.float32(0))
    return _CalorimeterPosition(eta.astype(np.float32), _wrap_phi(phi).astype(np.float32))


def _has_track(particles: VisibleParticles, random: Random) -> Array:
    """Return which particles leave a track, with the efficiencies of the card."""
    pt, eta = particles.pt, np.abs(particles.eta)
    hard = np.where(eta < 1.5, 0.95, 0.85)
    chance = np.where(pt < 1, np.where(eta < 1.5, 0.70, 0.60), hard)
    muon, electron = particles.kind == MUON, particles.kind == ELECTRON
    chance[(muon | electron) & (pt < 1)] = SOFT_LEPTON_EFFICIENCY
    chance[muon & (pt >= 1)] = 0.98
    chance[(particles.charge == 0) | (pt < 0.1) | (eta >= TRACKER_ETA)] = 0
    return random.random(len(pt), dtype=np.float32) < chance


def _make_tracks(
    particles: VisibleParticles,
    exit_: _CalorimeterPosition,
    tracked: Array,
    settings: ParticleFlowDetectorConfig,
    random: Random,
) -> tuple[DetectorEvent, Array]:
    """Return the tracks, and a mask of the particles that have one."""
    rows = np.flatnonzero(tracked)
    particles_of_tracks = particles.take(rows)
    eta = np.abs(particles_of_tracks.eta)
    floor = np.select([eta < 0.5, eta < 1.5], [0.01, 0.015], 0.025)
    slope = np.select([eta < 0.5, eta < 1.5], [1e-4, 1.5e-4], 3.5e-4)
    pt = particles_of_tracks.pt * np.exp(
        np.hypot(floor, slope * particles_of_tracks.pt) * random.standard_normal(len(rows))
    )
    keep = pt > settings.min_track_pt
    rows, particles_of_tracks, pt = rows[keep], particles_of_tracks.take(keep), pt[keep]
    measured = np.zeros_like(tracked)
    measured[rows] = True
    elements = np.stack(
        [
            np.full(len(rows), TRACK),
            pt,
            particles_of_tracks.eta,
            np.sin(particles_of_tracks.phi),
            np.cos(particles_of_tracks.phi),
            pt * np.cosh(particles_of_tracks.eta),
            exit_.eta[rows],
            np.sin(exit_.phi[rows]),
            np.cos(exit_.phi[rows]),
            particles_of_tracks.charge,
            particles_of_tracks.kind == MUON,
            particles_of_tracks.kind == ELECTRON,
        ],
        axis=1,
    )
    return DetectorEvent(elements.astype(np.float32), track_targets(particles_of_tracks)), measured


def _make_towers(
    particles: VisibleParticles,
    exit_: _CalorimeterPosition,
    tracked: Array,
    settings: ParticleFlowDetectorConfig,
    random: Random,
) -> DetectorEvent:
    rows = np.flatnonzero((np.abs(exit_.eta) < COARSE_GRID.eta_edges[-1]) & (particles.kind != MUON))
    position = (exit_.eta[rows], exit_.phi[rows])
    return DetectorEvent(*make_towers(particles.take(rows), position, tracked[rows], settings, random))


def _wrap_phi(phi: Array) -> Array:
    return (phi + np.pi) % (2 * np.pi) - np.pi
