"""The example recipe: it learns its task, its file is short."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import clew
from clew.recipe import find
from clew.recipes import tagger
from clew.runs.report import write_report


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> clew.Run:
    folder = tmp_path_factory.mktemp("tagger")
    list(tagger.JetTagger().generate(3000, 1, folder / "events"))
    data = clew.prepare("tagger", input=[str(folder / "events")], output=str(folder / "dataset"), workers=1)
    return clew.train("tagger", data, epochs=5, output=folder / "run")


def test_it_is_a_shipped_recipe_of_one_file_that_is_short_enough_to_read() -> None:
    assert find("tagger") is tagger.JetTagger
    assert len(Path(tagger.__file__).read_text().splitlines()) < 180


def test_it_separates_the_two_kinds_of_jets(run: clew.Run) -> None:
    assert clew.evaluate(run).metrics["auc"].value > 0.9
    report = write_report(run).read_text()
    assert "ROC, auc" in report and "Signal efficiency against jet pT" in report and "jet with score" in report


def test_it_predicts_jets_without_labels(run: clew.Run, tmp_path: Path) -> None:
    jets = tagger.generate_jets(50, np.random.default_rng(5), tagger.JetSample()).drop("signal")
    jets.save(tmp_path / "jets.h5")
    clew.predict(run, input=[str(tmp_path / "jets.h5")], output=tmp_path / "scores.h5")
    assert clew.Table.load(tmp_path / "scores.h5").fixed("score").shape == (50,)
