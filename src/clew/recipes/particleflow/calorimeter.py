"""The calorimeter of the parametric detector: energies of particles in, towers with their targets out.

Two layouts:

- `separate`, that of the card of the public Delphes set: the electromagnetic part has fine towers (1 degree up to
  |eta| = 2.96), the hadronic part coarse ones (5 degrees up to 1.74, 10 beyond). Each part gives elements of its own,
  so an element is either electromagnetic or hadronic.
- `combined`: both parts have the coarse towers, and a tower with energy in both parts is one element.

Each part has a resolution, a minimum energy and a minimum significance. Units: GeV, radians.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.random import Generator as Random
from numpy.typing import NDArray

from clew.recipes.particleflow.columns import ELECTRON, FEATURES, PHOTON, TOWER
from clew.recipes.particleflow.targets import TRACKER_ETA, VisibleParticles, tower_targets

if TYPE_CHECKING:
    from clew.recipes.particleflow.detector import ParticleFlowDetectorConfig

Array = NDArray[Any]
Resolution = Callable[[Array, Array], Array]

MIN_NEUTRAL_ENERGY = 9.0
"""Minimum energy of a neutral hadron to be a target."""


@dataclass(frozen=True)
class TowerGrid:
    """A grid of towers in eta and phi. Towers are numbered row by row, from the smallest eta and phi."""

    eta_edges: Array
    """Edges of the rows in eta."""
    towers_per_row: Array
    """Number of towers in phi, for each row."""
    first_tower: Array
    """Number of the first tower of each row; the last entry is the number of towers."""

    @classmethod
    def of(cls, half_edges: Array, towers_per_row: Array) -> TowerGrid:
        """Make a grid that is symmetric in eta from the edges and the numbers of towers of its positive half."""
        edges = np.concatenate([-half_edges[:0:-1], half_edges])
        rows = np.concatenate([towers_per_row[::-1], towers_per_row])
        return cls(edges, rows, np.append(0, np.cumsum(rows)))

    @property
    def towers(self) -> int:
        """The number of towers."""
        return int(self.first_tower[-1])

    def index(self, eta: Array, phi: Array) -> Array:
        """Return the numbers of the towers at eta and phi."""
        row: Array = np.clip(np.searchsorted(self.eta_edges, eta, side="right") - 1, 0, len(self.towers_per_row) - 1)
        around = ((phi + np.pi) * (self.towers_per_row[row] / (2 * np.pi))).astype(np.int64)
        tower: Array = self.first_tower[row] + np.minimum(around, self.towers_per_row[row] - 1)
        return tower

    def centres(self, tower: Array) -> tuple[Array, Array]:
        """Return eta and phi of the centres of towers."""
        row = self._row(tower)
        phi = (tower - self.first_tower[row] + 0.5) * (2 * np.pi / self.towers_per_row[row]) - np.pi
        return ((self.eta_edges[1:] + self.eta_edges[:-1]) / 2)[row], phi

    def widths(self, tower: Array) -> tuple[Array, Array]:
        """Return the widths of towers in eta and phi."""
        row = self._row(tower)
        return np.diff(self.eta_edges)[row], 2 * np.pi / self.towers_per_row[row]

    def _row(self, tower: Array) -> Array:
        row: Array = np.searchsorted(self.first_tower, tower, side="right") - 1
        return row


_FORWARD = (3.125, 3.3, 3.475, 3.65, 3.825, 4.0, 4.175, 4.35, 4.525, 4.7, 5.0)
_END_CAP = (1.83, 1.93, 2.043, 2.172, 2.322, 2.5, 2.65, 2.868, 2.95)
COARSE_GRID = TowerGrid.of(np.array([*(np.arange(21) * 0.087), *_END_CAP, *_FORWARD]), np.repeat([72, 36], [20, 20]))
"""Towers of the hadronic part: 5 degrees wide in phi up to |eta| = 1.74, and 10 degrees beyond."""
FINE_GRID = TowerGrid.of(np.array([*(np.arange(171) * 0.0174), *_FORWARD]), np.repeat([360, 36], [170, 11]))
"""Towers of a separate electromagnetic part: 0.0174 x 1 degree up to |eta| = 2.96, as the hadronic part beyond."""


class _Deposits(NamedTuple):
    """Particles in one part of the calorimeter, and their towers."""

    particles: VisibleParticles
    tower: Array
    tracked: Array


def make_towers(
    particles: VisibleParticles,
    position: tuple[Array, Array],
    tracked: Array,
    settings: ParticleFlowDetectorConfig,
    random: Random,
) -> tuple[Array, Array]:
    """Return the elements (n, 12) and targets (n, 7) of the towers of one event.

    Args:
        particles: The particles that deposit energy within the grid.
        position: Eta and phi where they reach the calorimeter.
        tracked: Which of them have a track.
        settings: Layout and thresholds.
        random: Random number generator of the event.
    """
    electromagnetic = (particles.kind == PHOTON) | (particles.kind == ELECTRON)
    if settings.calorimeter == "combined":
        deposits = _Deposits(particles, COARSE_GRID.index(*position), tracked)
        return _combined_towers(deposits, electromagnetic, settings, random)
    parts = []
    for mask, part, grid in zip(
        (electromagnetic, ~electromagnetic), _parts(settings), (FINE_GRID, COARSE_GRID), strict=True
    ):
        tower = grid.index(position[0][mask], position[1][mask])
        parts.append(_separate_towers(_Deposits(particles.take(mask), tower, tracked[mask]), part, grid, random))
    elements, targets = (np.concatenate(pair) for pair in zip(*parts, strict=True))
    return elements, targets


class _Part(NamedTuple):
    """The measurement of one part of the calorimeter."""

    hadronic: bool
    resolution: Resolution
    min_energy: float
    min_significance: float

    def measure(self, energy: Array, eta: Array, random: Random) -> Array:
        """Smear energies with a log-normal distribution, which gives no negative values; 0 below the thresholds."""
        sigma = self.resolution(energy, eta)
        width = np.sqrt(np.log1p((sigma / np.maximum(energy, 1e-9)) ** 2))
        smeared: Array = energy * np.exp(width * random.standard_normal(len(energy)) - width**2 / 2)
        low = (smeared < self.min_energy) | (smeared < self.min_significance * self.resolution(smeared, eta))
        smeared[low] = 0
        return smeared


def _parts(settings: ParticleFlowDetectorConfig) -> Iterator[_Part]:
    yield _Part(False, em_resolution, settings.min_em_energy, settings.min_em_significance)
    yield _Part(True, hadronic_resolution, settings.min_hadronic_energy, settings.min_hadronic_significance)


def _separate_towers(deposits: _Deposits, part: _Part, grid: TowerGrid, random: Random) -> tuple[Array, Array]:
    """Return elements and targets of the towers of one part."""
    towers, place = np.unique(deposits.tower, return_inverse=True)
    energy = part.measure(
        np.bincount(place, deposits.particles.energy, minlength=len(towers)), grid.centres(towers)[0], random
    )
    nonzero, untracked = np.flatnonzero(energy > 0), ~deposits.tracked
    targets = tower_targets(
        deposits.particles.take(untracked), place[untracked], len(towers), min_neutral_energy=MIN_NEUTRAL_ENERGY
    )[nonzero]
    measured, none = energy[nonzero], np.zeros(len(nonzero))
    em, had = (none, measured) if part.hadronic else (measured, none)
    return _elements(grid, towers[nonzero], em, had, random), targets


def _combined_towers(
    deposits: _Deposits, electromagnetic: Array, settings: ParticleFlowDetectorConfig, random: Random
) -> tuple[Array, Array]:
    grid, untracked = COARSE_GRID, ~deposits.tracked
    towers = np.arange(grid.towers)
    em, had = (
        part.measure(
            np.bincount(deposits.tower[mask], deposits.particles.energy[mask], minlength=len(towers)),
            grid.centres(towers)[0],
            random,
        )
        for mask, part in zip((electromagnetic, ~electromagnetic), _parts(settings), strict=True)
    )
    nonzero = np.flatnonzero(em + had > 0)
    targets = tower_targets(
        deposits.particles.take(untracked),
        deposits.tower[untracked],
        len(towers),
        min_neutral_energy=MIN_NEUTRAL_ENERGY,
    )[nonzero]
    return _elements(grid, nonzero, em[nonzero], had[nonzero], random), targets


def _elements(grid: TowerGrid, tower: Array, em: Array, had: Array, random: Random) -> Array:
    """Return the elements of towers, at random positions within each tower."""
    offset = random.random((2, len(tower))) - 0.5
    eta, phi = (
        centre + shift * width
        for centre, shift, width in zip(grid.centres(tower), offset, grid.widths(tower), strict=True)
    )
    energy = em + had
    features = [
        np.full(len(tower), TOWER),
        energy / np.cosh(eta),
        eta,
        np.sin(phi),
        np.cos(phi),
        energy,
        em,
        had,
    ]
    padding = [np.zeros(len(tower))] * (FEATURES - len(features))
    return np.stack([*features, *padding], axis=1).astype(np.float32)


def em_resolution(energy: Array, eta: Array) -> Array:
    """Return the resolution of the electromagnetic part in GeV."""
    eta = np.abs(eta)
    inner = np.sqrt((0.008 * energy) ** 2 + 0.11**2 * energy + 0.40**2)
    factor = np.where(eta <= 1.5, 1 + 0.64 * eta**2, 2.16 + 5.6 * (eta - 2) ** 2)
    return np.where(eta <= TRACKER_ETA, factor * inner, np.sqrt((0.107 * energy) ** 2 + 2.08**2 * energy))


def hadronic_resolution(energy: Array, eta: Array) -> Array:
    """Return the resolution of the hadronic part in GeV."""
    central = np.abs(eta) <= 3
    return np.where(
        central, np.hypot(0.05 * energy, 1.5 * np.sqrt(energy)), np.hypot(0.11 * energy, 2.8 * np.sqrt(energy))
    )
