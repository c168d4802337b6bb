"""`clew init` writes a recipe that works without a change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pyarrow import parquet

from clew import Dataset, Run
from clew.cli.start import recipe_template
from tests.cli import clew, done

LIKE = recipe_template.starting_points()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """The current folder, with a new recipe."""
    monkeypatch.chdir(tmp_path)
    done("init", "my_recipe", "--like", getattr(request, "param", "tracking"))
    return tmp_path


@pytest.mark.long
def test_the_small_start_goes_from_events_to_a_report_and_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done("init", "my_tagger")
    assert {path.name for path in tmp_path.iterdir()} == {"my_tagger.py", "test_my_tagger.py"}
    text = (tmp_path / "my_tagger.py").read_text()
    assert len(text.splitlines()) <= 80, "about as long as the example of the README"
    commands = [line.split("#")[0].split()[1:] for line in text.splitlines() if line.startswith("    clew ")]
    assert [words[0] for words in commands] == ["data", "prepare", "train", "evaluate", "predict"]
    for words in commands:
        done(*words)
    scores = parquet.read_table("scores.parquet")
    assert {"event", "label", "score"} <= set(scores.column_names)
    report = (tmp_path / "runs/my_tagger-001/report.html").read_text()
    for part in ("ROC, auc", "Scores, auc", "Events with the largest losses", "Loss", "Validation"):
        assert part in report


def test_the_complete_example_is_written_as_one_file_and_its_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done("init", "my_tagger", "--like", "tagger")
    assert {path.name for path in tmp_path.iterdir()} == {"my_tagger.py", "test_my_tagger.py"}
    text = (tmp_path / "my_tagger.py").read_text()
    assert "class MyTagger(Recipe):" in text
    assert "clew train my_tagger.py --dataset dataset" in text
    assert "JetTagger" not in text and "clew init" not in text and "runs/tagger" not in text


def test_a_recipe_its_network_and_its_test_are_written(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {"my_recipe.py", "my_recipe_network.py", "test_my_recipe.py"}
    assert not any("@" in path.read_text().replace("@property", "") for path in folder.iterdir())


@pytest.mark.long
@pytest.mark.exec
@pytest.mark.parametrize("folder", LIKE, indirect=True)
def test_its_own_test_passes(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_my_recipe.py"]
    outcome = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=200)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert " passed" in outcome.stdout


def test_every_recipe_offered_before_is_offered() -> None:
    assert {"hitgraph", "jets", "lartpc", "particleflow", "small", "tagger", "tracking"} <= set(LIKE)


def test_its_settings_are_shown_and_changed(folder: Path) -> None:
    shown = yaml.safe_load(done("config", "show", "my_recipe.py", "--set", "model.hidden=5"))
    assert shown["model"] == {"hidden": 5, "layers": 2}
    assert shown["recipe"] == str(folder / "my_recipe.py")


def test_prepare_train_and_evaluate_accept_the_new_recipe(folder: Path, events: Path) -> None:
    done("prepare", "my_recipe.py", "--input", events, "--output", "dataset", "--workers", "2")
    assert "hits" in Dataset("dataset").schema
    done("train", "my_recipe.py", "--dataset", "dataset", "--epochs", "1")
    assert "true edges accepted" in done("evaluate", "runs/my_recipe-001")
    assert Run.open("runs/my_recipe-001").state == "finished"


def test_an_existing_file_is_not_overwritten(folder: Path) -> None:
    (folder / "my_recipe.py").write_text("mine")
    (folder / "test_my_recipe.py").unlink()
    outcome = clew("init", "my_recipe", "--like", "tracking")
    assert outcome.code == 2
    assert outcome.err == "clew: my_recipe.py exists already; choose another name or folder\n"
    assert (folder / "my_recipe.py").read_text() == "mine"
    assert not (folder / "test_my_recipe.py").exists()


def test_files_are_written_to_the_given_folder(tmp_path: Path) -> None:
    done("init", "other", "--folder", tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder" / "other.py").is_file()


@pytest.mark.parametrize("name", ["my-recipe", "1st", "class", "a/b", "", "my recipe.py", "../x"])
def test_a_name_that_python_cannot_use_is_refused(tmp_path: Path, name: str) -> None:
    outcome = clew("init", name, "--folder", tmp_path)
    assert outcome.code == 2
    assert outcome.err == f"clew: '{name}' cannot name a recipe; use letters, digits and _, as in my_recipe\n"
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_without_templates_is_refused_with_those_that_have_them(tmp_path: Path) -> None:
    outcome = clew("init", "mine", "--like", "tracknet", "--folder", tmp_path)
    assert outcome.code == 2
    assert outcome.err == (
        "clew: recipe 'tracknet' has no templates to start from; "
        "choose --like small, hitgraph, jets, lartpc, particleflow, tagger or tracking\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_recipe_to_start_from_suggests_the_nearest(tmp_path: Path) -> None:
    outcome = clew("init", "mine", "--like", "trackng", "--folder", tmp_path)
    assert outcome.code == 2
    assert "no shipped recipe 'trackng'; did you mean 'tracking'?" in outcome.err


def test_settings_of_a_recipe_are_written_as_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "wrote tagger.yaml" in done("init", "tagger", "--like", "jets/conv")
    assert yaml.safe_load(done("config", "show", "tagger.yaml"))["model"]["kind"] == "conv"
    assert (
        clew("init", "tagger", "--like", "jets/conv").err
        == "clew: tagger.yaml exists already; choose another name or folder\n"
    )
    assert clew("init", "other", "--like", "jets/cov").err.startswith(
        "clew: no settings 'jets/cov'; did you mean 'jets/conv'?"
    )
