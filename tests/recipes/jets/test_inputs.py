"""From files to samples: only the needed columns are read, and every format gives the same samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import uproot
from pyarrow import csv, parquet

import clew
from clew import Table, concat
from clew.data import writers
from clew.data.transforms import Compute, Reweight, Select
from clew.errors import DataError
from clew.recipes.jets.imagefile import ImageFile, pixels
from clew.recipes.jets.inputs import JetDataConfig, file_columns
from clew.settings import load_settings

from . import jets, real

SETTINGS = ["constituents.inputs=[part_deta, log(part_pt)]", "data.select=jet_pt > 520", "data.weight=jet_mass / 50"]


def _samples(recipe: Any, path: Path) -> Table:
    events = concat(list(recipe.read(str(path))))
    for step in recipe.transforms():
        events = step(events)
    samples: Table = recipe.prepare(events)
    return samples


def test_what_is_made_on_the_way_is_not_read() -> None:
    steps = [
        Compute(column="far", expression="sqrt(x**2 + y**2)"),
        Select(where="far > 1 && pt > 2"),
        Compute(column="label", expression="where(kind == 1, 0, 1)"),
        Reweight(columns={"far": (0, 1)}),
    ]
    assert file_columns(steps, ["log(far)", "z", "weight"]) == ["x", "y", "pt", "kind", "z"]


@pytest.mark.parametrize("ending", ["h5", "parquet", "root"])
def test_formats_give_the_same_samples(ending: str, tmp_path: Path) -> None:
    table, recipe = jets(50), load_settings("jets", SETTINGS).recipe
    table.save(tmp_path / "jets.h5")
    if ending != "h5":
        path = tmp_path / f"jets.{ending}"
        with writers.find(path)(path) as writer:
            writer.append(table)
    samples, hdf5_samples = (_samples(recipe, tmp_path / f"jets.{each}") for each in (ending, "h5"))
    np.testing.assert_array_equal(samples.ragged("constituents").values, hdf5_samples.ragged("constituents").values)
    np.testing.assert_array_equal(samples.ragged("constituents").offsets, hdf5_samples.ragged("constituents").offsets)
    assert samples.fixed("label").tolist() == hdf5_samples.fixed("label").tolist()


def test_only_the_branches_that_are_needed_are_read(tmp_path: Path) -> None:
    with uproot.recreate(tmp_path / "jets.root") as file:
        file.mktree("other", {"x": np.arange(3)})
        file.mktree("Events", {"pt": np.arange(3.0) + 500, "isTop": np.array([0, 1, 1]), "junk": np.full(3, np.nan)})
    settings = ["data.tree=Events", "data.labels={qcd: '!isTop', top: isTop}", "data.keep=[pt]", "features.inputs=[pt]"]
    data = clew.prepare(
        load_settings("jetfeatures", settings).recipe,
        input=[str(tmp_path / "jets.root")],
        output=str(tmp_path / "data"),
        workers=1,
        split={"train": 1.0},
    )
    assert data.read("train").fixed("label").tolist() == [0, 1, 1] and list(data.schema)[-1] == "pt"
    assert data.read("train").fixed("features").mean() == pytest.approx(0, abs=1e-6)


def test_a_jet_a_line_of_text(tmp_path: Path) -> None:
    (tmp_path / "jets.csv").write_text("pt,mass,top\n500,80,0\n510,170,1\n520,90,0\n")
    settings = ["features.inputs=[pt, mass]", "data.labels={qcd: top == 0, top: top == 1}", "data.keep=[]"]
    recipe: Any = load_settings("jetfeatures", settings).recipe
    assert [len(part) for part in recipe.read(str(tmp_path / "jets.csv"))] == [3]
    events = Select(where="mass > 0")(recipe.read(str(tmp_path / "jets.csv"))[0])
    assert events.fixed("mass").tolist() == [80, 170, 90]


def test_text_with_one_constituent_per_line(tmp_path: Path) -> None:
    lines = ["jet part_pt part_deta top", "7 10 0.125 1", "7 20 0.25 1", "9 5 0.375 0"]
    (tmp_path / "jets.txt").write_text("\n".join(lines) + "\n")
    settings = ["data.event=jet", "data.variables={top: first(top)}", "data.labels={qcd: '!top', top: top}"]
    recipe = load_settings("jets", [*settings, "data.keep=[jet]", "constituents.inputs=[part_deta]"]).recipe
    samples = _samples(recipe, tmp_path / "jets.txt")
    assert [each[:, 0].tolist() for each in samples.ragged("constituents")] == [[0.25, 0.125], [0.375]]
    assert samples.fixed("label").tolist() == [1, 0] and samples.fixed("jet").tolist() == [7, 9]


def test_jets_of_no_class_are_left_out_and_the_first_class_counts() -> None:
    table = Table({"a": np.array([1, 1, 0, 0]), "b": np.array([1, 0, 1, 0]), "jet_pt": np.arange(4.0)})
    data = JetDataConfig(labels={"one": "a", "two": "b"})
    for step in [*data.steps(), *data.label_steps()]:
        table = step(table)
    assert table.fixed("label").tolist() == [0, 0, 1] and table.fixed("jet_pt").tolist() == [0, 1, 2]


def test_the_public_jetclass_file_is_read_by_the_shipped_settings(tmp_path: Path) -> None:
    path = real("sophon/JetClassII_example.parquet")
    from clew.cli.start import recipe_template

    recipe: Any = load_settings(str(recipe_template.write_recipe("mine", "jets/jetclass", tmp_path)[0])).recipe
    events = recipe.read(str(path))[0]
    assert "genpart_px" not in events
    for step in recipe.transforms():
        step = step if not isinstance(step, Reweight) else step.fitted([step.measure(events)])
        events = step(events)
    samples, reference = recipe.prepare(events), parquet.read_table(path)
    assert samples.ragged("constituents").values.shape[1] == 15 and (events.ragged("part_pt").values > 0).all()
    chosen = np.abs(reference["jet_eta"].to_numpy()) < 2.5
    qcd = np.array([any(each) for each in reference["aux_genpart_isQcdParton"].to_pylist()])
    assert (
        samples.fixed("label").tolist() == (~qcd[chosen & (reference["jet_pt"].to_numpy() > 200)]).astype(int).tolist()
    )


def _image_file(path: Path, counts: tuple[int, int] = (7, 4)) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    images = rng.exponential(1, (sum(counts), 6, 6, 1)) * (rng.random((sum(counts), 6, 6, 1)) < 0.3)
    with h5py.File(path, "w") as file:
        file["QCD"], file["TT"] = images[: counts[0]], images[counts[0] :]
    return images[..., 0].astype(np.float32)


@pytest.mark.parametrize("chunk", [2, 3, 100])
def test_files_of_images_are_read_class_by_class(chunk: int, tmp_path: Path) -> None:
    images = _image_file(tmp_path / "images.h5")
    reader = ImageFile(classes=("QCD", "TT"), chunk=chunk)
    table = concat(
        [reader.load(str(tmp_path / "images.h5"), piece) for piece in reader.pieces(str(tmp_path / "images.h5"))]
    )
    np.testing.assert_array_equal(table.fixed("image"), images)
    assert table.fixed("label").tolist() == [0] * 7 + [1] * 4
    np.testing.assert_allclose(table.fixed("jet_pt"), images.sum(axis=(1, 2)), rtol=1e-6)


def test_pixels_are_constituents() -> None:
    image = np.zeros((2, 3, 3), dtype=np.float32)
    image[0, 0, 2], image[0, 1, 1] = 1.0, 5.0
    constituents = pixels(image)
    assert constituents["part_pt"][0].tolist() == [5.0, 1.0] and constituents["part_deta"][0].tolist() == [0.0, -1.0]
    assert constituents["part_dphi"][0].tolist() == [0.0, 1.0] and len(constituents["part_pt"][1]) == 0


def test_a_file_without_such_images_is_reported(tmp_path: Path) -> None:
    _image_file(tmp_path / "images.h5")
    with pytest.raises(DataError, match=r"no dataset 'QCDD' in it, only QCD, TT"):
        ImageFile(classes=("QCDD", "TT")).pieces(str(tmp_path / "images.h5"))
    (tmp_path / "not.h5").write_text("no")
    with pytest.raises(DataError, match="not a readable HDF5 file"):
        ImageFile(classes=("QCD",)).pieces(str(tmp_path / "not.h5"))


def test_csv_of_pyarrow_is_read(tmp_path: Path) -> None:
    import pyarrow as pa

    csv.write_csv(pa.table({"pt": [1.5, 2.5], "top": [0, 1]}), tmp_path / "jets.csv")
    assert clew.readers.read(str(tmp_path / "jets.csv"), event="")[0].fixed("pt").tolist() == [1.5, 2.5]
