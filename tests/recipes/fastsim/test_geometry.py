"""Geometries: data sets of the challenge, binning files, grids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from clew.errors import ConfigError
from clew.recipes.fastsim.features import shower_features
from clew.recipes.fastsim.geometry import GeometryConfig, read_binning

PHOTONS = """<Bins><Particle name="photon"><Bin pid="22">
  <Layer id="0" r_edges="0,5,10,30" n_bin_alpha="1"/>
  <Layer id="1" r_edges="0,2,4" n_bin_alpha="10"/>
  <Layer id="2" r_edges="0" n_bin_alpha="1"/>
  <Layer id="12" r_edges="0,100" n_bin_alpha="4"/>
</Bin></Particle></Bins>"""


def binning(folder: Path, text: str = PHOTONS) -> str:
    (folder / "binning.xml").write_text(text)
    return str(folder / "binning.xml")


@pytest.mark.parametrize(("kind", "voxels"), [("dataset2", 6480), ("dataset3", 40500), ("grid", 15625)])
def test_voxels_of_the_shipped_geometries(kind: str, voxels: int) -> None:
    assert GeometryConfig.model_validate({"kind": kind}).load().voxels == voxels


def test_a_binning_file_gives_layers_of_different_sizes(tmp_path: Path) -> None:
    geometry = GeometryConfig(kind="xml", file=binning(tmp_path), particle="photon").load()
    assert [layer.number for layer in geometry.layers] == [0, 1, 12]
    assert geometry.voxels == 3 + 20 + 4
    assert geometry.starts.tolist() == [0, 3, 23]
    assert geometry.shape is None


def test_features_of_a_shower_computed_by_hand(tmp_path: Path) -> None:
    shower = np.zeros((1, 27))
    shower[0, 0] = 8.0
    shower[0, [23, 25]] = 3.0, 1.0  # opposite quarters of a ring with a mean radius of 50 mm
    features = shower_features(shower, read_binning(binning(tmp_path)))
    assert features.layer_energy.tolist() == [[8.0, 0.0, 4.0]]
    half = 50 / np.sqrt(2)
    np.testing.assert_allclose(features.centre_x, [[0, 0, half / 2]])
    np.testing.assert_allclose(features.width_y, [[0, 0, half * np.sqrt(3) / 2]])
    assert features.lit_voxels.tolist() == [[1, 0, 2]]


@pytest.mark.parametrize(
    ("text", "particle", "message"),
    [
        ("<Bins>", "", "not a readable XML file"),
        ("<Bins/>", "", "no <Layer> with rings"),
        (PHOTONS, "pion", "no particle 'pion', only photon"),
        (
            PHOTONS.replace("</Bins>", '<Particle name="pion"/></Bins>'),
            "",
            "set geometry.particle to one of photon, pion",
        ),
        (PHOTONS.replace("0,2,4", "0,4,2"), "", "layer 1 needs increasing r_edges"),
        (PHOTONS.replace("0,2,4", "0,x"), "", "layer '1' is not valid"),
    ],
)
def test_a_bad_binning_file_is_one_clear_line(tmp_path: Path, text: str, particle: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_binning(binning(tmp_path, text), particle)
    assert "\n" not in str(caught.value)


def test_xml_without_a_file_is_rejected() -> None:
    with pytest.raises(ValidationError, match=r"geometry\.file=binning\.xml"):
        GeometryConfig(kind="xml")
