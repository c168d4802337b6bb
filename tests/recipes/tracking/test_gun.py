"""Particles of the gun: numbers, spectra, choices."""

from __future__ import annotations

import numpy as np
import pytest

from clew.errors import ConfigError
from clew.recipes.tracking import gun


def _many(kind: str, events: int = 300) -> list[gun.Particles]:
    make, bounds = gun.choose(kind, None)
    return [make(np.random.default_rng([1, number]), bounds) for number in range(events)]


def test_muons_are_50_to_200_an_event() -> None:
    sizes = [len(event.pdg) for event in _many("muons")]
    assert min(sizes) >= 50 and max(sizes) <= 200
    assert abs(np.mean(sizes) - 125) < 10


def test_ttbar_like_events_have_the_multiplicity_asked_for_in_nine_of_ten() -> None:
    sizes = np.array([len(event.pdg) for event in _many("ttbar-like")])
    assert 0.84 < np.mean((sizes >= 70) & (sizes <= 230)) < 0.96


def test_ttbar_like_particles_come_from_one_vertex_and_are_mostly_soft() -> None:
    events = _many("ttbar-like", 50)
    assert all(np.ptp(event.position, axis=0).max() == 0 for event in events)
    pt = np.concatenate([np.hypot(*event.momentum.T[:2]) for event in events])
    assert 0.4 < np.median(pt) < 1.0 < pt.mean() and pt.min() > gun.SOFT_PT_FLOOR


def test_particles_of_a_jet_fly_together() -> None:
    jet = np.repeat(np.arange(gun.JETS), 40)
    momentum = gun._jets(np.random.default_rng(1), jet)
    eta = np.arcsinh(momentum[:, 2] / np.hypot(momentum[:, 0], momentum[:, 1]))
    assert max(np.ptp(eta[jet == number]) for number in range(gun.JETS)) <= 2 * gun.JET_RADIUS


@pytest.mark.parametrize("bounds", [(0, 5), (5, 4)])
def test_a_range_that_is_none_is_refused(bounds: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="1 <= low <= high"):
        gun.choose("muons", bounds)


def test_a_kind_that_is_none_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'muons'"):
        gun.choose("muon", None)
