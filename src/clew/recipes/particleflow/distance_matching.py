"""Targets of files without links between elements and true particles: both are matched by distance.

A charged particle is matched to a track of the same charge if each is the nearest of the other in direction and
momentum, within a distance and half the momentum of the particle. All other particles except muons are added to the
nearest tower within a distance.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from clew.recipes.particleflow.columns import MUON, TARGET
from clew.recipes.particleflow.targets import Array, VisibleParticles, tower_targets, track_targets

NEUTRINOS = (12, 14, 16)
"""PDG numbers of particles that no detector sees."""


class MatchDistances(NamedTuple):
    """Largest distances in eta-phi between a particle and its track or tower."""

    track: float = 0.02
    tower: float = 0.05


DEFAULT_DISTANCES = MatchDistances()


class EventParticles(NamedTuple):
    """Particles of several events, and the event of each, in rising order."""

    particles: VisibleParticles
    event: Array

    def take(self, rows: Any) -> EventParticles:
        """Return the particles of the given rows."""
        return EventParticles(self.particles.take(rows), self.event[rows])


def match_targets(
    elements: EventParticles, track: Array, particles: EventParticles, distances: MatchDistances = DEFAULT_DISTANCES
) -> Array:
    """Return the targets (n, 7) of elements, matched event by event.

    Args:
        elements: The momenta of tracks and towers.
        track: Which of them are tracks.
        particles: The visible true particles.
        distances: The largest distances of a match.
    """
    rows = np.zeros((len(track), TARGET), dtype=np.float32)
    for event in np.unique(elements.event):
        here, true = (
            slice(*np.searchsorted(each.event, (event, event + 1)).tolist()) for each in (elements, particles)
        )
        rows[here] = _event_targets(
            elements.particles.take(here), track[here], particles.particles.take(true), distances
        )
    return rows


def _event_targets(
    elements: VisibleParticles, track: Array, particles: VisibleParticles, distances: MatchDistances
) -> Array:
    rows = np.zeros((len(track), TARGET), dtype=np.float32)
    tracks, towers = np.flatnonzero(track), np.flatnonzero(~track)
    matched_particles, matched_tracks = match_tracks(particles, elements.take(tracks), distances.track)
    rows[tracks[matched_tracks]] = track_targets(particles.take(matched_particles))
    unmatched = particles.kind != MUON
    unmatched[matched_particles] = False
    rest = particles.take(unmatched)
    if len(towers) and len(rest.pt):
        distance = _distance(rest, elements.take(towers))
        nearest, near = distance.argmin(axis=1), distance.min(axis=1) < distances.tower
        rows[towers] = tower_targets(rest.take(near), nearest[near], len(towers))
    return rows


def match_tracks(particles: VisibleParticles, tracks: VisibleParticles, max_distance: float) -> tuple[Array, Array]:
    """Return the indices of charged particles and of their tracks, for pairs that are nearest to each other."""
    if not len(particles.pt) or not len(tracks.pt):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    momentum_error = np.abs(tracks.pt[None] / np.maximum(particles.pt[:, None], 1e-9) - 1)
    separation = _distance(particles, tracks)
    cost = separation / max_distance + momentum_error
    cost[(particles.charge[:, None] != tracks.charge[None]) | (separation > max_distance) | (momentum_error > 0.5)] = (
        np.inf
    )
    nearest_track, nearest_particle = cost.argmin(axis=1), cost.argmin(axis=0)
    matched = np.flatnonzero(
        (nearest_particle[nearest_track] == np.arange(len(nearest_track))) & np.isfinite(cost.min(axis=1))
    )
    return matched, nearest_track[matched]


def _distance(one: VisibleParticles, other: VisibleParticles) -> Array:
    """Return the distance in eta-phi of all pairs."""
    delta_phi = np.abs(one.phi[:, None] - other.phi[None])
    return np.asarray(np.hypot(one.eta[:, None] - other.eta[None], np.minimum(delta_phi, 2 * np.pi - delta_phi)))
