"""Files of showers: what is read, and one clear line for what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from clew import Table, concat
from clew.errors import DataError
from clew.recipes.fastsim import FastSimulation
from clew.recipes.fastsim.columns import ENERGY, EVENT, THETA, VOXELS
from clew.recipes.fastsim.geometry import GeometryConfig
from clew.recipes.fastsim.shower_files import check_showers, read_showers, write_showers

from . import SHOWERS, needs_showers

DATASET2 = GeometryConfig()


def write(path: Path, **datasets: Any) -> str:
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name] = values
    return str(path)


def showers(count: int, **changes: Any) -> Table:
    random = np.random.default_rng(1)
    voxels = random.exponential(1, (count, 6480)).astype(np.float32) * (random.random((count, 6480)) < 0.1)
    energy = np.linspace(1000, 2000, count, dtype=np.float32)
    return Table({EVENT: np.arange(count), ENERGY: energy, VOXELS: voxels, **changes})


@needs_showers
def test_real_geant4_showers() -> None:
    tables = read_showers(str(SHOWERS), DATASET2)
    table = concat(list(tables))
    check_showers(table, 6480)
    with h5py.File(SHOWERS) as file:
        assert np.array_equal(table.fixed(VOXELS), file["showers"][:])
        assert np.array_equal(table.fixed(ENERGY), file["incident_energies"][:, 0])
    assert table.units[VOXELS] == "MeV"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    table = showers(7, **{THETA: np.linspace(0, 1, 7, dtype=np.float32)})
    write_showers(tmp_path / "a.h5", table, {"particle": "electron"})
    assert [path.name for path in tmp_path.iterdir()] == ["a.h5"]
    again = concat(list(read_showers(str(tmp_path / "a.h5"), DATASET2)))
    for name in table:
        assert np.array_equal(again.fixed(name), table.fixed(name)), name


def test_tables_of_clew_are_read_too(tmp_path: Path) -> None:
    showers(3).save(tmp_path / "table.h5")
    assert len(concat(list(read_showers(str(tmp_path / "table.h5"), DATASET2)))) == 3


@pytest.mark.parametrize("energies", [{"energy": np.full(2, 50.0)}, {"target": np.full((2, 1, 5), 50.0)}])
def test_grids_are_read_in_gev(tmp_path: Path, energies: dict[str, Any]) -> None:
    grid = np.zeros((2, 25, 25, 25))
    grid[1, 3, 2, 1] = 0.25
    path = write(tmp_path / "grid.h5", ECAL=grid, **energies)
    (table,) = read_showers(path, GeometryConfig(kind="grid"))
    assert table.fixed(ENERGY).tolist() == [50000, 50000]
    assert table.fixed(VOXELS)[1, (3 * 25 + 2) * 25 + 1] == 250
    assert table.fixed(VOXELS).sum() == 250


@pytest.mark.parametrize(
    ("datasets", "geometry", "message"),
    [
        (
            {"showers": np.zeros((2, 6479)), "incident_energies": np.ones((2, 1))},
            {},
            "6479 voxels, but data set 2 has 6480",
        ),
        (
            {"showers": np.zeros((2, 6480)), "incident_energies": np.ones((3, 1))},
            {},
            "2 showers, but 3 incident energies",
        ),
        ({"images": np.zeros((2, 6480))}, {}, "no dataset 'showers' in it, only images"),
        ({"showers": np.zeros((0, 6480)), "incident_energies": np.ones((0, 1))}, {}, "no showers in it"),
        (
            {"ECAL": np.zeros((1, 24, 25, 25)), "energy": [1.0]},
            {"kind": "grid"},
            "24x25x25 voxels, but a grid of 25x25x25",
        ),
        ({"ECAL": np.zeros((1, 25, 25, 25))}, {"kind": "grid"}, "no dataset 'energy or target'"),
        ({"ECAL": np.zeros((1, 25, 25, 25)), "target": [1.0]}, {"kind": "grid"}, "no energy as its second number"),
    ],
)
def test_a_wrong_file_is_one_clear_line(
    tmp_path: Path, datasets: dict[str, Any], geometry: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "wrong.h5", **datasets)
    with pytest.raises(DataError, match=message) as caught:
        list(read_showers(path, GeometryConfig.model_validate(geometry)))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_hdf5_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("no")
    with pytest.raises(DataError, match="not a readable HDF5 file"):
        list(read_showers(str(tmp_path / "text.h5"), DATASET2))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (VOXELS, -0.5, "shower 12: voxel 3 has -0.5 MeV"),
        (VOXELS, np.nan, "shower 12: voxel 3 has nan MeV"),
        (ENERGY, 0.0, "shower 12: incident energy 0 MeV"),
        (ENERGY, np.inf, "shower 12: incident energy inf MeV"),
    ],
)
def test_bad_energies_are_named(column: str, value: float, message: str) -> None:
    table = showers(3, **{EVENT: np.array([11, 12, 13])})
    values = table.fixed(column).copy()
    values[(1, 3) if column == VOXELS else 1] = value
    with pytest.raises(DataError, match=message):
        FastSimulation().prepare(table.join({column: values}))
