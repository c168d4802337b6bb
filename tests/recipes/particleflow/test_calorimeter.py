"""The calorimeter: its grids, and its two layouts."""

from __future__ import annotations

import numpy as np
import pytest

from clew.recipes.particleflow.calorimeter import COARSE_GRID, FINE_GRID, TowerGrid
from clew.recipes.particleflow.columns import NEUTRAL_HADRON, PHOTON
from tests.recipes.particleflow.test_detector import detect

TWO = ((PHOTON, 40.0, 0.04, 0.04, 0), (NEUTRAL_HADRON, 40.0, 0.05, 0.05, 0))
"""A photon and a neutral hadron in one coarse tower."""


@pytest.mark.parametrize(
    ("grid", "towers"), [(COARSE_GRID, 40 * 72 + 40 * 36), (FINE_GRID, 340 * 360 + 22 * 36)], ids=["coarse", "fine"]
)
def test_a_grid_covers_the_calorimeter_once(grid: TowerGrid, towers: int) -> None:
    every = np.arange(towers)
    eta, phi = grid.centres(every)
    assert grid.towers == towers and (grid.index(eta, phi) == every).all()
    assert grid.index(np.array([4.999, -4.999]), np.array([np.pi, -np.pi])).tolist() == [towers - 1, 0]
    width_eta, width_phi = grid.widths(every)
    assert (width_eta * width_phi).sum() == pytest.approx(10 * 2 * np.pi)


def test_separate_parts_are_elements_of_their_own() -> None:
    event = detect(*TWO)
    em, had = event.elements[:, 6], event.elements[:, 7]
    assert event.targets[:, 0].tolist() == [PHOTON, NEUTRAL_HADRON]
    assert em[0] > 0 and had[0] == 0 and em[1] == 0 and had[1] > 0
    assert abs(event.elements[0, 2] - 0.04) < 0.0174 and event.targets[:, 2].tolist() == pytest.approx([40, 40])


def test_combined_parts_are_one_element() -> None:
    event = detect(*TWO, calorimeter="combined")
    assert len(event.elements) == 1 and (event.elements[0, 6:8] > 0).all()
    assert event.targets[0, 2] == pytest.approx(80, rel=1e-3)


def test_photons_close_to_each_other_have_towers_of_their_own_in_the_fine_grid() -> None:
    photons = [(PHOTON, 20.0, 0.005 + 0.0174 * place, 0.5, 0) for place in range(5)]
    assert len(detect(*photons).elements) == 5
    assert len(detect(*photons, calorimeter="combined").elements) == 1
