"""What a session prints of a run, an evaluation, an export, a dataset and a batch, and what a notebook shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import clew
from clew import Dataset, Ragged, Run, Table
from clew.data.dataset.batch import to_batch


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    data = (x, (x.sum(axis=1) > 0).astype(np.int64))
    return clew.train(nn.Linear(2, 2), data, epochs=2, output=tmp_path_factory.mktemp("run") / "runs/first")


def html(thing: Any) -> str:
    text: str = thing._repr_html_()
    assert text.startswith("<div><b>") and text.endswith("</table></div>")
    return text


def test_a_run_shows_its_state_epochs_and_metrics(run: Run) -> None:
    number = r"\d\.?[\de-]*"
    expected = f"Run({run.path}: finished, epoch 2/2, loss N, accuracy N, auc N)"
    assert re.fullmatch(re.escape(expected).replace("N", number), str(run))
    assert "<td>accuracy</td>" in html(run) and "<td>finished</td>" in html(run)


def test_a_failed_run_shows_why(tmp_path: Path) -> None:
    bad = np.full((200, 2), 1e30, dtype=np.float32)
    with pytest.raises(clew.errors.ClewError):
        clew.train(nn.Linear(2, 1), (bad, bad.sum(axis=1)), epochs=1, output=tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert "failed" in repr(run) and "<td>message</td>" in html(run)


def test_a_run_of_a_missing_folder_can_be_printed(tmp_path: Path) -> None:
    assert repr(Run(str(tmp_path / "gone"))) == f"Run({tmp_path}/gone: no such folder)"  # type: ignore[arg-type]
    assert "no such folder" in html(Run(tmp_path / "gone"))


def test_an_evaluation_shows_values_with_errors(run: Run) -> None:
    evaluation = clew.evaluate(run, split="val")
    assert re.fullmatch(
        r"Evaluation\(val: 44 events, loss [\d.]+, accuracy [\d.]+ (\+[\d.]+ −|± )[\d.]+, auc [\d.]+( ± [\d.]+)?\)",
        str(evaluation),
    )
    assert "<th>metric</th><th>value</th><th>error</th>" in html(evaluation)


def test_an_export_shows_inputs_and_outputs(run: Run, tmp_path: Path) -> None:
    exported = clew.export(run, to="torch", output=tmp_path / "model.pt2", split="val")
    assert repr(exported).startswith(f"Export({tmp_path}/model.pt2: features -> output, difference ")
    assert "<td>outputs</td><td>output</td>" in html(exported)


def test_a_dataset_shows_splits_and_columns(run: Run) -> None:
    dataset = Dataset(run.config().data["train"]["dataset"])
    expected = f"Dataset({dataset.path}: train 156, val 44 samples; features float32[2], labels int64)"
    assert repr(dataset) == expected
    assert "<td>features</td><td>float32[2]</td>" in html(dataset)


def test_a_batch_shows_columns_with_shapes() -> None:
    columns = {f"x{number}": np.zeros(2) for number in range(7)}
    batch = to_batch(Table({"pt": Ragged.from_lists([[1.0, 2.0], [3.0]]), **columns}))
    assert repr(batch).startswith("Batch(2 events on cpu; pt ragged float64 (3,), x0 float64 (2,), ")
    assert repr(batch).endswith("and 2 more)")
    assert "<td>pt</td><td>ragged float64</td><td>(3,)</td>" in html(batch)
