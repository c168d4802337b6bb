"""Showers of Geant4 itself: reproducible, equal to the shared ones, and refused with a reason."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from clew import settings
from clew.errors import ConfigError
from clew.recipes.fastsim.columns import ENERGY, PHI, VOXELS
from clew.recipes.fastsim.features import ShowerFeatures, shower_features
from clew.recipes.fastsim.generate import geant4
from clew.recipes.fastsim.generate.config import ShowerGeneratorConfig
from clew.recipes.fastsim.generate.showers import make_table
from clew.recipes.fastsim.geometry import GeometryConfig

from . import SHOWERS, needs_showers

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("geant4_pybind") is None, reason="geant4-pybind has wheels for Linux on x86-64 only"
)
DATASET2 = GeometryConfig()


def simulate(count: int, first: int = 0, geometry: GeometryConfig = DATASET2, **changes: Any) -> Any:
    config = ShowerGeneratorConfig.model_validate({"kind": "geant4", "energy": (1, 1.2), **changes})
    return make_table(count, 1, first, config=config, geometry=geometry)


@pytest.fixture(scope="module")
def electrons() -> Any:
    return simulate(100)


def test_a_shower_depends_on_its_number_only(electrons: Any) -> None:
    part = simulate(4, first=90 // 64 * 64)
    assert np.array_equal(part.fixed(VOXELS), electrons.fixed(VOXELS)[64:68])
    assert len(np.unique(electrons.fixed(VOXELS).sum(axis=1))) == 100


@needs_showers
def test_showers_are_those_of_the_script_with_a_read_out_in_python(electrons: Any) -> None:
    with h5py.File(SHOWERS) as file:
        incident, voxels = file["incident_energies"][:, 0], file["showers"][:]
    chosen = incident < 1300
    shared, ours = (shower_features(each, DATASET2.load()) for each in (voxels[chosen], electrons.fixed(VOXELS)))
    responses = shared.total / incident[chosen], ours.total / electrons.fixed(ENERGY)
    error = np.hypot(*(each.std() / np.sqrt(len(each)) for each in responses))
    assert abs(responses[0].mean() - responses[1].mean()) < 4 * error
    depths = [(each.layer_energy @ np.arange(45)) / each.total for each in (shared, ours)]
    error = np.hypot(*(each.std() / np.sqrt(len(each)) for each in depths))
    assert abs(depths[0].mean() - depths[1].mean()) < 4 * error
    lit = [each.lit_voxels.sum(axis=1).mean() for each in (shared, ours)]
    assert lit[1] == pytest.approx(lit[0], rel=0.1)


def mean_layer(features: ShowerFeatures) -> float:
    return float(((features.layer_energy @ np.arange(45)) / features.total).mean())


def test_photons_start_later_and_thicker_layers_hold_more(electrons: Any) -> None:
    tables = electrons, simulate(40, particle="photon"), simulate(40, pairs=2)
    thin, photons, thick = (shower_features(each.fixed(VOXELS), DATASET2.load()) for each in tables)
    assert 1 < mean_layer(photons) - mean_layer(thin) < 6  # 9/7 radiation lengths are 3.2 layers
    assert mean_layer(thick) == pytest.approx(mean_layer(thin) / 2, rel=0.15)
    assert thick.total.mean() == pytest.approx(thin.total.mean(), rel=0.1)


def test_inclined_electrons_in_fine_voxels() -> None:
    table = simulate(20, geometry=GeometryConfig(kind="dataset3"), theta=(30, 30))
    features = shower_features(table.fixed(VOXELS), GeometryConfig(kind="dataset3").load())
    x, y = features.centre_x[:, 12], features.centre_y[:, 12]
    turn = np.angle(np.exp(1j * (np.arctan2(y, x) - table.fixed(PHI))))
    assert table.fixed(VOXELS).shape == (20, 40500)
    assert np.median(np.abs(turn)) < 0.4


def test_complete_files_are_not_simulated_again(tmp_path: Path) -> None:
    recipe = settings.load_settings("fastsim", ["generator.kind=geant4", "generator.energy=[1,1]"]).recipe
    ((path, _),) = recipe.generate(3, 1, tmp_path)
    before = path.stat().st_mtime_ns
    assert list(recipe.generate(3, 1, tmp_path)) == [(path, 3)] and path.stat().st_mtime_ns == before
    path.write_bytes(b"half a file")
    assert list(recipe.generate(3, 1, tmp_path)) == [(path, 3)] and path.stat().st_size > 1000


def test_hadrons_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"particle pion: .* set generator.kind to parametric"):
        simulate(1, particle="pion")


@pytest.mark.parametrize(
    ("name", "value", "reason"), [("PACKAGE", "geant4-none", "not installed"), ("VERSION", "9", "0.1.3 is installed")]
)
def test_another_package_is_refused(name: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geant4, name, value)
    with pytest.raises(ConfigError, match=reason) as error:
        simulate(1)
    assert "clew[geant4]" in str(error.value)


def test_a_missing_library_of_the_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libGL.so.1").touch()  # found first, and no library
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"cannot load the system's libGL\.so\.1; .*apt-get install libgl1 "):
        simulate(1)
