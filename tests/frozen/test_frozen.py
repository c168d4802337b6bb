"""What older versions of clew wrote can be read, used and continued. What a newer one wrote gets one line."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file

from clew import Dataset, Run, Table, predict
from clew.data.dataset.batch import RaggedTensor, to_batch
from clew.tuning.study import Study
from tests.cli import clew
from tests.frozen.make import HERE, PLACE, unpack
from tests.server.conftest import Live

VERSIONS = sorted(path.name for path in HERE.iterdir() if (path / "dataset.tar.gz").is_file())


@pytest.fixture(params=VERSIONS)
def frozen(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files of one version, which a test may change. It is the working folder."""
    unpack(request.param, tmp_path / "frozen")
    monkeypatch.chdir(tmp_path / "frozen")
    return tmp_path / "frozen"


def _succeeds(*words: str) -> str:
    done = clew(*words)
    assert done.code == 0, done.err
    return done.out


def test_a_dataset_is_read(frozen: Path) -> None:
    dataset = Dataset("dataset")
    dataset.verify()
    assert dataset.splits == {"train": 53, "val": 3, "test": 4}
    events = Table.load(frozen / "events.h5")
    assert sum(dataset.splits.values()) == len(events) and "Table(60 events" in repr(events)
    batch = to_batch(dataset.read("train").slice(0, 16))
    hits = batch.columns["hits"]
    assert batch["x"].shape == (16, 3) and isinstance(hits, RaggedTensor) and len(hits.values) == hits.offsets[-1]


def test_a_run_is_opened_evaluated_and_continued(frozen: Path) -> None:
    run = Run.open("run")
    assert run.state == "finished" and [record["epoch"] for record in run.records(kind="validation")] == [0, 1]
    before = run.evaluations()["test"]["metrics"]["loss"]["value"]
    _succeeds("evaluate", "run", "--dataset", "dataset")
    assert run.evaluations()["test"]["metrics"]["loss"]["value"] == pytest.approx(before, rel=1e-5)
    _succeeds("train", "--resume", "run", "--dataset", "dataset", "--epochs", "3")
    assert run.state == "finished" and [record["epoch"] for record in run.history() if "metrics" in record] == [0, 1, 2]
    assert run.last("resume", "rank-0") is not None and run.last("step")["step"] == 12  # type: ignore[index]


def test_models_predict(frozen: Path) -> None:
    _succeeds("model", "get", "stored/line", "--output", "fetched", "--trust")
    _succeeds("predict", "run", "events.h5", "--output", "values.h5")
    values = [Table.load(frozen / "values.h5").fixed("value")]
    for model in ("fetched", "model.onnx"):
        values.append(predict(model, input=["events.h5"], recipe="recipe.py").fixed("value"))
    assert len(values[0]) == 60 and np.std(values[0]) > 0
    for other in values[1:]:
        np.testing.assert_allclose(other, values[0], rtol=1e-4, atol=1e-5)


def test_a_study_is_listed_and_continued(frozen: Path) -> None:
    before = Study.open("study").trials()
    assert [trial.state for trial in before] == ["complete", "complete"]
    _succeeds("tune", "show", "study")
    config = frozen / "study" / "config.yaml"  # it names the places of the recipe and the dataset
    config.write_text(config.read_text().replace(str(PLACE), str(frozen)))
    _succeeds("tune", "run", "--resume", "study", "--trials", "3")
    after = Study.open("study").trials()
    assert [trial.state for trial in after] == ["complete"] * 3
    assert [trial.values for trial in after[:2]] == [trial.values for trial in before]


def test_a_server_starts_on_the_database(frozen: Path) -> None:
    token = _succeeds("token", "create", "now", "--user", "ada", "--scope", "admin", "--folder", "service").split()[0]
    live = Live(frozen / "service", token=token).start()
    try:
        with live.client(token) as client:
            (run,) = client.get("/api/v1/runs").json()["items"]
            points = client.get(f"/api/v1/runs/{run['id']}/metrics/val/loss").json()
            (job,) = client.get("/api/v1/jobs").json()["items"]
    finally:
        assert live.stop() == 0
    assert (run["name"], run["state"], job["name"], job["state"]) == ("run", "finished", "waits", "waiting")
    assert points["step"] == [4, 8]


def _newer_dataset(folder: Path) -> list[str]:
    _edit_json(folder / "dataset" / "manifest.json", format=99)
    return ["train", "recipe.py", "--dataset", "dataset"]


def _newer_table(folder: Path) -> list[str]:
    with h5py.File(folder / "dataset" / "train-00000.h5", "r+") as file:
        file.attrs["clew_table"] = 99
    return ["train", "recipe.py", "--dataset", "dataset", "--set", "train.threads=1"]


def _newer_run(folder: Path) -> list[str]:
    _edit_json(folder / "run" / "environment.json", format=99)
    return ["evaluate", "run"]


def _newer_records(folder: Path) -> list[str]:
    records = folder / "run" / "records" / "rank-0.jsonl"
    records.write_text(records.read_text().replace('"schema": 1', '"schema": 99'))
    return ["runs", "report", "run"]


def _newer_checkpoint(folder: Path) -> list[str]:
    (path,) = (folder / "run" / "checkpoints").glob("step-*.pt")
    torch.save({**torch.load(path, weights_only=True), "format": 99}, path)
    return ["train", "--resume", "run", "--dataset", "dataset", "--epochs", "3"]


def _newer_weights(folder: Path) -> list[str]:
    path = folder / "run" / "checkpoints" / "best.safetensors"
    save_file(load_file(path), path, metadata={"clew": json.dumps({"format": 99})})
    return ["evaluate", "run", "--dataset", "dataset"]


def _newer_export(folder: Path) -> list[str]:
    model = onnx.load(folder / "model.onnx")
    (facts,) = model.metadata_props
    facts.value = json.dumps({**json.loads(facts.value), "format": 99})
    onnx.save(model, folder / "model.onnx")
    return ["predict", "model.onnx", "events.h5", "--output", "values.h5"]


def _newer_stored_model(folder: Path) -> list[str]:
    _edit_json(folder / "stored" / "line" / "clew.json", format=99)
    return ["model", "get", "stored/line", "--output", "fetched"]


def _newer_study(folder: Path) -> list[str]:
    _edit_json(folder / "study" / "study.json", format=99)
    return ["tune", "show", "study"]


def _newer_database(folder: Path) -> list[str]:
    with sqlite3.connect(folder / "service" / "clew.sqlite") as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    database.close()
    return ["token", "create", "now", "--user", "ada", "--folder", "service"]


def _edit_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


NEWER = (
    _newer_dataset,
    _newer_table,
    _newer_run,
    _newer_records,
    _newer_checkpoint,
    _newer_weights,
    _newer_export,
    _newer_stored_model,
    _newer_study,
    _newer_database,
)


@pytest.mark.parametrize("change", NEWER, ids=lambda change: change.__name__.removeprefix("_newer_"))
def test_a_newer_format_gets_one_line(change: Callable[[Path], list[str]], frozen: Path) -> None:
    done = clew(*change(frozen))
    assert done.code == 2, done.out + done.err
    (line,) = [line for line in done.err.splitlines() if line.startswith("clew:")]
    assert "written by a newer clew (" in line and line.endswith("; update clew") and "99" in line
