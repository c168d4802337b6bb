"""Any model on any columns, without a recipe."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import uproot
from torch import nn

import clew
from clew import Run, Table
from clew.errors import ConfigError, DataError, RecipeError
from clew.training.api import resume
from tests.cli import clew as command
from tests.training import validations

QUICK: dict[str, Any] = {"epochs": 2, "threads": 1, "batch_size": 50}
QUICK_WORDS = ("--set", "train.optimizer.lr=0.05", "--set", "train.batch_size=50", "--output")
NET = """
from torch import nn
import torch

def build(width=8, inputs=4, outputs=3):
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))

def doubled(outputs, labels):
    return 2 * nn.functional.cross_entropy(outputs, labels, reduction="none")

class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(2, 3)
    def forward(self, x, mask):
        assert x.shape[:2] == mask.shape
        return (self.line(x) * mask[..., None]).sum(1)

nothing = 3
"""


def arrays(events: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(events, 4)).astype(np.float32)
    return {
        "X": x,
        "Y": (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.5),
        "w": rng.random(events),
        "pt": 30 * abs(x[:, 2]),
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "net.py").write_text(NET)
    for number, (name, events) in enumerate({"a1": 150, "a2": 100, "b1": 80}.items()):
        data = arrays(events, number)
        with h5py.File(folder / f"{name}.h5", "w") as file:
            for column, values in data.items():
                file[column] = values
        flat = {**{f"x{i}": data["X"][:, i] for i in range(4)}, "Y": data["Y"], "w": data["w"]}
        pq.write_table(pa.table(flat), folder / f"{name}.parquet")
        with uproot.recreate(folder / f"{name}.root") as file:
            file.mktree("t", {key: value.dtype for key, value in flat.items()})
            file["t"].extend(flat)
    return folder


def train(files: Path, output: Path, kind: str = "h5", **settings: Any) -> Run:
    named = {"features": "X"} if kind == "h5" else {"features": "x0,x1,x2,x3"}
    data = (str(files / f"a*.{kind}"), str(files / f"b*.{kind}"))
    options: dict[str, Any] = {**QUICK, **named, "labels": "Y", **settings}
    return clew.train(f"{files / 'net.py'}:build", *data, output=output, **options)


@pytest.mark.parametrize("kind", ["h5", "parquet", "root"])
def test_every_kind_of_file_gives_the_same_training(kind: str, files: Path, tmp_path: Path) -> None:
    run = train(files, tmp_path / "run", kind)
    plan = run.last("plan")
    assert plan is not None and (plan["samples"], plan["parameters"]) == (250, 4 * 8 + 8 + 8 * 3 + 3)
    assert validations(run)[-1].keys() == {"loss", "accuracy"}
    again = train(files, tmp_path / "other", "h5")
    assert validations(run)[-1]["loss"] == pytest.approx(validations(again)[-1]["loss"], rel=0.3)


def test_the_command_of_the_issue(files: Path, tmp_path: Path) -> None:
    command = "train --model net.py:build --train a*.h5 --val b*.h5 --features X --labels Y --loss cross_entropy"
    more = ["--workers", "2", "--epochs", "1", "--set", "train.threads=1", "--output", str(tmp_path / "run")]
    clew_command = [str(Path(sys.executable).parent / "clew"), *command.split(), *more]
    done = subprocess.run(clew_command, cwd=files, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "train 250, val 80 events" in done.stdout
    assert Run.open(tmp_path / "run").streams() == ["rank-0", "rank-1"]
    evaluation = clew.evaluate(tmp_path / "run")
    assert (evaluation.name, evaluation.events) == ("val", 80)


def test_weights_and_a_selection_reach_the_training(files: Path, tmp_path: Path) -> None:
    run = train(files, tmp_path / "run", select="pt > 20 && w < 0.9", weight="2 * w")
    masks = [(data["pt"] > 20) & (data["w"] < 0.9) for data in (arrays(150, 0), arrays(100, 1))]
    data = clew.Dataset(run.config().data["train"]["dataset"])
    assert data.splits["train"] == sum(int(mask.sum()) for mask in masks)
    assert data.read("train").weights.max() < 1.8


class Typed(nn.Module):
    """A model of this module; pickle handles a model of a notebook in the same way."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.line(x)


