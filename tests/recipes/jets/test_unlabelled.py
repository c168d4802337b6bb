"""A tagger predicts jets without labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pytest
from pyarrow import csv

import clew
from clew import settings
from clew.data import writers
from clew.data.transforms import Compute, MinMax, Select, Standard
from clew.data.transforms.missing_columns import without_columns
from clew.errors import DataError

from . import jets
from .conftest import Trained

UNKNOWN = ("label",)


def blind(path: Path, *, without: tuple[str, ...] = UNKNOWN) -> Path:
    """Jets without some columns."""
    table = jets(30, seed=5)
    with writers.find(path)(path) as writer:
        writer.append(table.pick(*(name for name in table if name not in without)))
    return path


@pytest.mark.parametrize("kind", ["gru", "cnn", "mlp"])
def test_jets_without_labels_get_the_same_scores(kind: str, trained: Trained, tmp_path: Path) -> None:
    run = trained(kind)
    labelled_rows: Any = clew.predict(run, input=[str(blind(tmp_path / "known.root", without=()))])
    for ending in ("root", "parquet", "h5"):
        unlabelled_rows: Any = clew.predict(run, input=[str(blind(tmp_path / f"real.{ending}"))])
        assert list(unlabelled_rows) == list(labelled_rows)
        np.testing.assert_allclose(unlabelled_rows.fixed("score_top"), labelled_rows.fixed("score_top"), atol=1e-6)


def test_what_only_weights_and_plots_need_may_be_missing_too(trained: Trained, tmp_path: Path) -> None:
    run = trained("cnn")
    assert set(run.recipe.label_columns()) == {"label", "jet_mass", "jet_pt"}
    path = blind(tmp_path / "real.root", without=("label", "jet_mass", "jet_pt"))
    assert len(clew.predict(run, input=[str(path)])) == 30
    with pytest.raises(DataError, match="jet_pt"):
        clew.predict(run, input=[str(path)], columns=["jet_pt"])


def test_what_the_network_needs_may_not(trained: Trained, tmp_path: Path) -> None:
    path = blind(tmp_path / "real.root", without=("label", "part_charge"))
    with pytest.raises(DataError, match=r"real\.root: no branch 'part_charge'"):
        clew.predict(trained("gru"), input=[str(path)])


@pytest.mark.parametrize("ending", ["root", "h5", "parquet"])
def test_labels_are_needed_to_evaluate_and_to_prepare(ending: str, trained: Trained, tmp_path: Path) -> None:
    path = str(blind(tmp_path / f"real.{ending}"))
    with pytest.raises(DataError, match="'label'"):
        clew.evaluate(trained("gru"), input=[path])
    with pytest.raises(DataError, match="'label'"):
        clew.prepare("jets", input=[path], output=str(tmp_path / "data"), workers=1)


def test_an_exported_tagger_needs_no_labels_either(trained: Trained, tmp_path: Path) -> None:
    run, path = trained("mlp"), blind(tmp_path / "real.root")
    file = clew.export(run, to="torch", output=tmp_path / "model.pt2").path
    exported_rows: Any = clew.predict(file, input=[str(path)])
    run_rows: Any = clew.predict(run, input=[str(path)])
    np.testing.assert_allclose(exported_rows.fixed("score_top"), run_rows.fixed("score_top"), atol=1e-5)


def test_a_selection_on_the_class_keeps_it_needed() -> None:
    assert "label" in settings.load_settings("jets").recipe.label_columns()
    assert "label" not in settings.load_settings("jets", ["data.select=label < 3"]).recipe.label_columns()
    balanced = ["transforms=[{kind: select, where: 'label != 2'}]"]
    assert "label" not in settings.load_settings("jets", balanced).recipe.label_columns()


def test_text_lacks_nothing_when_a_dataset_is_made(tmp_path: Path) -> None:
    table = jets(20)
    flat = {name: table.fixed(name) for name in ("jet_pt", "jet_mass", "label")}
    csv.write_csv(pyarrow.table(flat), tmp_path / "jets.csv")
    recipe = settings.load_settings("jetfeatures", ["features.inputs=[jet_mass]", "data.keep=[jet_eta]"]).recipe
    with pytest.raises(DataError, match="no column 'jet_eta'"):
        clew.prepare(recipe, input=[str(tmp_path / "jets.csv")], output=str(tmp_path / "data"), workers=1)


def test_images_of_unknown_class_may_have_any_name(tmp_path: Path) -> None:
    images = np.random.default_rng(1).exponential(1, (40, 12, 12)).astype(np.float32)
    with h5py.File(tmp_path / "known.h5", "w") as file:
        file["QCD"], file["TT"] = images[:20], images[20:]
    with h5py.File(tmp_path / "real.h5", "w") as file:
        file["jets"] = images
    chosen = ["data.images=[QCD, TT]", "model.width=4", "train.epochs=1", "train.threads=1"]
    loaded = settings.load_settings("jetimages", chosen)
    where = [str(tmp_path / "known.h5")]
    data = clew.prepare(loaded.recipe, loaded.prepare, input=where, output=str(tmp_path / "data"), workers=1)
    run = clew.train(loaded.recipe, data, config=loaded.train, output=tmp_path / "run")
    labelled: Any = clew.predict(run, input=where)
    predictions: Any = clew.predict(run, input=[str(tmp_path / "real.h5")])
    np.testing.assert_allclose(predictions.fixed("score_TT"), labelled.fixed("score_TT"), atol=1e-6)
    with pytest.raises(DataError, match="no dataset 'QCD'"):
        clew.evaluate(run, input=[str(tmp_path / "real.h5")])


def test_scaling_of_remaining_columns_is_kept() -> None:
    steps = [
        Compute(column="label", expression="kind > 1"),
        Select(where="label"),
        Standard(columns=("pt", "kind")),
        MinMax(columns=("label",)),
        Compute(column="far", expression="pt + 1"),
    ]
    remaining, removed = without_columns(steps, ["kind"])
    assert remaining == [Standard(columns=("pt",)), steps[-1]] and removed == {"kind", "label"}
