"""Parametrised showers: gamma profiles with correlated fluctuations, and spots of energy around the axis.

The formulas are those of Grindhammer and Peters (hep-ex/0001020) for homogeneous media, with the numbers of a mixture
of tungsten and silicon; sampling fluctuations are added per layer. Depth in radiation lengths, radius in Moliere radii.
Pions follow a simple model: a start point, an electromagnetic and a hadronic profile. It is not a simulation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.random import Generator as Random
from numpy.typing import NDArray
from scipy.special import gammainc

from clew.recipes.fastsim.generate import materials as m
from clew.recipes.fastsim.geometry import CylinderLayer, Geometry

Floats = NDArray[np.float64]
PAIR_LENGTH = 9 / 7
"""Mean depth at which a photon converts, radiation lengths."""
SPOT_SHAPE = 2.0
"""Shape of the gamma distribution of the energy of a spot."""


class Particles(NamedTuple):
    """Particles that hit the calorimeter."""

    energy: Floats
    """MeV."""
    theta: Floats
    """Angle to the axis, radians."""
    phi: Floats
    """Azimuth, radians."""


class Profile(NamedTuple):
    """Energy and number of spots of each layer, (showers, layers), and the depth of the maximum of each shower."""

    energy: Floats
    spots: Floats
    maximum: Floats
    """Radiation lengths after `start`."""
    start: Floats
    """Depth where the shower starts, radiation lengths."""


def make_showers(particle: str, particles: Particles, geometry: Geometry, random: Random) -> Floats:
    """Generate one shower for each particle.

    Args:
        particle: `electron`, `photon` or `pion`.
        particles: Energies and directions.
        geometry: 45 equal layers of rings and angles.
        random: The random numbers.

    Returns:
        Energies of voxels in MeV (showers, voxels). Voxels below the threshold are 0.
    """
    if particle == "pion":
        showers = _pion_showers(particles, geometry, random)
    else:
        start = random.exponential(PAIR_LENGTH, len(particles.energy)) if particle == "photon" else None
        showers = _add_spots(_shower_profile(particles, start, random), particles, geometry, random)
    return np.where(showers < m.THRESHOLD, 0.0, showers)


def longitudinal_parameters(energy: Floats, random: Random) -> tuple[Floats, Floats]:
    """Draw the depth of the maximum T (radiation lengths) and the shape alpha of each shower."""
    log_y = np.log(np.maximum(energy / m.CRITICAL_ENERGY, np.exp(1.4)))
    mean_t, mean_a = np.log(log_y - 0.812), np.log(0.81 + (0.458 + 2.26 / m.Z) * log_y)
    sigma_t = 1 / np.maximum(-1.4 + 1.26 * log_y, 2.0)
    sigma_a = 1 / np.maximum(-0.58 + 0.86 * log_y, 2.0)
    rho = 0.705 - 0.023 * log_y
    normal = random.standard_normal((2, len(energy)))
    plus, minus = np.sqrt((1 + rho) / 2), np.sqrt((1 - rho) / 2)
    maximum = np.exp(mean_t + sigma_t * (plus * normal[0] + minus * normal[1]))
    alpha = np.exp(mean_a + sigma_a * (plus * normal[0] - minus * normal[1]))
    return maximum, np.maximum(alpha, 1.05)


def _shower_profile(particles: Particles, start: Floats | None, random: Random) -> Profile:
    energy = particles.energy
    maximum, alpha = longitudinal_parameters(energy, random)
    start = np.zeros(len(energy)) if start is None else start
    edges = np.arange(m.LAYERS + 1) * m.LAYER_X0 / np.cos(particles.theta)[:, None]
    depth = np.maximum(edges - start[:, None], 0.0)
    beta = (alpha - 1) / maximum
    share = np.diff(gammainc(alpha[:, None], beta[:, None] * depth), axis=1)
    spot_alpha = np.maximum(alpha * (0.639 + 0.00334 * m.Z), 1.05)
    spot_beta = (spot_alpha - 1) / (maximum * (0.698 + 0.00212 * m.Z))
    spot_share = np.diff(gammainc(spot_alpha[:, None], spot_beta[:, None] * depth), axis=1)
    spots = 93 * np.log(m.Z) * (energy / 1000) ** 0.876
    return Profile(m.RESPONSE * energy[:, None] * share, spots[:, None] * spot_share, maximum, start)


def _sampled(energy: Floats, random: Random) -> Floats:
    """Energies with sampling fluctuations: a gamma distribution whose relative width is c / sqrt(E / GeV)."""
    shape = np.maximum(energy / 1000 / m.SAMPLING_TERM**2, 1e-6)
    return random.standard_gamma(shape) * m.SAMPLING_TERM**2 * 1000


def _add_spots(profile: Profile, particles: Particles, geometry: Geometry, random: Random) -> Floats:
    """Distribute the energy of each layer over spots around the axis of the shower."""
    energy = _sampled(profile.energy, random)
    counts = np.maximum(random.poisson(profile.spots), (energy > m.THRESHOLD).astype(np.int64))
    shower, layer = (each.ravel() for each in np.indices(counts.shape))
    spot = np.repeat(np.arange(counts.size), counts.ravel())
    spot_shower, spot_layer = shower[spot], layer[spot]
    weight = random.standard_gamma(SPOT_SHAPE, len(spot))
    total = np.bincount(spot, weight, minlength=counts.size)
    spot_energy = weight * (energy.ravel() / np.where(total > 0, total, 1.0))[spot]
    depth = (spot_layer + 0.5) * m.LAYER_X0 / np.cos(particles.theta[spot_shower]) - profile.start[spot_shower]
    tau = np.maximum(depth, 0.05) / profile.maximum[spot_shower]
    radius = m.MOLIERE_RADIUS * _draw_radius(tau, particles.energy[spot_shower] / 1000, random)
    angle = random.uniform(0, 2 * np.pi, len(spot))
    offset = (spot_layer + 0.5) * m.LAYER_PITCH * np.tan(particles.theta[spot_shower])
    x = radius * np.cos(angle) + offset * np.cos(particles.phi[spot_shower])
    y = radius * np.sin(angle) + offset * np.sin(particles.phi[spot_shower])
    return _fill_voxels(spot_shower, spot_layer, x, y, spot_energy, (len(particles.energy), geometry))


def _draw_radius(tau: Floats, energy: Floats, random: Random) -> Floats:
    """Draw radii (Moliere radii) of spots at depths tau (in depths of the maximum) of showers of an energy (GeV)."""
    log_e = np.log(energy)
    core = 0.0251 + 0.00319 * log_e + (0.1162 - 0.000381 * m.Z) * tau
    k1, k2, k3, k4 = 0.659 - 0.00309 * m.Z, 0.645, -2.59, 0.3585 + 0.0412 * log_e
    tail = k1 * (np.exp(k3 * (tau - k2)) + np.exp(k4 * (tau - k2)))
    p1, p2 = 2.632 - 0.00094 * m.Z, 0.401 + 0.00187 * m.Z
    p3 = np.maximum(1.313 - 0.0686 * log_e, 0.3)
    power = np.clip((p2 - tau) / p3, -30, 30)
    core_share = np.clip(p1 * np.exp(power - np.exp(power)), 0.0, 1.0)
    scale = np.where(random.random(len(tau)) < core_share, core, tail)
    uniform = random.random(len(tau))
    return np.asarray(np.minimum(scale * np.sqrt(uniform / (1 - uniform)), 50.0))


def _fill_voxels(
    shower: NDArray[np.int64],
    layer: NDArray[np.int64],
    x: Floats,
    y: Floats,
    energy: Floats,
    shape: tuple[int, Geometry],
) -> Floats:
    """Sum the energies of spots in voxels. Spots outside the last ring are lost."""
    count, geometry = shape
    first = geometry.layers[0]
    assert isinstance(first, CylinderLayer)
    rings = len(first.radial_edges) - 1
    ring = np.searchsorted(first.radial_edges, np.hypot(x, y), side="right") - 1
    angular = (np.arctan2(y, x) % (2 * np.pi) / (2 * np.pi) * first.angular_bins).astype(np.int64) % first.angular_bins
    inside = ring < rings
    voxel = (layer * first.angular_bins + angular) * rings + ring
    place = (shower * geometry.voxels + voxel)[inside]
    sums = np.bincount(place, energy[inside], minlength=count * geometry.voxels)
    return sums.astype(np.float64).reshape(count, geometry.voxels)


def _pion_showers(particles: Particles, geometry: Geometry, random: Random) -> Floats:
    """Charged pions: a track to the first interaction, then an electromagnetic and a hadronic shower."""
    count = len(particles.energy)
    start = random.exponential(m.INTERACTION_LENGTH, count) / m.X0  # radiation lengths
    fraction = np.clip(1 - (particles.energy / 1000) ** -0.18 + random.normal(0, 0.15, count), 0.02, 0.95)
    electromagnetic = particles._replace(energy=np.maximum(particles.energy * fraction, 1.0))
    profile = _shower_profile(electromagnetic, start, random)
    alpha, beta = 1.5, 1.0 / (m.INTERACTION_LENGTH / m.X0)  # a long profile, in radiation lengths
    edges = np.arange(m.LAYERS + 1) * m.LAYER_X0 / np.cos(particles.theta)[:, None]
    share = np.diff(gammainc(alpha, beta * np.maximum(edges - start[:, None], 0.0)), axis=1)
    hadronic = 0.6 * m.RESPONSE * (particles.energy * (1 - fraction))[:, None] * share
    track = np.where(edges[:, 1:] <= start[:, None], m.MIP_ENERGY, 0.0)
    spots = profile.spots + hadronic / m.MIP_ENERGY + (track > 0)
    whole = Profile(profile.energy + hadronic, np.where(track > 0, 0.0, spots), profile.maximum, start)
    showers = _add_spots(whole, particles, geometry, random)
    return showers + _tracks(track, particles, geometry, random)


def _tracks(track: Floats, particles: Particles, geometry: Geometry, random: Random) -> Floats:
    """Energy of the particle itself in the layers before its shower."""
    shower, layer = np.nonzero(track)
    offset = np.asarray((layer + 0.5) * m.LAYER_PITCH * np.tan(particles.theta[shower]) + 0.5, dtype=np.float64)
    energy = track[shower, layer] * (0.75 + random.standard_gamma(1.0, len(shower)) * 0.25)
    x, y = offset * np.cos(particles.phi[shower]), offset * np.sin(particles.phi[shower])
    return _fill_voxels(shower, layer, x, y, energy, (len(particles.energy), geometry))
