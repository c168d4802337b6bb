"""Evaluation gives the same figures for every source of the same events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import clew
from clew import Dataset, Run
from clew.errors import DataError, RunError
from clew.inference.evaluate import Evaluation

COUNTED = ("efficiency", "purity", "ghost_rate", "event_ratio", "f1")


def assert_same(left: Evaluation, right: Evaluation) -> None:
    assert left.events == right.events
    for name in COUNTED:
        assert left.metrics[name].value == pytest.approx(right.metrics[name].value, rel=1e-12), name
    assert left.metrics["loss"].value == pytest.approx(right.metrics["loss"].value, rel=1e-6)


def test_a_split_is_evaluated_whole_and_written_down(run_copy: Run, dataset: Dataset) -> None:
    result = clew.evaluate(run_copy, split="val")
    assert result.events == dataset.splits["val"]
    record = run_copy.evaluations()["val"]
    assert record["metrics"]["efficiency"]["value"] == result.metrics["efficiency"].value
    assert record["metrics"]["efficiency"]["error"] == pytest.approx(result.metrics["efficiency"].error)
    assert (record["events"], record["checkpoint"]) == (result.events, "best")
    assert "efficiency_pt" not in record["metrics"]


def test_raw_events_give_the_figures_of_the_dataset_made_from_them(run_copy: Run, events: Path, tmp_path: Path) -> None:
    whole = clew.prepare(
        "tracking", input=[str(events)], output=str(tmp_path / "whole"), split={"test": 1.0}, workers=1
    )
    assert_same(clew.evaluate(run_copy, input=[str(events)]), clew.evaluate(run_copy, data=whole))


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_figures_do_not_depend_on_the_size_of_batches(run_copy: Run, size: int) -> None:
    assert_same(clew.evaluate(run_copy, batch_size=size), clew.evaluate(run_copy))


def test_an_evaluation_of_the_same_name_replaces_the_one_before(run_copy: Run) -> None:
    clew.evaluate(run_copy, split="val", name="mine")
    (run_copy.plots / "mine" / "99-old.json").write_text("{}")
    result = clew.evaluate(run_copy, split="test", name="mine")
    assert run_copy.evaluations()["mine"]["events"] == result.events
    assert not (run_copy.plots / "mine" / "99-old.json").exists()
    assert set(run_copy.evaluations()) == {"test", "mine"}


def test_figures_are_json_in_the_order_of_the_metrics(run_copy: Run) -> None:
    clew.evaluate(run_copy, name="mine")
    files = sorted((run_copy.plots / "mine").iterdir())
    assert [path.name for path in files[:3]] == [
        "00-edge_auc.json",
        "01-edge_auc_scores.json",
        "02-efficiency_pt.json",
    ]
    assert len(files) == 10

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    for path in files:
        figure = json.loads(path.read_text(), parse_constant=refuse)
        assert figure["data"] and figure["layout"]["title"]["text"]


def test_progress_counts_every_event(run_copy: Run, dataset: Dataset) -> None:
    updates: list[tuple[int, int | None]] = []
    clew.evaluate(run_copy, batch_size=1, progress=lambda done, total: updates.append((done, total)))
    assert updates == sorted(set(updates)) and len(updates) > 1
    assert updates[-1] == (dataset.splits["test"], dataset.splits["test"])


def test_event_weights_change_the_figures(run_copy: Run, dataset: Dataset, tmp_path: Path) -> None:
    test = dataset.read("test")
    rng = np.random.default_rng(0)
    test.slice(0, 20).save(tmp_path / "plain.h5")
    test.slice(0, 20).join({"weight": rng.uniform(0, 3, 20)}).save(tmp_path / "weighted.h5")
    plain, weighted = (
        clew.evaluate(run_copy, input=[str(tmp_path / f"{n}.h5")], name=n) for n in ("plain", "weighted")
    )
    assert weighted.metrics["efficiency"].value != plain.metrics["efficiency"].value
    assert weighted.metrics["loss"].value != plain.metrics["loss"].value


def test_missing_inputs_are_named(run_copy: Run, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no split 'tset'; did you mean 'test'\?"):
        clew.evaluate(run_copy, split="tset")
    with pytest.raises(DataError, match="no input file matches"):
        clew.evaluate(run_copy, input=[str(tmp_path / "*.txt")])
    with pytest.raises(RunError, match="no such checkpoint"):
        clew.evaluate(run_copy, weights="first")
    with pytest.raises(RunError, match="no such run"):
        clew.evaluate(tmp_path / "gone")


def test_a_file_of_other_events_is_refused_by_name(run_copy: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_text("1 2 3\n")
    with pytest.raises(DataError, match=r"bad\.txt: .*3 columns, expected 6"):
        clew.evaluate(run_copy, input=[str(tmp_path / "bad.txt")])


def test_raw_events_that_all_fail_a_cut_are_reported(run_copy: Run, events: Path) -> None:
    cut = [{"kind": "select", "where": "event < 0"}]
    config, manifest = run_copy.path / "config.yaml", run_copy.dataset_file
    config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), "transforms": cut}))
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "transforms": cut}))
    with pytest.raises(DataError, match="no event passes select 'event < 0'"):
        clew.evaluate(run_copy.path, input=[str(events)])
