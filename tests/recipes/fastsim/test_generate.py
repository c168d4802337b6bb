"""Parametrised showers: reproducible, and close to Geant4 where the page says so."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from clew import settings
from clew.errors import ConfigError
from clew.recipes.fastsim.columns import ENERGY, PHI, THETA, VOXELS
from clew.recipes.fastsim.features import shower_features
from clew.recipes.fastsim.generate.config import ShowerGeneratorConfig
from clew.recipes.fastsim.generate.showers import make_table
from clew.recipes.fastsim.geometry import Floats, GeometryConfig

from . import SHOWERS, needs_showers

DATASET2 = GeometryConfig()
GEOMETRY = DATASET2.load()


def make(count: int, seed: int = 1, first: int = 0, **changes: Any) -> Any:
    config = ShowerGeneratorConfig.model_validate(changes)
    return make_table(count, seed, first, config=config, geometry=DATASET2)


def test_showers_do_not_depend_on_the_range() -> None:
    whole, part = make(200), make(30, first=150)
    assert np.array_equal(whole.fixed(VOXELS)[150:180], part.fixed(VOXELS))
    assert np.array_equal(whole.fixed(ENERGY)[150:180], part.fixed(ENERGY))
    assert not np.array_equal(make(10, seed=2).fixed(VOXELS), whole.fixed(VOXELS)[:10])


def test_the_generator_is_frozen() -> None:
    """A change of the showers must increase VERSION; then this checksum changes too."""
    rounded = np.round(make(64).fixed(VOXELS), 2)
    assert hashlib.sha256(rounded.tobytes()).hexdigest()[:12] == "109de16c5f7a"


def test_files_of_the_command_line(tmp_path: Path) -> None:
    recipe = settings.load_settings("fastsim", ["generator.energy=[5,6]"]).recipe
    written = list(recipe.generate(300, 3, tmp_path))
    assert [count for _, count in written] == [256, 44]
    assert all("synthetic" in path.name and "5to6GeV" in path.name for path, _ in written)
    table = next(iter(recipe.read(str(written[1][0]))))
    assert table.fixed(ENERGY).min() >= 5000 and table.fixed(ENERGY).max() <= 6000
    with h5py.File(written[0][0]) as file:
        assert file["showers"].shape == (256, 6480) and file.attrs["generator"] == "parametric"


def profile(voxels: Floats) -> tuple[Floats, Floats]:
    """Mean share of the energy by layer and by ring."""
    mean = voxels.astype(np.float64).reshape(-1, 45, 16, 9).sum(axis=(0, 2))
    return mean.sum(axis=1) / mean.sum(), mean.sum(axis=0) / mean.sum()


@pytest.mark.slow
@needs_showers
@pytest.mark.parametrize("energy", [(1, 2), (8, 13), (50, 100)])
def test_profiles_agree_with_geant4(energy: tuple[float, float]) -> None:
    with h5py.File(SHOWERS) as file:
        incident, voxels = file["incident_energies"][:, 0], file["showers"][:]
    chosen = (incident > 1000 * energy[0]) & (incident < 1000 * energy[1])
    table = make(256, energy=energy)
    real, fast = shower_features(voxels[chosen], GEOMETRY), shower_features(table.fixed(VOXELS), GEOMETRY)
    responses = real.total / incident[chosen], fast.total / table.fixed(ENERGY)
    assert responses[1].mean() == pytest.approx(responses[0].mean(), rel=0.04)
    assert responses[1].std() == pytest.approx(responses[0].std(), rel=0.35)
    (layers, rings), (fast_layers, fast_rings) = profile(voxels[chosen]), profile(table.fixed(VOXELS))
    depth = np.arange(45)
    assert (depth * fast_layers).sum() == pytest.approx((depth * layers).sum(), abs=1.5)  # layers of 0.4 X0
    assert np.abs(fast_layers - layers).sum() / 2 < 0.08
    assert np.abs(fast_rings - rings).sum() / 2 < 0.06


def test_photons_start_later_and_pions_leak() -> None:
    depth = np.arange(45)

    def mean_depth(particle: str) -> float:
        layers, _ = profile(make(256, particle=particle, energy=(10, 10)).fixed(VOXELS))
        return float((depth * layers).sum())

    assert 1.5 < mean_depth("photon") - mean_depth("electron") < 4.5  # 9/7 X0 is 3.2 layers; the tail leaks
    pions = shower_features(make(256, particle="pion", energy=(10, 10)).fixed(VOXELS), GEOMETRY)
    assert 0.4 < np.mean(pions.total < 300) < 0.65  # 0.65 interaction lengths: exp(-0.65) = 52% pass without one


def test_inclined_particles_move_outwards() -> None:
    table = make(64, theta=(20, 20), energy=(20, 20))
    features = shower_features(table.fixed(VOXELS), GEOMETRY)
    x, y = features.centre_x[:, 20], features.centre_y[:, 20]
    expected = 20.5 * 1.7 * np.tan(np.radians(20))
    assert table.fixed(THETA) == pytest.approx(np.radians(20))
    assert np.hypot(x, y).mean() == pytest.approx(expected, rel=0.15)
    turn = np.angle(np.exp(1j * (np.arctan2(y, x) - table.fixed(PHI))))
    assert np.abs(turn).mean() < 0.1


def test_a_geometry_that_the_generator_does_not_have() -> None:
    with pytest.raises(ConfigError, match=r"45 equal layers .* not a grid of 25x25x25; set geometry.kind"):
        make_table(1, 1, config=ShowerGeneratorConfig(), geometry=GeometryConfig(kind="grid"))
