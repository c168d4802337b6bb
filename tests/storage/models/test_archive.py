"""Models in a store: found by their numbers, downloaded complete."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import clew
from clew import Dataset, Run, settings, storage
from clew.errors import ConfigError, DataError
from clew.storage import models
from clew.storage.models import model_card
from clew.training.api import resume


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "cache"))


def test_a_model_is_stored_found_and_downloaded(run: Run, dataset: Dataset, tmp_path: Path) -> None:
    place = models.store_model(run, str(tmp_path / "models"), ("model", "plots", "report"))
    (match,) = models.find_models(str(tmp_path / "models"), "val_loss < 100 and test_loss < 100 and epoch >= 0")
    assert match.location == place
    assert match.facts["dataset_key"] == dataset.manifest.key and match.facts["metric"] == "loss"
    brought = models.fetch_model(place, tmp_path / "model")
    assert brought.checkpoint("best").read_bytes() == run.checkpoint("best").read_bytes()
    assert (tmp_path / "model" / "report.html").exists()
    evaluation = clew.evaluate(brought, data=dataset)
    before = {name: item["value"] for name, item in run.evaluations()["test"]["metrics"].items()}
    assert {name: item.value for name, item in evaluation.metrics.items() if item.scalar} == pytest.approx(
        before, nan_ok=True
    )


def test_the_numbers_are_those_of_the_best_validation(run: Run, tmp_path: Path) -> None:
    models.store_model(run, str(tmp_path / "models"))
    (match,) = models.find_models(str(tmp_path / "models"))
    losses = [record["metrics"]["loss"] for record in run.records(kind="validation")]
    assert match.facts["val_loss"] == min(losses)
    assert models.find_models(str(tmp_path / "models"), f"val_loss < {min(losses)}") == []


def test_keeping_again_adds_what_is_new(run_copy: Run, tmp_path: Path) -> None:
    first = models.store_model(run_copy, str(tmp_path / "models"))
    assert models.store_model(run_copy, str(tmp_path / "models"), ("model", "plots")) == first
    assert (Path(first) / "plots").is_dir()
    assert len(models.find_models(str(tmp_path / "models"))) == 1


def test_a_model_that_was_brought_keeps_what_was_known(run: Run, dataset: Dataset, tmp_path: Path) -> None:
    place = models.store_model(run, str(tmp_path / "models"))
    brought = models.fetch_model(place, tmp_path / "model")
    clew.evaluate(brought, data=dataset, split="val", name="mine")
    models.store_model(brought, str(tmp_path / "models"), name=Path(place).name)
    (match,) = models.find_models(str(tmp_path / "models"), "mine_loss < 100")
    assert match.facts["val_loss"] > 0


def test_an_impossible_condition_is_reported(run: Run, tmp_path: Path) -> None:
    models.store_model(run, str(tmp_path / "models"))
    with pytest.raises(ConfigError, match=r"no model has a number 'val_los'; did you mean 'val_loss'\?"):
        models.find_models(str(tmp_path / "models"), "val_los < 1")
    with pytest.raises(DataError, match="no such folder"):
        models.find_models(str(tmp_path / "none"))


def test_an_altered_model_is_refused(run: Run, tmp_path: Path) -> None:
    place = Path(models.store_model(run, str(tmp_path / "models")))
    weights = place / "checkpoints" / "best.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=r"best.safetensors: .*checksum mismatch"):
        models.fetch_model(str(place), tmp_path / "model")


def test_a_folder_that_is_no_model_is_refused_before_it_is_copied(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "events.txt").write_text("1 2 3")
    with pytest.raises(DataError, match=r"data: not a model of clew \(no clew.json in it\)"):
        models.fetch_model(str(tmp_path / "data"), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_store_folder_that_is_no_model_is_refused_before_it_is_copied(tmp_path: Path) -> None:
    place = f"memory://{tmp_path.name}/data"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "events.txt").write_text("1 2 3")
    storage.copy(tmp_path / "data", place)
    with pytest.raises(DataError, match=r"data: not a model of clew \(no clew.json in it\)"):
        models.fetch_model(place, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_the_hash_of_settings_does_not_depend_on_places(run_copy: Run) -> None:
    before = model_card.config_hash(run_copy.config())
    run_copy.save_settings(dataset="elsewhere", store={"to": "s3://bucket"})
    assert model_card.config_hash(run_copy.config()) == before
    run_copy.save_settings(epochs=77)
    assert model_card.config_hash(run_copy.config()) != before


@pytest.mark.slow
def test_a_run_stores_itself(dataset: Dataset, tmp_path: Path) -> None:
    small = settings.load_settings(
        "tracking", ["model.hidden=8", "train.epochs=1", f"train.store.to={tmp_path / 'models'}"]
    )
    run = clew.train(small.recipe, dataset, config=small.train, output=tmp_path / "run")
    (match,) = models.find_models(str(tmp_path / "models"))
    stored = Path(match.location)
    assert (stored / "checkpoints" / "best.safetensors").read_bytes() == run.checkpoint("best").read_bytes()
    assert (stored / "report.html").exists()


@pytest.mark.slow
def test_a_run_that_was_killed_before_it_was_stored_is_stored_by_resume(dataset: Dataset, tmp_path: Path) -> None:
    small = settings.load_settings(
        "tracking", ["model.hidden=8", "train.epochs=1", f"train.store.to={tmp_path / 'models'}"]
    )
    run = clew.train(small.recipe, dataset, config=small.train, output=tmp_path / "run")
    shutil.rmtree(tmp_path / "models")  # as if the process had ended before the copy
    weights = run.checkpoint("best").read_bytes()
    assert resume(run.path).state == "finished"
    (match,) = models.find_models(str(tmp_path / "models"))
    assert (Path(match.location) / "checkpoints" / "best.safetensors").read_bytes() == weights


@pytest.mark.slow
def test_a_store_that_fails_costs_no_run(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    place = str(tmp_path / "file" / "models")
    small = settings.load_settings("tracking", ["model.hidden=8", "train.epochs=1", f"train.store.to={place}"])
    with pytest.warns(UserWarning, match=f"the run is complete, but was not stored: .*clew model put .*run {place}"):
        run = clew.train(small.recipe, dataset, config=small.train, output=tmp_path / "run")
    assert run.state == "finished"
    assert "not stored" in next(run.records("store"))["message"]


def test_secrets_do_not_get_into_settings() -> None:
    with pytest.raises(ConfigError, match="password or token"):
        settings.load_settings("tracking", ["train.store.to=https://me:word@host/models"])


@pytest.mark.slow
def test_a_dataset_in_a_store_is_trained_on(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = f"memory://{tmp_path.name}"
    storage.copy(dataset.path, f"{place}/dataset")
    small = settings.load_settings("tracking", ["model.hidden=8", "train.epochs=1"])
    run = clew.train(small.recipe, f"{place}/dataset", config=small.train, output=f"{place}/runs/mine")
    assert run.path == Path("runs/mine") and run.config().data["train"]["dataset"] == f"{place}/dataset"
    assert json.loads(storage.read(f"{place}/runs/mine", "clew.json"))["run"] == "mine"


@pytest.mark.slow
def test_the_url_of_a_folder_is_a_path(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = settings.load_settings("tracking", ["model.hidden=8", "train.epochs=1"])
    output = f"file://{tmp_path}/runs/mine"
    run = clew.train(small.recipe, f"file://{dataset.path}", config=small.train, output=output)
    assert run.path == tmp_path / "runs" / "mine" and sorted(path.name for path in tmp_path.iterdir()) == ["runs"]
    assert models.open_run(output).path == run.path
    assert clew.evaluate(run, data=f"file://{dataset.path}").metrics.keys() == clew.evaluate(run).metrics.keys()


def test_a_dataset_is_prepared_into_a_store(events: Path, dataset: Dataset, tmp_path: Path) -> None:
    place = f"memory://{tmp_path.name}/dataset"
    prepared = clew.prepare("tracking", input=[str(events)], output=place, workers=1)
    assert prepared.manifest == dataset.manifest
    prepared.verify()
    assert clew.prepare("tracking", input=[str(events)], output=place, workers=1).manifest == dataset.manifest
    with pytest.raises(DataError, match="holds another dataset"):
        clew.prepare("tracking", input=[str(events)], output=place, workers=1, seed=5)
