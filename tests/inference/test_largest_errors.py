"""The events that a model gets most wrong are in the report, the same for any number of processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew import Run
from clew.inference.largest_errors import EXAMPLES
from clew.recipes.tagger import JetTagger


@pytest.fixture(scope="module")
def tagger_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("tagger")
    recipe = JetTagger()
    assert list(recipe.generate(400, 1, folder / "events"))
    split = {"train": 0.4, "val": 0.2, "test": 0.4}
    data = clew.prepare(recipe, input=[str(folder / "events")], output=str(folder / "dataset"), split=split, workers=1)
    return clew.train(recipe, data, epochs=2, output=folder / "run")


def error_table(run: Run, name: str) -> dict[str, list[str]]:
    [path] = (run.plots / name).glob("*-errors.json")
    trace = json.loads(path.read_text())["data"][0]
    return dict(zip(trace["header"]["values"], trace["cells"]["values"], strict=True))


def test_the_largest_losses_are_listed_and_drawn(tagger_run: Run) -> None:
    clew.evaluate(tagger_run, name="all")
    predictions: Any = clew.predict(tagger_run, columns=["signal"])
    wrong = np.abs(predictions.fixed("score") - predictions.fixed("signal"))
    expected = np.sort(-np.log(1 - wrong))[::-1][:EXAMPLES]
    table = error_table(tagger_run, "all")
    assert [float(loss) for loss in table["loss"]] == pytest.approx(expected.tolist(), rel=1e-3)
    assert {"score", "signal", "jet_pt"} <= set(table)
    assert len(list((tagger_run.plots / "all").glob("*-error_*.json"))) == EXAMPLES


@pytest.mark.parametrize(("workers", "batch_size"), [(1, 7), (2, 7), (2, 64)])
def test_they_do_not_depend_on_processes_and_batches(tagger_run: Run, workers: int, batch_size: int) -> None:
    clew.evaluate(tagger_run, name="one")
    clew.evaluate(tagger_run, name="other", workers=workers, batch_size=batch_size)
    assert error_table(tagger_run, "one") == error_table(tagger_run, "other")


def test_a_recipe_without_a_loss_per_event_has_none(run_copy: Run) -> None:
    clew.evaluate(run_copy, name="mine")
    assert not list((run_copy.plots / "mine").glob("*error*"))


def test_the_report_has_a_section_for_them(tagger_run: Run, tmp_path: Path) -> None:
    from clew.runs.report import write_report

    clew.evaluate(tagger_run, name="test")
    page = write_report(tagger_run).read_text()
    assert "Evaluation: test, largest errors" in page and "Events with the largest losses" in page