@pytest.mark.parametrize("workers", [1, 2])
def test_three_lines_in_a_notebook(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Typed, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Typed", Typed, raising=False)
    data, model = arrays(300), Typed()
    run = clew.train(
        model, (data["X"][:200], data["Y"][:200]), (data["X"][200:], data["Y"][200:]), workers=workers, **QUICK
    )
    figure = run.plot()
    assert {trace.name for trace in figure.data} >= {"train", "validation", "accuracy"}
    assert run.path == Path("runs/typed-001")
    with pytest.raises(RecipeError, match="pass it again, as recipe=model"):
        clew.evaluate(Run.open(run.path))
    for evaluation in (clew.evaluate(run), clew.evaluate(run.path, recipe=model), clew.evaluate(run, workers=workers)):
        assert evaluation.metrics["loss"].value == pytest.approx(validations(run)[-1]["loss"], rel=1e-4)
    rows = clew.predict(run, workers=workers)
    assert len(rows) == 100
    assert clew.export(run, to="torch", output="typed.pt2").facts.difference < 1e-6


def test_a_run_remembers_a_recipe_that_was_typed_in(files: Path, tmp_path: Path) -> None:
    class TypedIn(clew.Recipe):
        def prepare(self, events: Table) -> Table:
            return events.pick("X", "Y")

        def model(self) -> nn.Module:
            return nn.Linear(4, 3)

        def forward(self, model: nn.Module, batch: clew.Batch) -> Any:
            return model(batch["X"])

        def loss(self, outputs: Any, batch: clew.Batch) -> torch.Tensor:
            return nn.functional.cross_entropy(outputs, batch["Y"], reduction="none")

    inputs = [str(files / "a1.h5")]
    data = clew.prepare(TypedIn(), input=inputs, output=str(tmp_path / "data"), executor="threads", workers=1)
    run = clew.train(TypedIn(), data, output=tmp_path / "run", **QUICK)
    assert clew.evaluate(run).metrics["loss"].value > 0 and len(clew.predict(run, input=inputs)) == 150
    assert pickle.loads(pickle.dumps(run)).recipe is None and run == Run.open(run.path)
    with pytest.raises(RecipeError, match="its recipe was typed in and cannot be loaded again"):
        clew.evaluate(run.path)


@pytest.mark.parametrize("kind", ["h5", "parquet", "root", "npz"])
def test_events_without_labels_and_weights_are_predicted(kind: str, files: Path, tmp_path: Path) -> None:
    run = train(files, tmp_path / "run", "parquet", weight="2 * w", scale="standard")
    x = arrays(60, 7)["X"]
    flat, path = {f"x{i}": x[:, i] for i in range(4)}, tmp_path / f"real.{kind}"
    if kind == "h5":
        with h5py.File(path, "w") as file:
            for name, values in flat.items():
                file[name] = values
    elif kind == "parquet":
        pq.write_table(pa.table(flat), path)
    elif kind == "npz":
        np.savez(path, **flat)
    else:
        with uproot.recreate(path) as file:
            file.mktree("t", {key: value.dtype for key, value in flat.items()})
            file["t"].extend(flat)
    whole = tmp_path / "labelled.parquet"
    pq.write_table(pa.table({**flat, "Y": np.zeros(60, np.int64), "w": np.ones(60)}), whole)
    predictions, expected = clew.predict(run, input=[str(path)]), clew.predict(run, input=[str(whole)])
    assert isinstance(predictions, Table) and isinstance(expected, Table)
    np.testing.assert_allclose(predictions.fixed("output"), expected.fixed("output"), atol=1e-5)
    with pytest.raises(DataError, match="'Y'"):
        clew.evaluate(run, input=[str(path)])
    with pytest.raises(DataError, match="'Y'"):
        clew.prepare(run.recipe, input=[str(path)], output=str(tmp_path / "data"), executor="threads", workers=1)


@pytest.mark.parametrize("form", ["table", "mapping", "without val"])
def test_data_in_memory_comes_in_many_forms(form: str, tmp_path: Path) -> None:
    data = arrays(200)
    columns = {"X": data["X"], "Y": data["Y"]}
    other = {name: values[:50] for name, values in columns.items()}
    datasets: tuple[Any, Any] = (Table(columns), Table(other)) if form == "table" else (columns, other)
    val = None if form == "without val" else datasets[1]
    run = clew.train(Typed(), datasets[0], val, output=tmp_path / "run", **QUICK)
    plan = run.last("plan")
    assert plan is not None and plan["samples"] == (200 if form != "without val" else plan["samples"])
    assert plan["samples"] >= 140


def test_ragged_features_come_padded_with_a_mask(files: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 9, 120)
    items = clew.Ragged.from_lengths(rng.normal(size=int(lengths.sum())), lengths)
    table = Table({"pt": items, "eta": items.share(rng.normal(size=int(lengths.sum()))), "Y": rng.integers(0, 3, 120)})
    run = clew.train(
        f"{files / 'net.py'}:Pool",
        table,
        features="pt,eta",
        labels="Y",
        output=tmp_path / "run",
        loading={"bucket": "features", "max_items": 100},
        **QUICK,
    )
    assert run.state == "finished"
    with pytest.raises(RecipeError, match=r"takes two arguments, forward\(features, mask\)$"):
        clew.train(nn.Linear(2, 3), table, features="pt,eta", labels="Y", output=tmp_path / "plain", **QUICK)


def test_a_loss_may_be_a_function_in_a_file(files: Path, tmp_path: Path) -> None:
    plain = train(files, tmp_path / "plain", epochs=1, optimizer={"lr": 1e-12})
    twice = train(files, tmp_path / "twice", epochs=1, optimizer={"lr": 1e-12}, loss=f"{files / 'net.py'}:doubled")
    assert validations(twice)[0]["loss"] == pytest.approx(2 * validations(plain)[0]["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"features": "Z"}, DataError, "no dataset 'Z'|'Z'"),
        ({"features": "pt"}, RecipeError, r"model and data do not fit: .*features float32 \(4, 1\)"),
        ({"loss": "mse"}, DataError, r"the model gives \(4, 3\) for labels of shape \(4,\)"),
        ({"loss": "mze"}, ConfigError, "no loss 'mze'; did you mean 'mse'"),
        ({"arguments": {"outputs": 2}}, DataError, "labels reach from 0 to 2, the model gives 2 classes"),
        ({"arguments": {"wide": 2}}, ConfigError, "cannot be called with"),
        ({"select": "pt > 1e9"}, DataError, "no event passes select 'pt > 1e9'"),
        ({"select": "pt >"}, Exception, "pt >"),
    ],
)
def test_columns_that_do_not_fit_are_reported_in_one_line(
    settings: dict[str, Any], error: type[Exception], message: str, files: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message) as caught:
        train(files, tmp_path / "run", **settings)
    assert "\n" not in str(caught.value)


def test_labels_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    data = arrays(100)
    labels = data["pt"].copy()
    labels[17] = np.nan
    with pytest.raises(DataError, match=r"column 'Y' holds NaN or infinity, first in event 17"):
        clew.train(Typed(), {"X": data["X"], "Y": labels}, output=tmp_path / "run", **QUICK)


def test_an_object_that_is_not_a_model_is_named_before_anything_is_written(files: Path, tmp_path: Path) -> None:
    for name, message in {"bild": "has no 'bild'; did you mean 'build'", "nothing": "cannot be called|int"}.items():
        with pytest.raises(Exception, match=message):
            clew.train(
                f"{files / 'net.py'}:{name}",
                str(files / "a1.h5"),
                features="X",
                labels="Y",
                output=tmp_path / name,
                **QUICK,
            )
    assert not (tmp_path / "bild").exists()


@pytest.mark.long
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("shape", [(400,), (400, 1)])
def test_labels_that_are_0_and_1_as_floats_are_classes(tmp_path: Path, outputs: int, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(5).normal(size=(400, 4)).astype(np.float32)
    Table({"X": x, "Y": (x[:, 0] > 0).astype(np.float64).reshape(shape)}).save(tmp_path / "a.h5")
    (tmp_path / "net.py").write_text(NET)
    words = f"train --model {tmp_path}/net.py:build --train {tmp_path}/a.h5 --features X --labels Y --epochs 20"
    ended = command(*words.split(), "--set", f"model.arguments={{outputs: {outputs}}}", *QUICK_WORDS, tmp_path / "run")
    assert ended.code == 0, ended.err
    assert "loss: cross_entropy, because all labels are 0 or 1" in ended.out and "--loss mse" in ended.out
    run = Run.open(tmp_path / "run")
    assert run.config().data["loss"] == "cross_entropy"
    assert validations(run)[-1]["accuracy"] > 0.9


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (lambda x: x[:, 0], "loss: mse, because the labels are numbers; --loss mae or huber"),
        (lambda x: np.sign(x[:, 0]), "loss: mse, because all labels are -1 or 1; for a classification"),
        (lambda x: np.clip(x[:, 0], 0, 1), "loss: mse, because the labels are numbers"),
        (lambda x: (x[:, :2] > 0).astype("f4"), "loss: mse, because the labels are 2 numbers per event; --loss cross"),
    ],
)
def test_other_numbers_are_a_regression_which_is_said(tmp_path: Path, labels: Any, message: str) -> None:
    x = np.random.default_rng(5).normal(size=(100, 4)).astype(np.float32)
    y = labels(x)
    model = nn.Linear(4, 1 if y.ndim == 1 else y.shape[1])
    run = clew.train(model, (x, y), output=tmp_path / "run", progress=False, **QUICK)
    assert [record["message"] for record in run.records(kind="note") if record["message"].startswith(message)]
    assert run.config().data["loss"] == "auto"


