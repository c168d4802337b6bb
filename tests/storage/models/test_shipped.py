"""Models that are part of the package: listed, used by name, fine-tuned, and as good as their cards say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

import clew
from clew.storage.models import open_run
from clew.storage.models.shipped import FOLDER, find_shipped, shipped_names
from tests.cli import clew as command

TOOL = Path(__file__).parents[3] / "tools/train_shipped_models.py"
LARGEST = 6 << 20
"""Bytes of all files together."""


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_shipped_models", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_model_has_a_card_and_all_are_small() -> None:
    tool = _tool()
    assert shipped_names() and set(shipped_names()) <= set(tool.MODELS)
    for name in shipped_names():
        facts = json.loads((FOLDER / name / "clew.json").read_text())
        assert facts["check"]["figures"] and facts["trained_on"] and facts["commit"] and facts["trained_minutes"] > 0
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < LARGEST


def test_no_file_names_the_machine_that_trained_it() -> None:
    for path in FOLDER.rglob("*"):
        if path.suffix in (".json", ".yaml"):
            assert "/tmp/" not in path.read_text() and '"host"' not in path.read_text(), path


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", shipped_names())
def test_a_model_still_gives_its_recorded_figures(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tool, run = _tool(), open_run(name)
    recorded = json.loads((FOLDER / name / "clew.json").read_text())["check"]
    model = tool.MODELS[name]
    files = tool.check_files(model, tmp_path / "check")
    assert recorded["seed"] == tool.CHECK_SEED and recorded["events"] == model.check_events
    assert tool.evaluate_figures(run, files, model) == pytest.approx(recorded["figures"], abs=2e-3)


def test_a_name_is_a_model_of_the_package_unless_a_run_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = shipped_names()[0]
    assert find_shipped(name) == FOLDER / name and find_shipped("no-such-model") is None
    assert open_run(name).path == Path("runs") / name
    with pytest.raises(clew.errors.RunError):
        open_run("no-such-model")


def test_list_and_predict_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = shipped_names()[-1]
    listed = command("model", "list")
    assert listed.code == 0 and name in listed.out
    assert [each["name"] for each in json.loads(command("model", "list", "--json").out)] == shipped_names()
    model = _tool().MODELS[name]
    files = _tool().check_files(model._replace(check_events=20), tmp_path / "events")
    done = command("predict", name, "--input", files[0])
    assert done.code == 0, done.err
    assert (tmp_path / f"{name}-predictions.h5").is_file()
