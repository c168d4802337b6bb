"""Rule-based particle flow, without a network: the baseline that the networks must beat.

A track is its particle: a muon or an electron if it is marked as one, else a charged hadron. From a tower the momenta
of the tracks that point at it are subtracted: those of electrons from the electromagnetic part, those of charged
hadrons from the hadronic part. What remains of the electromagnetic part is a photon, what remains of the hadronic part
a neutral hadron, if it is significant. If both remain, the class of the tower is that of the larger one.

A track points at the tower in whose cell of the grid (`calorimeter`) it leaves the tracker. Units: GeV, radians.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from clew import Ragged, Section, Table
from clew.recipes.particleflow.calorimeter import (
    COARSE_GRID,
    FINE_GRID,
    MIN_NEUTRAL_ENERGY,
    TowerGrid,
    em_resolution,
    hadronic_resolution,
)
from clew.recipes.particleflow.columns import (
    CHARGED_HADRON,
    ELECTRON,
    MUON,
    NEUTRAL_HADRON,
    NONE,
    PHOTON,
    TOWER,
    TRACK,
)

Array = NDArray[Any]
Floats = NDArray[np.float64]
PION_MASS, MUON_MASS = 0.13957, 0.10566


class RuleBasedConfig(Section):
    """Thresholds of rule-based particle flow."""

    significance: Annotated[float, Field(ge=0)] = 2.0
    """Minimum energy that remains in a tower with tracks, in units of the resolution of the tower. A larger value gives
    fewer neutral hadrons, and fewer fake ones."""
    min_neutral_energy: Annotated[float, Field(ge=0)] = MIN_NEUTRAL_ENERGY
    """Minimum energy of a neutral hadron, GeV. The default is that of the targets."""


class TowerLinks(NamedTuple):
    """The tracks that point at each tower, one row per element; rows of tracks are zero."""

    hadrons: Floats
    """Number of charged-hadron tracks that point at the cell of the tower in the coarse grid."""
    hadron_momentum: Floats
    """Sum of their momenta, GeV."""
    electron_momentum: Floats
    """Sum of the momenta of the electron tracks that point at the cell of the electromagnetic tower, GeV."""


def reconstruct_by_rule(elements: Ragged, settings: RuleBasedConfig | None = None) -> Table:
    """Return the particles of elements in the columns of `ParticleFlow.reconstruct`, one row per element.

    Args:
        elements: Elements (n, 12) of events; see `columns`.
        settings: The thresholds.

    Example:
        >>> import numpy as np
        >>> from clew import Ragged
        >>> tower = [1, 20, 0.05, 0, 1, 20, 20, 0, 0, 0, 0, 0]
        >>> table = reconstruct_by_rule(Ragged.from_lengths(np.array([tower], dtype=np.float32), [1]))
        >>> table.ragged("pid").values.tolist()  # a photon
        [3]
    """
    x = elements.values.astype(np.float64)
    pid, energy = _towers(x, link_tracks(elements), settings or RuleBasedConfig())
    track = x[:, 0] == TRACK
    pid[track] = np.select([x[track, 10] > 0, x[track, 11] > 0], [MUON, ELECTRON], CHARGED_HADRON)
    columns: dict[str, Array] = {"pid": pid, "pt": energy / np.cosh(x[:, 2]), "eta": x[:, 2], "energy": energy}
    columns |= {"phi": np.arctan2(x[:, 3], x[:, 4])}
    columns |= measured_tracks(x, columns)
    types: dict[str, type] = {"pid": np.int8, "charge": np.int8}
    columns["charge"] = np.where(track, x[:, 9], 0)
    shared = {name: elements.share(values.astype(types.get(name, np.float32))) for name, values in columns.items()}
    return Table(shared, units={"pt": "GeV", "energy": "GeV", "phi": "rad"})


def measured_tracks(elements: Array, particles: Mapping[str, Array]) -> dict[str, Array]:
    """Return `pt`, `eta`, `phi` and `energy` of particles, with the measured momenta for those of tracks.

    Args:
        elements: (n, 12) or more columns; see `columns`.
        particles: The columns of the particles, each (n,).
    """
    x, pid = elements, particles["pid"]
    mass = np.select([pid == ELECTRON, pid == MUON], [0.0, MUON_MASS], PION_MASS)
    measured = {"pt": x[:, 1], "eta": x[:, 2], "phi": np.arctan2(x[:, 3], x[:, 4]), "energy": np.hypot(x[:, 5], mass)}
    return {name: np.where(x[:, 0] == TRACK, values, particles[name]) for name, values in measured.items()}


def measured_towers(elements: Ragged, particles: Mapping[str, Array]) -> dict[str, Array]:
    """Return `pt` and `energy` of particles, with what tracks leave of the energy of a tower for those of towers.

    Args:
        elements: (n, 12) or more columns; see `columns`.
        particles: The columns of the particles, each (n,).
    """
    x, links = elements.values.astype(np.float64), link_tracks(elements)
    remaining = np.maximum(x[:, 6] - links.electron_momentum, 0) + np.maximum(x[:, 7] - links.hadron_momentum, 0)
    tower = x[:, 0] == TOWER
    pt = remaining / np.cosh(particles["eta"])
    return {"pt": np.where(tower, pt, particles["pt"]), "energy": np.where(tower, remaining, particles["energy"])}


def link_tracks(elements: Ragged) -> TowerLinks:
    """Return number and momenta of the tracks that point at each tower."""
    x = elements.values.astype(np.float64)
    tower, track = x[:, 0] == TOWER, x[:, 0] == TRACK
    electron, muon = track & (x[:, 11] > 0), track & (x[:, 10] > 0)
    hadron = track & ~electron & ~muon
    coarse, fine = (_cells(elements, x, grid) for grid in (COARSE_GRID, em_grid(x)))
    return TowerLinks(
        _sum_by_cell(coarse, hadron, np.ones(len(x)), tower),
        _sum_by_cell(coarse, hadron, x[:, 5], tower),
        _sum_by_cell(fine, electron, x[:, 5], tower),
    )


def em_grid(elements: Array) -> TowerGrid:
    """Return the grid of electromagnetic towers: coarse if any tower has energy in both parts, else fine."""
    combined = ((elements[:, 0] == TOWER) & (elements[:, 6] > 0) & (elements[:, 7] > 0)).any()
    return COARSE_GRID if combined else FINE_GRID


def _towers(x: Floats, links: TowerLinks, settings: RuleBasedConfig) -> tuple[Array, Floats]:
    """Return class and energy of towers; rows of tracks have no meaning."""
    em, had = (np.where(x[:, 0] == TOWER, x[:, column], 0.0) for column in (6, 7))
    em = _remaining(em, links.electron_momentum, em_resolution(em, x[:, 2]), settings.significance)
    had = _remaining(had, links.hadron_momentum, hadronic_resolution(had, x[:, 2]), settings.significance)
    had[had + em < settings.min_neutral_energy] = 0
    pid = np.where(had > em, NEUTRAL_HADRON, np.where(em > 0, PHOTON, NONE))
    return pid, np.where(pid == NONE, 0.0, em + had)


def _remaining(energy: Floats, momentum: Floats, sigma: Floats, significance: float) -> Floats:
    """Return the energy that tracks leave: all of it if there are none, and 0 if it is not significant."""
    remaining: Floats = np.maximum(energy - momentum, 0.0)
    remaining[(momentum > 0) & (remaining < significance * sigma)] = 0
    return remaining


def _cells(elements: Ragged, x: Floats, grid: TowerGrid) -> Array:
    """Return the cell of each element, numbered over all events: of a tower its own, of a track where it points."""
    track = x[:, 0] == TRACK
    eta = np.where(track, x[:, 6], x[:, 2])
    phi = np.where(track, np.arctan2(x[:, 7], x[:, 8]), np.arctan2(x[:, 3], x[:, 4]))
    cells: Array = elements.events * grid.towers + grid.index(eta, phi)
    return cells


def _sum_by_cell(cells: Array, source: Array, values: Floats, target: Array) -> Floats:
    """Return for each target element the sum of the values of the source elements in its cell, else 0."""
    filled, place = np.unique(cells[source], return_inverse=True)
    sums = np.append(np.bincount(place, values[source], minlength=len(filled)), 0.0)
    position = np.searchsorted(filled, cells)
    filled = np.append(filled, -1)
    result: Floats = np.where(target & (filled[position] == cells), sums[position], 0.0)
    return result