def test_predictions_contain_the_numbers_of_events_and_the_labels(tmp_path: Path) -> None:
    data = arrays(200)
    numbers = {"run": np.full(200, 7), "luminosityBlock": np.arange(200) // 50, "event": np.arange(1000, 1200)}
    Table({**data, **numbers}).save(tmp_path / "a.h5")
    run = clew.train(nn.Linear(4, 3), tmp_path / "a.h5", output=tmp_path / "run", **QUICK)
    rows = clew.predict(run, split="val", columns=["event", "labels"], raw=True, recipe=nn.Linear(4, 3))
    assert isinstance(rows, Table)
    place = rows.fixed("event") - 1000
    np.testing.assert_array_equal(rows.fixed("labels"), data["Y"][place])
    assert {"run", "luminosityBlock", "event"} <= set(clew.predict(run, raw=True, recipe=nn.Linear(4, 3)))


def test_a_run_is_resumed_with_the_function_that_makes_its_model(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int64)

    def build() -> nn.Module:
        return nn.Linear(3, 2)

    clew.train(build, (x, y), epochs=1, output=tmp_path / "run")
    assert resume(tmp_path / "run", epochs=2, recipe=build).state == "finished"


@pytest.mark.parametrize(("first", "words"), [("pt", ()), ("event", ("--set", "columns.line=event"))])
def test_a_text_file_with_one_event_per_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, words: tuple[str, ...]
) -> None:
    eta = np.random.default_rng(5).normal(size=200)
    lines = [f"{number},{value},{int(value > 0)}" for number, value in enumerate(eta)]
    (tmp_path / "events.csv").write_text("\n".join([f"{first},eta,signal", *lines]) + "\n")
    (tmp_path / "net.py").write_text(NET.replace("inputs=4, outputs=3", "inputs=1, outputs=2"))
    monkeypatch.chdir(tmp_path)
    options = ("--train", "events.csv", "--features", "eta", "--labels", "signal", "--epochs", "1")
    ended = command("train", "--model", "net.py:build", *options, *words, *QUICK_WORDS, "runs/csv")
    assert ended.code == 0, ended.err
    run = Run.open("runs/csv")
    assert clew.predict(run, input=["events.csv"])["output"].shape == (200, 2)


