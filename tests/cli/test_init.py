"""`clew init` writes a recipe that works as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from clew import Dataset, Run
from clew.cli.start import recipe_template
from tests.cli import clew, done

LIKE = sorted(recipe_template.available())


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A folder, the current one, with a fresh recipe."""
    monkeypatch.chdir(tmp_path)
    done("init", "my_recipe", "--like", getattr(request, "param", "tracking"))
    return tmp_path


def test_a_recipe_its_network_and_its_test_are_written(written: Path) -> None:
    assert {path.name for path in written.iterdir()} == {"my_recipe.py", "my_recipe_network.py", "test_my_recipe.py"}
    assert not any("@" in path.read_text().replace("@property", "") for path in written.iterdir())


@pytest.mark.parametrize("written", LIKE, indirect=True)
def test_its_own_test_passes(written: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_my_recipe.py"]
    ended = subprocess.run(command, cwd=written, capture_output=True, text=True, check=False, timeout=200)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 passed" in ended.stdout


def test_its_settings_are_shown_and_changed(written: Path) -> None:
    shown = yaml.safe_load(done("config", "show", "my_recipe.py", "--set", "model.hidden=5"))
    assert shown["model"] == {"hidden": 5, "layers": 2}
    assert shown["recipe"] == str(written / "my_recipe.py")


def test_it_goes_the_whole_way_by_commands(written: Path, events: Path) -> None:
    done("prepare", "my_recipe.py", "--input", events, "--output", "dataset", "--workers", "2")
    assert "hits" in Dataset("dataset").schema
    done("train", "my_recipe.py", "--dataset", "dataset", "--epochs", "1")
    assert "true edges kept" in done("evaluate", "runs/my_recipe-001")
    assert Run.open("runs/my_recipe-001").state == "finished"


def test_what_exists_is_not_overwritten(written: Path) -> None:
    (written / "my_recipe.py").write_text("mine")
    (written / "test_my_recipe.py").unlink()
    outcome = clew("init", "my_recipe", "--like", "tracking")
    assert outcome.code == 2
    assert outcome.err == "clew: my_recipe.py exists already; choose another name or folder\n"
    assert (written / "my_recipe.py").read_text() == "mine"
    assert not (written / "test_my_recipe.py").exists()


def test_files_go_to_the_folder_asked_for(tmp_path: Path) -> None:
    done("init", "other", "--folder", tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder" / "other.py").is_file()


@pytest.mark.parametrize("name", ["my-recipe", "1st", "class", "a/b", "", "my recipe.py", "../x"])
def test_a_name_that_python_cannot_use_is_refused(tmp_path: Path, name: str) -> None:
    outcome = clew("init", name, "--folder", tmp_path)
    assert outcome.code == 2
    assert outcome.err == f"clew: '{name}' cannot name a recipe; use letters, digits and _, as in my_recipe\n"
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_without_templates_says_which_have_them(tmp_path: Path) -> None:
    outcome = clew("init", "mine", "--like", "tracknet", "--folder", tmp_path)
    assert outcome.code == 2
    assert outcome.err == (
        "clew: recipe 'tracknet' has no templates to start from; "
        "choose --like hitgraph or --like jets or --like tracking\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_model_to_follow_suggests_the_nearest(tmp_path: Path) -> None:
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
