"""Boosted trees and scikit-learn estimators beside the original libraries, under every verb."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import lightgbm
import numpy as np
import pytest
import torch
import xgboost
from safetensors.torch import load_file, save_file
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import clew
from clew import Run
from clew.client.submission import submission
from clew.data.dataset import Dataset
from clew.errors import ConfigError, RecipeError, RunError
from clew.models.estimators.lookup import reference_of
from clew.training.api import resume
from tests.cli import clew as command
from tests.training import validations

FEATURES = "pt,eta,mass"
PIPELINE = """
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

def make(trees=5):
    return make_pipeline(StandardScaler(), RandomForestClassifier(trees))

class Broken:
    pass
"""
RECIPE = """
import clew
import numpy as np
from clew import metrics

class Trees(clew.Recipe):
    estimator_columns = ("x", "kind")

    def prepare(self, events):
        x = np.stack([events["pt"], events["eta"]], axis=1)
        return clew.Table({"x": x, "kind": events["signal"]})

    def estimator(self):
        from lightgbm import LGBMClassifier
        return LGBMClassifier(n_estimators=5)

    def metrics(self, samples, outputs, objects):
        return {"accuracy": metrics.Ratio.of(outputs["output"].argmax(1) == samples["kind"])}
"""
LIBRARIES: dict[str, dict[str, Any]] = {
    "xgboost": {"n_estimators": 30, "max_depth": 3, "learning_rate": 0.3},
    "lightgbm": {"n_estimators": 30, "num_leaves": 7, "learning_rate": 0.5},
    "sklearn.ensemble:HistGradientBoostingClassifier": {"max_iter": 30, "max_depth": 3, "learning_rate": 0.5},
}


def events(number: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(number, 3)).astype(np.float32)
    signal = (x[:, 0] + x[:, 1] ** 2 + 0.7 * rng.normal(size=number) > 0.6).astype(np.int64)
    return {
        **dict(zip(("pt", "eta", "mass"), x.T, strict=True)),
        "signal": signal,
        "kind": signal + (x[:, 2] > 0.8),
        "energy": 2 * x[:, 0] + x[:, 1],
        "weight": rng.uniform(0.5, 2.0, number),
        "signed": rng.choice([-1.0, 1.0, 1.0], number),
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of events, and code."""
    folder = tmp_path_factory.mktemp("trees")
    with h5py.File(folder / "events.h5", "w") as file:
        for name, values in events(600).items():
            file[name] = values
    (folder / "trees.py").write_text(PIPELINE)
    (folder / "recipe.py").write_text(RECIPE)
    return folder


def train(place: Path, name: str, estimator: Any, **settings: Any) -> Run:
    chosen = {"estimator": estimator} if isinstance(estimator, str) else {"recipe": estimator}
    options = {"features": FEATURES, "labels": "signal", "threads": 1, "seed": 3, "progress": False, **settings}
    return clew.train(**chosen, dataset=str(place / "events.h5"), output=place / "runs" / name, **options)


@pytest.fixture(scope="module")
def weighted(place: Path) -> dict[str, Run]:
    """One run per library, with event weights, scaled features and early stopping."""
    stop = {"early_stopping": {"patience": 3}, "weight": "weight", "scale": "standard"}
    return {
        name: train(place, f"weighted-{number}", name, arguments=arguments, **stop)
        for number, (name, arguments) in enumerate(LIBRARIES.items())
    }


def splits(run: Run) -> tuple[Any, ...]:
    dataset = Dataset(run.config().data["train"]["dataset"])
    tables = [dataset.read(name) for name in ("train", "val")]
    return tuple(column for table in tables for column in (table["features"], table["labels"], table.weights))