def test_settings_of_columns_and_loss_count_too(files: Path, tmp_path: Path) -> None:
    words = f"train --model {files}/net.py:build --train {files}/a1.h5 --features X --labels Y --epochs 1"
    chosen = ("--set", "columns.scale=standard", "--set", "columns.select=pt > 10", "--set", "loss=cross_entropy")
    ended = command(*words.split(), *chosen, *QUICK_WORDS, tmp_path / "run")
    assert ended.code == 0, ended.err
    data = Run.open(tmp_path / "run").config().data
    assert data["columns"]["scale"] == "standard" and data["columns"]["select"] == "pt > 10"
    assert data["loss"] == "cross_entropy"


@pytest.mark.parametrize(
    ("size", "scale", "warned"), [(80.0, "none", True), (80.0, "standard", False), (9.0, "none", False)]
)
def test_features_that_differ_in_size_are_named(tmp_path: Path, size: float, scale: str, warned: bool) -> None:
    rng = np.random.default_rng(2)
    data = {"pt": size * rng.random(90), "eta": rng.normal(size=90), "y": rng.random(90)}
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        model = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
        clew.train(model, data, features="pt,eta", labels="y", scale=scale, output=tmp_path / "run", **QUICK)
    texts = [str(each.message) for each in shown if "differ in size" in str(each.message)]
    assert len(texts) == warned
    assert not warned or ("pt is about" in texts[0] and "eta about" in texts[0] and "--scale standard" in texts[0])
