"""Particles of the gun: numbers, spectra, choices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew import settings
from clew.errors import ConfigError
from clew.recipes.tracking import particle_gun


def _shoot_events(kind: Any, events: int = 300) -> list[particle_gun.GunParticles]:
    shot = particle_gun.ParticleGun(particles=kind)
    return [shot.generate(np.random.default_rng([1, number])) for number in range(events)]


def test_muons_are_50_to_200_an_event() -> None:
    sizes = [len(event.pdg) for event in _shoot_events("muons")]
    assert min(sizes) >= 50 and max(sizes) <= 200
    assert abs(np.mean(sizes) - 125) < 10


def test_ttbar_like_events_have_the_configured_multiplicity_in_nine_of_ten() -> None:
    sizes = np.array([len(event.pdg) for event in _shoot_events("ttbar-like")])
    assert 0.84 < np.mean((sizes >= 70) & (sizes <= 230)) < 0.96


def test_ttbar_like_particles_come_from_one_vertex_and_are_mostly_soft() -> None:
    events = _shoot_events("ttbar-like", 50)
    assert all(np.ptp(event.position, axis=0).max() == 0 for event in events)
    pt = np.concatenate([np.hypot(*event.momentum.T[:2]) for event in events])
    assert 0.4 < np.median(pt) < 1.0 < pt.mean() and pt.min() > particle_gun.SOFT_PT_FLOOR


def test_particles_of_a_jet_fly_together() -> None:
    jet = np.repeat(np.arange(particle_gun.JETS), 40)
    momentum = particle_gun.jet_momenta(np.random.default_rng(1), jet)
    eta = np.arcsinh(momentum[:, 2] / np.hypot(momentum[:, 0], momentum[:, 1]))
    assert max(np.ptp(eta[jet == number]) for number in range(particle_gun.JETS)) <= 2 * particle_gun.JET_RADIUS


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("gun.multiplicity=[0, 5]", "1 <= low <= high"),
        ("gun.multiplicity=[5, 4]", "1 <= low <= high"),
        ("gun.particles=muon", "'muons' or 'ttbar-like'"),
    ],
)
def test_impossible_settings_of_the_gun_are_refused(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings.load_settings("hitgraph", [setting])
