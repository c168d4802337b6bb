"""A run saves the code of its recipe: editing the recipe afterwards does not change what the run's model means."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew import Ragged, Run, Table
from clew.client.submission import submission
from clew.runs.saved_code import CodeWarning
from clew.training.api import resume
from tests.cli import done, script

RECIPE = """
import clew
from shapes_of_jets import summary


class Tagger(clew.Recipe):
    def prepare(self, events):
        return clew.Table({"x": summary(events.ragged("pt")), "top": events["top"]})

    def model(self):
        from network_of_tagger import network

        return network(3)

    def forward(self, model, batch):
        return model(batch["x"].float())

    def loss(self, outputs, batch):
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, batch["top"], reduction="none")

    def metrics(self, samples, outputs, objects):
        return {"accuracy": clew.metrics.Ratio.of(outputs["output"].argmax(axis=1) == samples["top"], samples.weights)}
"""
SHAPES = """
import numpy as np


def summary(jets):
    return np.array([[len(pt), pt.sum() / 100, pt.max(initial=0) / 100] for pt in jets])
"""
NETWORK = """
from torch import nn


def network(width):
    return nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 2))
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A recipe in three files, events, a dataset and a trained run."""
    (tmp_path / "tagger_of_jets.py").write_text(RECIPE)
    (tmp_path / "shapes_of_jets.py").write_text(SHAPES)
    (tmp_path / "network_of_tagger.py").write_text(NETWORK)
    random = np.random.default_rng(3)
    pt = Ragged.from_lengths(random.exponential(40, 1800), [6] * 300)
    Table({"pt": pt, "top": (pt.values.reshape(300, 6).sum(1) > 240).astype(int)}).save(tmp_path / "events.h5")
    _clew(tmp_path, "prepare tagger_of_jets.py --input events.h5 --output dataset --workers 1")
    train = "train tagger_of_jets.py --dataset dataset --output runs/first --epochs 8"
    _clew(tmp_path, f"{train} --set train.optimizer.lr=0.02 --set train.batch_size=16")
    return tmp_path


def _clew(folder: Path, words: str, *, code: int = 0) -> str:
    outcome = script(*words.split(), folder=folder)
    assert outcome.code == code, outcome
    return outcome.out + outcome.err


def _edit(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def _accuracy(folder: Path, name: str = "test") -> float:
    return float(Run.open(folder / "runs" / "first").evaluations()[name]["metrics"]["accuracy"]["value"])


def test_an_edited_recipe_does_not_change_an_old_run(work: Path) -> None:
    _clew(work, "evaluate runs/first")
    before = _accuracy(work)
    assert before > 0.8
    _edit(work / "tagger_of_jets.py", 'model(batch["x"].float())', '-model(batch["x"].float())')
    output = _clew(work, "evaluate runs/first")
    assert _accuracy(work) == before
    assert "tagger_of_jets.py: Tagger.forward" in output and "--current-code" in output
    output = _clew(work, "evaluate runs/first --current-code")
    assert _accuracy(work, "test-current-code") < 0.5 and _accuracy(work) == before
    assert "today's code differs" in output and "tagger_of_jets.py: Tagger.forward" in output


def test_helper_modules_and_another_width_leave_an_old_run_alive(work: Path) -> None:
    _clew(work, "evaluate runs/first")
    before = _accuracy(work)
    _clew(work, "predict runs/first --input events.h5 --output before.h5 --raw")
    _edit(work / "network_of_tagger.py", "nn.Linear(width, 8)", "nn.Linear(width + 2, 8)")
    _edit(work / "shapes_of_jets.py", "pt.sum() / 100", "pt.sum() / 7")
    _clew(work, "evaluate runs/first --workers 2 --name later --split test")
    assert _accuracy(work, "later") == before
    _clew(work, "predict runs/first --input events.h5 --output after.h5 --raw")
    one, other = (Table.load(work / name).fixed("output") for name in ("before.h5", "after.h5"))
    np.testing.assert_array_equal(one, other)
    _clew(work, "export runs/first --to torch --output model.pt2")
    assert "weights of another model" in _clew(work, "evaluate runs/first --current-code", code=2)


def test_a_deleted_or_broken_recipe_leaves_an_old_run_alive(work: Path) -> None:
    (work / "tagger_of_jets.py").write_text("this is not Python")
    (work / "shapes_of_jets.py").unlink()
    _clew(work, "evaluate runs/first")
    assert _accuracy(work) > 0.8


def test_a_resumed_run_uses_its_own_code(work: Path) -> None:
    train = "train tagger_of_jets.py --dataset dataset --output runs/stopped --epochs 3"
    _clew(work, f"{train} --set train.time_limit_minutes=0.0001", code=75)
    assert Run.open(work / "runs" / "stopped").state == "stopped"
    _edit(work / "tagger_of_jets.py", "return cross_entropy(", "return 1000 + cross_entropy(")
    run = Run.open(work / "runs" / "stopped")
    with pytest.warns(CodeWarning, match=r"Tagger\.loss"):
        ended = resume(run, time_limit_minutes=60, progress=False)
    losses = [record["metrics"]["loss"] for record in ended.records(kind="validation")]
    assert max(losses) < 100


def test_a_renamed_recipe_is_not_other_code(work: Path) -> None:
    (work / "tagger_of_jets.py").rename(work / "renamed.py")
    output = _clew(work, "train renamed.py --dataset dataset --output runs/renamed --epochs 1")
    assert "other code" not in output
    _edit(work / "shapes_of_jets.py", "/ 100, pt.max", "/ 50, pt.max")
    output = _clew(work, "train renamed.py --dataset dataset --output runs/edited --epochs 1")
    assert "dataset was prepared by other code: code of summary changed; to prepare it again: clew prepare" in output
    assert "clew prepare renamed.py --input ... --output dataset --replace (it was made from events.h5)" in output


def test_a_dataset_of_another_recipe_is_named(work: Path) -> None:
    _clew(work, "data generate tracking --events 30 --output hits")
    _clew(work, "prepare tracking --input hits --output graphs --workers 1")
    output = _clew(work, "train jets --dataset graphs --output runs/wrong --epochs 1", code=2)
    assert "graphs was prepared for the recipe tracking, not for jets; to prepare it again: clew prepare jets" in output


@pytest.mark.filterwarnings("always::clew.runs.saved_code.CodeWarning")
def test_settings_of_a_run_with_other_code_are_used_with_a_note(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    space = "tune.space={train.optimizer.lr: {log: [1e-3, 1e-1]}}"
    words = ("--set", space, "--set", "train.epochs=1", "--trials", "1", "--dataset", "dataset", "--output", "study")
    assert "1 complete" in done("tune", "run", "tagger_of_jets.py", *words)
    assert "differs" not in done("tune", "best", "study", "--apply", "best.yaml")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert submission("runs/first").name == "tagger_of_jets"
    _edit(work / "tagger_of_jets.py", "return cross_entropy(", "return 2 * cross_entropy(")
    note = "today's code differs from the code of {}: tagger_of_jets.py: Tagger.loss"
    assert note.format("study/trials/trial-0000") in done("tune", "best", "study", "--apply", "best.yaml")
    assert note.format("runs/first") in done("train", "first", "--output", "runs/again", "--epochs", "1")
    with pytest.warns(CodeWarning, match=note.format("runs/first")):
        submission("runs/first")


def test_two_versions_of_a_recipe_live_in_one_process(work: Path) -> None:
    _edit(work / "shapes_of_jets.py", "/ 100, pt.max", "/ 50, pt.max")
    _edit(work / "network_of_tagger.py", "nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 2)", "nn.Linear(width, 2)")
    output = _clew(work, "train tagger_of_jets.py --dataset dataset --output runs/second --epochs 1")
    assert "was prepared by other code: code of summary changed" in output and "clew prepare" in output
    _clew(work, "prepare tagger_of_jets.py --input events.h5 --output dataset --workers 1 --replace")
    output = _clew(work, "train tagger_of_jets.py --dataset dataset --output runs/third --epochs 1")
    assert "other code" not in output
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CodeWarning)
        widths = [_parameters(clew.predict, work / "runs" / name) for name in ("first", "third", "first")]
    assert widths[0] == widths[2] != widths[1]


def _parameters(predict: Any, run: Path) -> list[float]:
    rows = predict(run, input=[str(run.parents[1] / "events.h5")], raw=True)
    return [float(value) for value in rows.fixed("output")[0]]


def test_compare_shows_the_code_that_differs(work: Path) -> None:
    train = "train tagger_of_jets.py --dataset dataset --epochs 1 --output"
    _clew(work, f"{train} runs/same")
    assert "Code that differs" not in _clew(work, "compare runs/first runs/same")
    _edit(work / "network_of_tagger.py", "nn.ReLU()", "nn.GELU()")
    _clew(work, f"{train} runs/other")
    output = _clew(work, "compare runs/first runs/other")
    assert "Code that differs" in output and "+    return nn.Sequential(nn.Linear(width, 8), nn.GELU()" in output


def test_a_model_from_a_file_is_saved_with_the_run(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("from layers_of_net import layers\ndef build():\n    return layers()\n")
    (tmp_path / "layers_of_net.py").write_text("from torch import nn\ndef layers():\n    return nn.Linear(2, 1)\n")
    random = np.random.default_rng(1)
    x = random.normal(size=(200, 2)).astype("f4")
    Table({"x": x, "y": x.sum(1)}).save(tmp_path / "a.h5")
    _clew(tmp_path, "train --model net.py:build --train a.h5 --features x --labels y --epochs 2 --output runs/first")
    before = _clew(tmp_path, "evaluate runs/first --split val").splitlines()[1:4]
    _edit(tmp_path / "layers_of_net.py", "nn.Linear(2, 1)", "nn.Sequential(nn.Linear(2, 9), nn.Linear(9, 1))")
    output = _clew(tmp_path, "evaluate runs/first --split val")
    assert "layers_of_net.py: layers" in output and set(before) <= set(output.splitlines())
    (tmp_path / "net.py").unlink()
    assert set(before) <= set(_clew(tmp_path, "evaluate runs/first --split val").splitlines())


def test_a_recipe_of_a_package_is_saved_with_its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "jets_of_mine"
    (package / "parts").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "parts" / "__init__.py").write_text("")
    (package / "parts" / "net.py").write_text("SCALE = 1.0\n")
    (package / "recipe.py").write_text(
        "import clew\nimport jets_of_mine.parts.net\nfrom .parts import net\nfrom jets_of_mine.parts.net import SCALE\n"
        "class Sum(clew.Recipe):\n"
        "    def prepare(self, events):\n        return events\n"
        "    def model(self):\n        from torch import nn\n        return nn.Linear(2, 1)\n"
        "    def forward(self, model, batch):\n"
        "        assert net.SCALE == SCALE == jets_of_mine.parts.net.SCALE\n"
        "        return SCALE * model(batch['x'].float())\n"
        "    def loss(self, outputs, batch):\n        return (outputs[:, 0] - batch['y']) ** 2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    x = np.random.default_rng(1).normal(size=(50, 2)).astype("f4")
    Table({"x": x, "y": x.sum(1)}).save(tmp_path / "a.h5")
    name, data = "jets_of_mine.recipe:Sum", str(tmp_path / "dataset")
    clew.prepare(name, input=[str(tmp_path / "a.h5")], output=data, workers=1, split={"train": 0.5, "val": 0.5})
    run = clew.train(name, data, epochs=1, output=tmp_path / "run", progress=False)
    before = clew.evaluate(run.path, split="val").metrics["loss"].value
    (package / "parts" / "net.py").write_text("SCALE = 50.0\n")
    with pytest.warns(CodeWarning, match=r"jets_of_mine/parts/net\.py"):
        assert clew.evaluate(run.path, split="val").metrics["loss"].value == before
    assert sys.modules["jets_of_mine.parts.net"].SCALE == 1.0


def test_a_recipe_of_clew_whose_code_has_changed_is_reported(run_copy: Run) -> None:
    index = run_copy.code_folder / "clew-code.json"
    text = index.read_text()
    assert '"clew.recipes.tracking.' in text
    digest = text.split('"clew.recipes.tracking.recipe": "')[1][:64]
    index.write_text(text.replace(digest, "0" * 64))
    with pytest.warns(CodeWarning, match=r"its recipe has changed since: clew\.recipes\.tracking\.recipe"):
        clew.evaluate(run_copy.path, split="val")
