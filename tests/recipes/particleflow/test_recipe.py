"""The recipe from a file to figures: both networks learn, and every figure is there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import clew
from clew import Run, Table, settings
from clew.errors import ConfigError

from . import flow_events

SMALL = ["model.width=16", "model.distance=8", "model.bin_size=32", "model.codes=6", "model.heads=2"]
SMALL += ["model.identity_width=16", "model.momentum_width=16", "train.threads=1", "train.batch_size=8"]


def _trained(folder: Path, *more: str) -> Run:
    flow_events(64).save(folder / "synthetic.h5")
    loaded = settings.load_settings("particleflow", [*SMALL, "train.optimizer.lr=0.01", *more])
    where = [str(folder / "synthetic.h5")]
    data = clew.prepare(loaded.recipe, loaded.prepare, input=where, output=str(folder / "data"), workers=1)
    return clew.train(loaded.recipe, data, config=loaded.train, output=folder / "run")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return _trained(tmp_path_factory.mktemp("graph"), "train.epochs=8")


def test_the_graph_network_learns(run: Run) -> None:
    first, *_, last = (record["metrics"] for record in run.records(kind="validation"))
    assert last["loss"] < 0.7 * first["loss"] and last["accuracy"] > 0.7
    assert last["accuracy_padded"] > last["accuracy"], "padding is right for nothing"


def test_attention_learns(tmp_path: Path) -> None:
    run = _trained(tmp_path, "model.kind=attention", "train.epochs=15", "metrics.jets=false")
    first, *_, last = (record["metrics"] for record in run.records(kind="validation"))
    assert last["loss"] < 0.8 * first["loss"] and last["accuracy"] > 0.6


def test_an_evaluation_has_every_figure_and_a_display(run: Run) -> None:
    result = clew.evaluate(run)
    for name in ("accuracy", "efficiency/photon", "fake/neutral_hadron", "met_response", "energy_response"):
        assert np.isfinite(result.metrics[name].value), name
    drawn = {path.stem.partition("-")[2] for path in (run.plots / "test").glob("*.json")}
    assert {"confusion", "efficiency_pt", "efficiency_eta", "fake_pt", "fake_eta", "met_response"} <= drawn
    displays = [json.loads(p.read_text()) for p in (run.plots / "test").glob("*event_*.json")]
    assert displays and {trace["name"] for trace in displays[0]["data"]} >= {"towers", "tracks", "photon, true"}


def test_predictions_need_no_truth(run: Run, tmp_path: Path) -> None:
    events = flow_events(5, seed=9)
    events.drop("targets").save(tmp_path / "unlabelled.h5")
    predictions = clew.predict(run, input=[str(tmp_path / "unlabelled.h5")])
    assert isinstance(predictions, Table) and {"pid", "charge", "pt", "eta", "phi", "energy"} <= set(predictions)
    assert predictions.ragged("pid").lengths.tolist() == events.ragged("elements").lengths.tolist()
    assert (predictions.ragged("pt").values >= 0).all() and np.abs(
        predictions.ragged("phi").values
    ).max() <= np.pi + 1e-6


def test_settings_that_make_no_sense_are_reported() -> None:
    with pytest.raises(ConfigError, match="width 256 must be a multiple of the number of heads, 10"):
        settings.load_settings("particleflow", ["model.kind=attention", "model.heads=10"])
    with pytest.raises(ConfigError, match="multiple of 2"):
        settings.load_settings("particleflow", ["model.codes=7"])
