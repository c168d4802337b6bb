"""The parametric detector, and the rules for targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew.recipes.particleflow import calorimeter, detector, targets
from clew.recipes.particleflow.columns import CHARGED_HADRON, ELECTRON, MUON, NEUTRAL_HADRON, NONE, PHOTON, TOWER, TRACK
from clew.recipes.particleflow.detector import DetectorEvent, ParticleFlowDetectorConfig
from clew.recipes.particleflow.targets import VisibleParticles


def particles(*rows: tuple[int, float, float, float, int]) -> VisibleParticles:
    """Massless particles from (kind, pt, eta, phi, charge)."""
    kind, pt, eta, phi, charge = (np.array(column) for column in zip(*rows, strict=True))
    return VisibleParticles(pt, eta, phi, pt * np.cosh(eta), charge, kind)


def detect(*rows: tuple[int, float, float, float, int], seed: int = 1, **settings: Any) -> DetectorEvent:
    generated = particles(*rows)
    return detector.simulate_detector(
        generated, np.zeros(len(generated.pt)), ParticleFlowDetectorConfig(**settings), np.random.default_rng(seed)
    )


def test_a_photon_is_an_electromagnetic_tower_where_it_points() -> None:
    event = detect((PHOTON, 50.0, 0.3, 1.0, 0))
    tower, target = event.elements[0], event.targets[0]
    assert event.elements.shape == (1, 12) and tower[0] == TOWER and target[0] == PHOTON
    assert abs(tower[2] - 0.3) < 0.087 and abs(np.arctan2(tower[3], tower[4]) - 1.0) < 0.09
    assert tower[5] == pytest.approx(50 * np.cosh(0.3), rel=0.2) and tower[6] == tower[5] and tower[7] == 0
    assert tower[1] == pytest.approx(tower[5] / np.cosh(tower[2]), rel=1e-5) and (tower[8:] == 0).all()
    assert target[2:].tolist() == pytest.approx([50, 0.3, np.sin(1), np.cos(1), 50 * np.cosh(0.3)], rel=1e-5)


def test_a_charged_hadron_is_a_track_and_a_tower_of_none() -> None:
    event = detect((CHARGED_HADRON, 20.0, 0.5, -1.0, -1), seed=2)
    kinds = dict(zip(event.elements[:, 0], event.targets[:, 0], strict=True))
    assert kinds == {TOWER: NONE, TRACK: CHARGED_HADRON}
    track, target = event.elements[1], event.targets[1]
    assert track[1] == pytest.approx(20, rel=0.1) and track[5] == pytest.approx(track[1] * np.cosh(0.5), rel=1e-5)
    assert track[9] == target[1] == -1 and (track[10:] == 0).all()
    bend = np.arcsin(detector.CALORIMETER[0] / 2 / (20 / detector.GEV_PER_METRE))
    assert np.arctan2(track[7], track[8]) == pytest.approx(-1 + bend, abs=1e-5) and track[6] == pytest.approx(
        0.5, abs=1e-2
    )
    assert (event.targets[0] == 0).all() and event.elements[0, 7] > 0


def test_leptons_are_marked_and_muons_leave_no_energy() -> None:
    event = detect((MUON, 30.0, 1.0, 0.0, 1), (ELECTRON, 30.0, -1.0, 0.0, -1), seed=3)
    tracks = event.elements[event.elements[:, 0] == TRACK]
    assert tracks[:, 10].tolist() == [1, 0] and tracks[:, 11].tolist() == [0, 1]
    towers = event.elements[event.elements[:, 0] == TOWER]
    assert len(towers) == 1 and abs(towers[0, 2] + 1) < 0.2


def test_helices_end_on_the_calorimeter() -> None:
    random = np.random.default_rng(4)
    count = 2000
    pt, eta, phi = (random.uniform(low, high, count) for low, high in ((0.05, 5.0), (-3.0, 3.0), (-3.1, 3.1)))
    generated = VisibleParticles(pt, eta, phi, pt, random.choice([-1, 1], count), np.ones(count))
    z = 0.05 * random.standard_normal(count)
    out = detector.propagate(generated, z)
    for place in range(0, count, 100):
        x, y, along = _stepped(
            generated.pt[place], generated.eta[place], generated.phi[place], int(generated.charge[place]), z[place]
        )
        assert out.eta[place] == pytest.approx(np.arcsinh(along / np.hypot(x, y)), abs=0.02)
        assert np.cos(out.phi[place] - np.arctan2(y, x)) > 0.999


def _stepped(pt: float, eta: float, phi: float, charge: int, z: float) -> tuple[float, float, float]:
    """A slow reference: the helix in small steps until it leaves the cylinder."""
    radius, length = detector.CALORIMETER
    x = y = 0.0
    turn = charge * detector.GEV_PER_METRE / pt
    step = 2e-4
    while np.hypot(x, y) < radius and abs(z) < length:
        x, y, z = (
            x + step * np.cos(phi - turn * step / 2),
            y + step * np.sin(phi - turn * step / 2),
            z + step * np.sinh(eta),
        )
        phi -= turn * step
    return x, y, z


def test_towers_are_summed_and_named_by_their_rules() -> None:
    generated = particles(
        (PHOTON, 5.0, 0.0, 0.0, 0),
        (NEUTRAL_HADRON, 10.0, 0.0, 0.1, 0),
        (NEUTRAL_HADRON, 4.0, 0.0, 0.0, 0),
        (CHARGED_HADRON, 2.0, 3.0, 0.0, 1),
        (CHARGED_HADRON, 2.0, 2.0, 0.0, -1),
    )
    tower_targets = targets.tower_targets(generated, np.array([0, 0, 1, 2, 3]), 5, min_neutral_energy=9.0)
    assert tower_targets[:, 0].tolist() == [NEUTRAL_HADRON, NONE, NEUTRAL_HADRON, CHARGED_HADRON, NONE]
    assert tower_targets[0, 6] == pytest.approx(15) and tower_targets[0, 2] == pytest.approx(
        np.hypot(5 + 10 * np.cos(0.1), 10 * np.sin(0.1))
    )
    assert tower_targets[:, 1].tolist() == [0, 0, 0, -1, 0] and (tower_targets[[1, 4]] == 0).all()
    assert targets.tower_targets(generated, np.array([0, 0, 1, 2, 3]), 5)[1, 0] == NEUTRAL_HADRON


def test_the_class_of_a_tower_has_the_largest_sum_of_energies() -> None:
    """As in the public set; the single particle of the largest energy is the neutral hadron."""
    rows = [(PHOTON, 6.0, 0.0, 0.0, 0), (PHOTON, 5.0, 0.0, 0.0, 0), (NEUTRAL_HADRON, 10.0, 0.0, 0.0, 0)]
    assert targets.tower_targets(particles(*rows), np.zeros(3, dtype=int), 1)[0, 0] == PHOTON
    mixed = particles(
        (PHOTON, 3.0, 0.0, 0.0, 0), (CHARGED_HADRON, 2.0, 0.0, 0.0, 1), (CHARGED_HADRON, 4.0, 0.0, 0.0, -1)
    )
    assert targets.tower_targets(mixed, np.zeros(3, dtype=int), 1)[0, :2].tolist() == [CHARGED_HADRON, -1]


def test_thresholds_and_resolution_are_the_requested_ones() -> None:
    rows = [(PHOTON, 20.0, 0.0435, 0.05 + 0.0873 * place, 0) for place in range(60)]
    energies = np.concatenate([detect(*rows, seed=seed).elements[:, 5] for seed in range(40)])
    assert energies.mean() == pytest.approx(20, rel=0.01)
    expected = float(calorimeter.em_resolution(np.array([20.0]), np.array([0.0435]))[0])
    assert energies.std() == pytest.approx(expected, rel=0.1)
    assert len(detect(*rows, min_em_energy=30.0).elements) == 0
    assert len(detect(*rows, min_em_significance=1e3).elements) == 0
    tracks = [(CHARGED_HADRON, 0.5, 0.0, 0.1 * place, 1) for place in range(60)]
    assert (detect(*tracks, min_track_pt=0.6).elements[:, 0] == TOWER).all()
