"""The jet recipes from a file to figures: every network learns, with every kind of sample."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew import Dataset, Ragged, Run, Table
from clew.cli.start import recipe_template
from clew.errors import ConfigError
from clew.recipe import find
from clew.settings import load_settings

from . import jets, real

KINDS = {
    "gru": ("jets", ["model.kind=gru", "model.width=16", "model.layers=1"]),
    "conv": ("jets", ["model.kind=conv", "model.width=16"]),
    "transformer": ("jets", ["model.kind=transformer", "model.width=16", "model.layers=1"]),
    "pairs": ("jets", ["model.kind=transformer", "model.width=16", "model.layers=1", "model.pairs=4"]),
    "edgeconv": ("jets", ["model.kind=edgeconv", "model.width=16", "model.layers=2", "model.neighbours=4"]),
    "particlenet": (
        "jets",
        [
            *("model.kind=particlenet", "model.width=16", "model.layers=2", "model.neighbours=4"),
            "train.loading.bucket=null",
        ],
    ),
    "cnn": ("jetimages", ["model.kind=cnn", "model.width=4", "images.pixels=12"]),
    "cloud": ("jetimages", ["model.kind=cloud", "model.width=4", "images.pixels=12"]),
    "mlp": ("jetfeatures", ["model.width=16"]),
}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jets") / "synthetic.h5"
    jets(600).save(path)
    return path


def _trained(kind: str, sample: Path, folder: Path, *more: str) -> tuple[Dataset, Run]:
    name, settings = KINDS[kind]
    loaded = load_settings(name, [*settings, "train.threads=1", "train.epochs=4", "train.batch_size=32", *more])
    data = clew.prepare(loaded.recipe, loaded.prepare, input=[str(sample)], output=str(folder / "data"), workers=1)
    return data, clew.train(loaded.recipe, data, config=loaded.train, output=folder / "run")


@pytest.mark.parametrize("kind", KINDS)
def test_every_network_learns_five_classes(kind: str, sample: Path, tmp_path: Path) -> None:
    _, run = _trained(kind, sample, tmp_path, "train.optimizer.lr=0.01")
    first, *_, last = (record["metrics"] for record in run.records(kind="validation"))
    assert last["loss"] < first["loss"] and last["top/auc"] > 0.7
    scores = clew.predict(run, split="test")
    assert isinstance(scores, Table) and list(scores)[-5:] == [f"score_{name}" for name in ("q", "g", "W", "Z", "top")]
    np.testing.assert_allclose(sum(scores.fixed(f"score_{n}") for n in ("q", "g", "W", "Z", "top")), 1, rtol=1e-6)


def test_an_evaluation_has_errors_and_a_picture_for_every_signal(sample: Path, tmp_path: Path) -> None:
    _, run = _trained("mlp", sample, tmp_path, "metrics.signals=[top, W]", "metrics.backgrounds=[q, g]")
    result = clew.evaluate(run)
    assert {"top/auc", "W/rejection_50", "accuracy"} <= result.metrics.keys() and "q/auc" not in result.metrics
    assert 0 < result.metrics["top/auc"].error < 0.2
    drawn = [json.loads(path.read_text()) for path in sorted((run.plots / "test").glob("*curves*.json"))]
    assert len(drawn) == 2
    assert all(each["layout"]["images"][0]["source"].startswith("data:image/svg+xml") for each in drawn)


def test_reweighting_reaches_the_samples(sample: Path, tmp_path: Path) -> None:
    recipe = load_settings("jets", ["reweight={columns: {jet_pt: [400, 500, 600, 700]}}"]).recipe
    data = clew.prepare(recipe, input=[str(sample)], output=str(tmp_path / "data"), workers=1)
    whole = clew.concat([data.read(split) for split in data.splits])
    sums = np.bincount(whole.fixed("label"), weights=whole.weights)
    np.testing.assert_allclose(sums, sums[0], rtol=1e-9)
    assert whole.weights.mean() == pytest.approx(1)


def test_constituents_are_ordered_and_cut(tmp_path: Path) -> None:
    recipe = load_settings("jets", ["constituents.inputs=[part_pt]", "constituents.max_constituents=5"]).recipe
    table = jets(40)
    constituents = recipe.prepare(table).ragged("constituents")
    assert constituents.lengths.tolist() == np.minimum(table.ragged("part_pt").lengths, 5).tolist()
    for jet_constituents, all_of_it in zip(constituents, table.ragged("part_pt"), strict=True):
        np.testing.assert_allclose(jet_constituents[:, 0], np.sort(all_of_it)[::-1][:5], rtol=1e-6)


def test_two_classes_have_plain_names(tmp_path: Path) -> None:
    recipe = load_settings("jets", ["data.labels={light: 'label < 2', heavy: 'label == 4'}"]).recipe
    table = jets(100)
    for step in recipe.transforms():
        table = step(table)
    assert set(table.fixed("label")) == {0, 1} and len(table) == 60
    metrics = recipe.metrics(recipe.prepare(table), {"output": np.zeros((60, 2))}, Table({}))
    assert {"auc", "rejection_30", "rejection_50", "rejection_70", "curves", "scores", "accuracy_pt"} <= metrics.keys()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["metrics.signals=[tau]"], "metrics: no class 'tau', only q, g, W, Z, top"),
        (["data.labels={q: 'label == 0'}"], "'q' is the only class"),
        (["model.kind=transformer", "model.width=30"], "the width 30 is no multiple of the number of heads"),
        (["model.kind=conv", "model.kernel=4"], "kernel must be odd"),
        (["model.kind=edgeconv", "model.coordinates=[0, 13]"], "numbers of constituents.inputs, from 0 to 12"),
        (["model.kind=transformer", "model.pairs=8", "model.momentum=13"], "got [0, 1, 13]"),
        (["generator.classes=[QDC]"], "no class of jets 'QDC'; did you mean 'QCD'?"),
        (["generator.classes=[QCD, QCD]"], "name each class once"),
        (["generator.layout=toptagging"], "needs classes: [QCD, top]"),
        (["data.select=jet_pt >"], "cannot be understood"),
        (["reweight={columns: {jet_pt: [2, 1]}}"], "the edges of 'jet_pt' must rise"),
        (["reweight={reference: 1}"], "a reference class needs columns"),
    ],
)
def test_settings_that_make_no_sense_are_reported(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_settings("jets", settings)


def test_inputs_of_jets_and_of_constituents_do_not_mix() -> None:
    with pytest.raises(ConfigError, match="'jet_pt' has one value per jet"):
        load_settings("jets", ["constituents.inputs=[part_pt, jet_pt]"]).recipe.prepare(jets(10))
    with pytest.raises(ConfigError, match="use the recipe jetfeatures"):
        load_settings("jets", ["constituents.inputs=[jet_pt]"]).recipe.prepare(jets(10))


@pytest.mark.parametrize("name", sorted(recipe_template.settings_files()))
def test_shipped_settings_are_valid(name: str, tmp_path: Path) -> None:
    path = recipe_template.write_recipe("mine", name, tmp_path)[0]
    assert path.name == "mine.yaml" and "@" not in path.read_text()
    loaded = load_settings(str(path))
    assert loaded.recipe.model() is not None


def test_preparing_does_not_load_torch(sample: Path, tmp_path: Path) -> None:
    code = f"""
import sys, clew
for name in ("jets", "jetimages", "jetfeatures"):
    clew.prepare(name, input=[{str(sample)!r}], output=f"{tmp_path}/{{name}}", workers=1)
assert "torch" not in sys.modules and "matplotlib" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_the_public_images_are_distinguished(tmp_path: Path) -> None:
    path = real("machine-learning-das/jet_images.h5")
    settings = ["data.images=[QCD, TT]", "train.epochs=2", "train.threads=1", "model.width=8"]
    loaded = load_settings("jetimages", [*settings, "model.kind=cloud"])
    data = clew.prepare(loaded.recipe, loaded.prepare, input=[str(path)], output=str(tmp_path / "data"), workers=1)
    assert sum(data.splits.values()) == 5027
    run = clew.train(loaded.recipe, data, config=loaded.train, output=tmp_path / "run")
    auc: Any = clew.evaluate(run).metrics["auc"]
    assert auc.value > 0.93 and 0.001 < auc.error < 0.03


def test_recipes_are_found_by_name() -> None:
    assert {find(name).__name__ for name in ("jets", "jetimages", "jetfeatures")} == {
        "Jets",
        "JetImages",
        "JetFeatures",
    }
    assert isinstance(jets(5).ragged("part_pt"), Ragged)