def original_scores(name: str, data: tuple[Any, ...]) -> Any:
    """The probabilities of the validation split by the library itself."""
    x, y, w, x_val, y_val, w_val = data
    arguments = {**LIBRARIES[name], "random_state": 3}
    if name == "xgboost":
        trees = xgboost.XGBClassifier(**arguments, n_jobs=1, early_stopping_rounds=3)
        trees.fit(x, y, sample_weight=w, eval_set=[(x_val, y_val)], sample_weight_eval_set=[w_val], verbose=False)
    elif name == "lightgbm":
        trees = lightgbm.LGBMClassifier(**arguments, n_jobs=1, verbosity=-1)
        stop = lightgbm.early_stopping(3, verbose=False)
        trees.fit(x, y, sample_weight=w, eval_X=x_val, eval_y=y_val, eval_sample_weight=[w_val], callbacks=[stop])
        return trees.booster_.predict(x_val)
    else:
        trees = HistGradientBoostingClassifier(**arguments, early_stopping=True, n_iter_no_change=3, tol=0.0)
        trees.fit(x, y, sample_weight=w, X_val=x_val, y_val=y_val, sample_weight_val=w_val)
    return trees.predict_proba(x_val)[:, 1]


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_run_predicts_what_the_library_predicts(weighted: dict[str, Run], name: str) -> None:
    run = weighted[name]
    scores = clew.predict(run, data=run.config().data["train"]["dataset"], split="val")["output"][:, 1]
    np.testing.assert_allclose(scores, original_scores(name, splits(run)), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", LIBRARIES)
def test_records_hold_one_loss_per_round_until_the_loss_stops_to_fall(weighted: dict[str, Run], name: str) -> None:
    run = weighted[name]
    curve = [metrics["loss"] for metrics in validations(run)]
    rounds = len(curve) - 1
    assert 3 < rounds < 30 and f"stopped early after {rounds} rounds" in (run.end() or {})["message"]
    assert np.argmin(curve[:-1]) == rounds - 4  # three rounds without an improvement
    best = curve[rounds - 1] if "Hist" in name else min(curve[:-1])
    assert curve[-1] == pytest.approx(best, rel=1e-5)  # the loss of clew, with all metrics
    assert {"accuracy", "auc"} <= validations(run)[-1].keys()
    places = [
        (each["epoch"], each["step"]) for each in run.records() if each["kind"] in ("step", "validation", "checkpoint")
    ]
    assert places and all(epoch == step - 1 for epoch, step in places), places


@pytest.mark.parametrize("name", LIBRARIES)
def test_an_exported_file_includes_the_scaling_and_agrees(weighted: dict[str, Run], name: str, tmp_path: Path) -> None:
    import onnxruntime

    run = weighted[name]
    exported = clew.export(run, output=tmp_path / "trees.onnx")
    assert exported.facts.difference < 1e-5 and len(exported.facts.included) == 1
    raw = events(300, seed=7)
    session = onnxruntime.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    columns = np.stack([raw[each] for each in ("pt", "eta", "mass")], axis=1)
    (scores,) = session.run(["output"], {"features": columns})
    np.testing.assert_allclose(scores, clew.predict(run, raw)["output"], atol=1e-5)


def test_a_run_is_read_again_and_evaluated_with_importances(weighted: dict[str, Run]) -> None:
    for run in weighted.values():
        evaluation = clew.evaluate(Run.open(run.path))
        assert evaluation.metrics["accuracy"].value > 0.7 and evaluation.metrics["accuracy"].error > 0
        for kind in ("permutation", "feature"):
            (file,) = (run.plots / "val").glob(f"*-{kind}_importance.json")
            (bars,) = json.loads(file.read_text())["data"]
            assert bars["y"][0] == "mass"  # the smallest: the label does not depend on it
            assert ("error_x" in bars) == (kind == "permutation")


def test_the_labels_decide_what_a_library_trains(place: Path, tmp_path: Path) -> None:
    few = {"arguments": {"n_estimators": 10, "learning_rate": 0.5}}
    values = train(place, "values", "lightgbm", labels="energy", **few)
    assert validations(values)[-1]["mae"] < 0.6
    kinds = train(place, "kinds", "xgboost", labels="kind", **few)
    assert validations(kinds)[-1]["accuracy"] > 0.6
    for run, width in ((values, 1), (kinds, 3)):
        assert clew.export(run, output=tmp_path / f"{run.name}.onnx").facts.difference < 1e-5
        assert clew.predict(run, events(20, seed=1))["output"].shape[1:] in ((width,), ())


def test_objects_pipelines_and_recipes(place: Path, tmp_path: Path) -> None:
    forest = train(place, "forest", RandomForestClassifier(5, max_depth=3))
    assert Run.open(forest.path).config().data["model"]["arguments"] == {"n_estimators": 5, "max_depth": 3}
    pipeline = train(place, "pipeline", f"{place}/trees.py:make", weight="weight", arguments={"trees": 4})
    for run in (forest, pipeline):
        assert clew.evaluate(Run.open(run.path)).metrics["accuracy"].value > 0.6
        assert clew.export(run, output=tmp_path / f"{run.name}.onnx").facts.difference < 1e-5
    with pytest.raises(ConfigError, match="put a function that returns it into a file"):
        train(place, "typed", make_pipeline(LogisticRegression()))
    clew.prepare(str(place / "recipe.py"), input=[str(place / "events.h5")], output=str(tmp_path / "dataset"))
    run = clew.train(str(place / "recipe.py"), tmp_path / "dataset", output=tmp_path / "run", progress=False)
    assert {"loss", "accuracy"} <= clew.evaluate(Run.open(run.path), split="val").metrics.keys()


@pytest.mark.parametrize("kind", [xgboost.XGBClassifier, lightgbm.LGBMClassifier, RandomForestClassifier])
def test_an_object_is_made_again_from_what_was_chosen(kind: Any) -> None:
    place, arguments = reference_of(kind(max_depth=4))
    assert (place, arguments) == (f"{kind.__module__}:{kind.__name__}", {"max_depth": 4})


@pytest.mark.parametrize("kind", ["absolute", "zero"])
def test_negative_weights_are_handled_as_stated(place: Path, kind: str) -> None:
    settings: dict[str, Any] = {"weight": "signed", "arguments": {"n_estimators": 5}}
    run = train(place, f"signed-{kind}", "xgboost", negative_weights=kind, **settings)
    x, y, weights, x_val, *_ = splits(run)
    used = abs(weights) if kind == "absolute" else np.where(weights < 0, 0, weights)
    original = xgboost.XGBClassifier(n_estimators=5, n_jobs=1, random_state=3).fit(x, y, sample_weight=used)
    dataset = run.config().data["train"]["dataset"]
    np.testing.assert_allclose(
        clew.predict(run, data=dataset, split="val")["output"], original.predict_proba(x_val), rtol=1e-6
    )


@pytest.mark.slow
def test_a_checkpoint_with_foreign_classes_is_refused(place: Path) -> None:
    import skops.io

    run = train(place, "attacked", "sklearn.ensemble:RandomForestClassifier", arguments={"n_estimators": 2})
    hostile = skops.io.dumps({"estimators_": [pytest.MonkeyPatch()]})
    path = run.checkpoint("best")
    assert set(load_file(path)) == {"estimator"}
    save_file({"estimator": torch.frombuffer(bytearray(hostile), dtype=torch.uint8)}, path)
    with pytest.raises(RunError, match="MonkeyPatch, which is not of scikit-learn"):
        clew.evaluate(Run.open(run.path))
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(RunError, match="it holds no estimator"):
        clew.evaluate(Run.open(run.path))


def test_a_job_of_an_estimator_takes_its_file_along(place: Path) -> None:
    options = {"estimator": f"{place}/trees.py:make", "train": ["/data/*.h5"], "features": "pt", "labels": "signal"}
    job = submission("", [], model=options)
    assert list(job.arguments)[:2] == ["--estimator", "trees.py:make"]
    assert "trees.py" in job.files
    with pytest.raises(ConfigError, match="no estimator 'catboost'"):
        submission("", [], model={**options, "estimator": "catboost"})


BAD = {
    "no estimator 'catboost'": ["--estimator", "catboost"],
    "has no predict_proba": ["--estimator", "sklearn.svm:LinearSVC"],
    "not an estimator with fit and predict": ["--estimator", "trees.py:Broken"],
    "name it with --estimator": ["--model", "trees.py:make"],
    "event weights are negative; choose with": ["--estimator", "xgboost", "--weight", "signed"],
    "accepts no negative event weights": [
        "--estimator", "xgboost", "--weight", "signed", "--set", "model.negative_weights=keep",
    ],
    "takes no event weights": ["--estimator", "sklearn.neighbors:KNeighborsClassifier", "--weight", "weight"],
    "is trained in one process": ["--estimator", "xgboost", "--workers", "2"],
    "set model.arguments.n_estimators": ["--estimator", "lightgbm", "--epochs", "3"],
    "train.optimizer: for networks only": ["--estimator", "xgboost", "--lr", "0.1"],
    "has no early stopping": [
        "--estimator", "sklearn.ensemble:RandomForestClassifier", "--set", "train.early_stopping.patience=3",
    ],
    "xgboost has no parameter depth": ["--estimator", "xgboost", "--set", "model.arguments={depth: 3}"],
    "cannot be called with": [
        "--estimator", "sklearn.ensemble:RandomForestClassifier", "--set", "model.arguments={depth: 3}",
    ],
    "predicts classes, and the labels are other numbers": [
        "--estimator", "sklearn.ensemble:RandomForestClassifier", "--labels", "energy",
    ],
    "a model (--model), or an estimator (--estimator)": ["--estimator", "xgboost", "--model", "trees.py:make"],
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_bad_input_gives_one_line(place: Path, monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    monkeypatch.chdir(place)
    words = BAD[message]
    labels = () if "--labels" in words else ("--labels", "signal")
    outcome = command("train", *words, "--train", "events.h5", "--features", FEATURES, *labels, "--output", "runs/bad")
    assert outcome.code == 2 and message in outcome.err, outcome.err
    assert len(outcome.err.strip().splitlines()) <= 2 and "Traceback" not in outcome.err


def test_what_has_no_meaning_for_an_estimator_is_refused(weighted: dict[str, Run], tmp_path: Path) -> None:
    run = weighted["xgboost"]
    with pytest.raises(RunError, match="is finished, and an estimator is not trained longer"):
        resume(run)
    with pytest.raises(RecipeError, match="cannot be a torch program"):
        clew.export(run, to="torch", output=tmp_path / "trees.pt2")
