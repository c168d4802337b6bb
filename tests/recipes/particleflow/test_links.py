"""Features from linked elements, on events made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import clew
from clew import Ragged
from clew.recipes.particleflow.links import LINK_FEATURES, link_features
from clew.settings import load_settings
from tests.recipes.particleflow.test_rule_based import event, tower, track
from tests.training import validations


def features(elements: Ragged, row: int) -> dict[str, float]:
    """The features of one element in GeV, without logarithms."""
    values = link_features(elements)[row].astype(float)
    return dict(zip(LINK_FEATURES, (np.sign(values) * np.expm1(np.abs(values))).tolist(), strict=True))


def test_a_tower_knows_the_tracks_that_point_at_it() -> None:
    elements = event(
        tower(0, 50), tower(20, 0), track(30.0), track(40.0), track(5.0, electron=True), track(9.0, muon=True)
    )
    expected = {"tracks": 4, "hadron_momentum": 70, "electron_momentum": 5, "hardest_track": 40}
    expected |= {"em_energy": 20, "had_energy": 50, "had_remainder": -20, "em_remainder": 15}
    expected |= {"momentum_around": 0, "em_energy_around": 0, "had_energy_around": 0}
    for row in range(len(elements.values)):  # all elements are in the same cell
        assert features(elements, row) == pytest.approx(expected, rel=1e-4)


def test_the_cells_around_are_summed_across_the_seam() -> None:
    width = 2 * np.pi / 72
    elements = event(
        tower(0, 50, phi=np.pi - width / 2), tower(8, 0, phi=-np.pi + width / 2), track(3.0, eta=0.1, phi=np.pi - 0.01)
    )
    own = features(elements, 0)
    assert own["em_energy_around"] == pytest.approx(8, rel=1e-4)
    assert own["momentum_around"] == pytest.approx(3, rel=1e-4) and own["tracks"] == 0
    assert features(elements, 1)["had_energy_around"] == pytest.approx(50, rel=1e-4)


def test_events_are_not_linked_to_each_other() -> None:
    rows = np.array([tower(0, 50), track(30.0)], dtype=np.float32)
    assert features(Ragged.from_lengths(rows, [1, 1]), 0)["tracks"] == 0
    assert features(Ragged.from_lengths(rows, [2]), 0)["tracks"] == pytest.approx(1)


@pytest.mark.parametrize("kind", ["graph", "attention", "element"])
def test_networks_train_on_linked_elements(kind: str, tmp_path: Path) -> None:
    sizes = ["model.width=16", "model.distance=8", "model.bin_size=32", "model.heads=2", "train.batch_size=4"]
    options = ["data.links=true", "generator.kind=parametric", "generator.pileup=0", f"model.kind={kind}", *sizes]
    loaded = load_settings("particleflow", [*options, "train.epochs=1"])
    files = [str(path) for path, _ in loaded.recipe.generate(30, 1, tmp_path / "events")]
    data = clew.prepare(loaded.recipe, loaded.prepare, input=files, output=str(tmp_path / "data"), workers=1)
    assert data.read("train").ragged("elements").values.shape[1] == 12 + len(LINK_FEATURES)
    run = clew.train(loaded.recipe, data, config=loaded.train, output=tmp_path / "run")
    assert not [name for name in validations(run)[-1] if name.startswith("rule/")]  # they never change
    results = clew.evaluate(run).metrics
    assert results["accuracy"].value > 0.2 and results["rule/accuracy"].value > 0.8
    assert len(clew.predict(run, input=files)) == 30
