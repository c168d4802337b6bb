"""The shipped recipes find tracks: trained on generated events, evaluated on unseen and on real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

import clew
from clew import Run
from clew.settings import load_settings

pytestmark = pytest.mark.timeout(240)
SMALL = ["train.batch_size=8", "train.optimizer.lr_batch=8"]
"""More steps from fewer events."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """700 events, the shipped settings but for six epochs of smaller batches instead of thirty."""
    return trained("tracking", 700, ["train.epochs=6", *SMALL], tmp_path_factory.mktemp("quality"))


@pytest.mark.slow
def test_unseen_tracks_are_found(good: Run) -> None:
    result = clew.evaluate(good).metrics
    assert result["efficiency"].value >= 0.9
    assert result["purity"].value >= 0.6
    assert result["edge_auc"].value >= 0.97


def trained(name: str, events: int, settings: list[str], folder: Path) -> Run:
    shipped = load_settings(name, [*settings, "train.threads=1"])
    for _ in shipped.recipe.generate(events, 3, folder / "events"):
        pass
    output, raw = str(folder / "dataset"), [str(folder / "events")]
    data = clew.prepare(shipped.recipe, shipped.prepare, input=raw, output=output, workers=1)
    return clew.train(shipped.recipe, data, config=shipped.train, output=folder / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "epochs", "efficiency", "auc"), [("hitgraph", 6, 0.8, 0.97), ("tracknet", 12, 0.85, 0.93)]
)
def test_the_other_recipes_find_unseen_tracks_too(
    tmp_path: Path, name: str, epochs: int, efficiency: float, auc: float
) -> None:
    result = clew.evaluate(trained(name, 700, [f"train.epochs={epochs}"], tmp_path)).metrics
    assert result["efficiency"].value >= efficiency
    assert result["purity"].value >= 0.6
    assert result["edge_auc"].value >= auc


@pytest.mark.slow
@pytest.mark.parametrize(("name", "epochs"), [("hitgraph", 5), ("tracknet", 15)])
def test_planes_are_learned_from_too(tmp_path: Path, name: str, epochs: int) -> None:
    settings = ["detector.name=bmn", f"train.epochs={epochs}", "train.batch_size=8"]
    result = clew.evaluate(trained(name, 100, settings, tmp_path), weights="last").metrics
    assert result["edge_auc"].value > 0.8
    assert result["efficiency_50"].value > 0.5
    assert "efficiency_pt" in result


@pytest.mark.slow
def test_tracks_of_the_public_sample_are_found(good: Run, public_file: Path) -> None:
    result = clew.evaluate(good, input=[str(public_file)], name="public")
    assert result.events == 51
    assert result.metrics["efficiency"].value >= 0.8
    assert result.metrics["purity"].value >= 0.6
