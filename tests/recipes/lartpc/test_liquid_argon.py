"""Energy loss and ranges, against numbers of the Particle Data Group and an independent integration."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate

from clew.recipes.lartpc.generate import liquid_argon
from clew.recipes.lartpc.generate import particles as p


def range_of(kind: int, energy: float) -> float:
    table = liquid_argon.range_table(kind)
    return float(np.interp(energy, table.energy, table.range))


def test_a_muon_loses_least_at_270_mev() -> None:
    energy = np.linspace(100, 1000, 500)
    loss = liquid_argon.energy_loss(p.MUON, energy)
    assert loss.min() == pytest.approx(2.105, rel=0.005)
    assert energy[loss.argmin()] == pytest.approx(266, abs=15)


def test_the_range_of_a_10_mev_muon_is_that_of_the_published_table() -> None:
    assert range_of(p.MUON, 10.0) * liquid_argon.DENSITY == pytest.approx(0.9937, rel=0.01)


@pytest.mark.parametrize("kind", [p.MUON, p.PION_PLUS, p.KAON_PLUS, p.PROTON])
@pytest.mark.parametrize("energy", [50.0, 300.0, 1000.0])
def test_ranges_are_the_integral_of_bethe(kind: int, energy: float) -> None:
    mass, k = p.MASS[kind], 0.307075 * 1.396 * 18 / 39.948

    def bethe(t: float) -> float:
        gamma = 1 + t / mass
        bg2, ratio = gamma**2 - 1, 0.51099895 / mass
        max_transfer = 2 * 0.51099895 * bg2 / (1 + 2 * gamma * ratio + ratio**2)
        x = np.log10(bg2) / 2
        delta = 2 * np.log(10) * x - 5.2146 + (0.19559 * (3 - x) ** 3 if x < 3 else 0) if x > 0.2 else 0.0
        beta2 = bg2 / gamma**2
        return float(k / beta2 * (np.log(2 * 0.51099895 * bg2 * max_transfer / (188e-6) ** 2) / 2 - beta2 - delta / 2))

    above, _ = integrate.quad(lambda t: 1 / bethe(t), 5.0, energy, limit=200)
    assert range_of(kind, energy) - range_of(kind, 5.0) == pytest.approx(above, rel=2e-3)


def test_a_1_gev_muon_goes_four_metres_and_a_half() -> None:
    assert 430 < range_of(p.MUON, 1000.0) < 460


def test_loss_rises_towards_the_end_and_more_for_heavier_particles() -> None:
    near = [liquid_argon.energy_loss(kind, np.array([5.0, 50.0, 200.0])) for kind in (p.MUON, p.KAON_PLUS, p.PROTON)]
    assert all((np.diff(each) < 0).all() for each in near)
    assert near[0][1] < near[1][1] < near[2][1]


@pytest.mark.parametrize(("energy", "attenuation"), [(0.5, 0.0783), (1.0, 0.0574), (2.0, 0.0406), (10.0, 0.0257)])
def test_photons_are_attenuated_as_tabulated(energy: float, attenuation: float) -> None:
    assert np.sum(liquid_argon.photon_rates(np.array([energy]))) / liquid_argon.DENSITY == pytest.approx(
        attenuation, rel=0.04
    )


def test_masses_and_lives_are_those_of_the_particle_package() -> None:
    particle = pytest.importorskip("particle")
    for kind in p.KINDS[:-1]:
        reference = particle.Particle.from_pdgid(kind.pdg)
        assert kind.mass == pytest.approx(reference.mass, rel=1e-4)
        if np.isfinite(kind.decay_length):
            assert kind.decay_length == pytest.approx(reference.ctau / 10, rel=5e-3)
