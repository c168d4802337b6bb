"""Code that comes from elsewhere (runs, stored models, programs of torch) is not executed before it is trusted."""

from __future__ import annotations

import importlib.util
import json
import marshal
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import clew
from clew import Dataset, Run
from clew.core.config import to_yaml
from clew.core.trust import ORIGIN, mark_origin
from clew.errors import RunError
from clew.models.torch_program import load_graph
from clew.settings import load_settings
from clew.storage import models
from clew.training.api import resume
from tests.cli import clew as command

MODEL = """
import os
from pathlib import Path
from torch import nn

if os.environ.get("ATTACKED"):
    Path(os.environ["ATTACKED"]).touch()


def network():
    return nn.Linear(2, 1)
"""
NOT_YOURS = "would run code as you"


@pytest.fixture
def attacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that hostile code makes. The user has trusted nothing so far."""
    monkeypatch.setenv("CLEW_CONFIG", str(tmp_path / "config"))
    return tmp_path / "attacked"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose model is in a file of its author."""
    folder = tmp_path_factory.mktemp("author")
    (folder / "network.py").write_text(MODEL)
    x = np.random.default_rng(1).normal(size=(60, 2)).astype(np.float32)
    return clew.train(f"{folder}/network.py:network", (x, x[:, :1]), output=folder / "run", epochs=1)


@pytest.fixture
def stored(trained: Run, tmp_path: Path) -> str:
    """That run in a store, put there by its author."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLEW_CONFIG", str(tmp_path / "author"))
        return models.store_model(trained, str(tmp_path / "models"))


@pytest.fixture
def brought(stored: str, attacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The run as another user brings it."""
    run = models.fetch_model(stored, tmp_path / "runs" / "brought")
    monkeypatch.setenv("ATTACKED", str(attacked))
    return run


@pytest.mark.parametrize(
    "use",
    [
        lambda run: clew.evaluate(run, split="val"),
        lambda run: clew.predict(run, np.ones((3, 2), dtype=np.float32)),
        lambda run: clew.export(run, to="onnx"),
        lambda run: clew.evaluate(run, split="val", current_code=True),
        lambda run: resume(run, epochs=2),
        lambda run: load_settings(str(run.path)),
    ],
    ids=["evaluate", "predict", "export", "current code", "resume", "settings"],
)
def test_code_of_a_fetched_run_is_not_executed(use: Callable[[Run], Any], brought: Run, attacked: Path) -> None:
    with pytest.raises(RunError, match=rf"{NOT_YOURS}: code/network.py, .*--trust"):
        use(brought)
    assert not attacked.exists()


def test_the_settings_of_a_fetched_run_run_no_code_when_they_are_named_as_a_file(brought: Run, attacked: Path) -> None:
    with pytest.raises(RunError, match=NOT_YOURS):
        load_settings(str(brought.config_file))
    done = command("train", brought.config_file, "--output", brought.path / "again")
    assert NOT_YOURS in done.err and not attacked.exists()


def test_a_folder_that_was_moved_is_still_from_elsewhere(brought: Run, attacked: Path, tmp_path: Path) -> None:
    moved = Run.open(shutil.move(brought.path, tmp_path / "mine"))
    with pytest.raises(RunError, match=NOT_YOURS):
        clew.evaluate(moved, split="val")
    assert not attacked.exists()


def test_byte_code_in_a_run_is_not_executed(trained: Run, attacked: Path, tmp_path: Path) -> None:
    """A reader of the source would not see what such a file does."""
    run = Run.open(shutil.copytree(trained.path, tmp_path / "copy"))
    source = next(run.code_folder.rglob("network.py"))
    code = compile(f"open({str(attacked)!r}, 'w')\n{MODEL}", str(source), "exec")
    cached = Path(importlib.util.cache_from_source(str(source)))
    cached.parent.mkdir(exist_ok=True)
    unchecked = (1).to_bytes(4, "little") + bytes(8)  # of a file whose source is never compared (PEP 552)
    cached.write_bytes(importlib.util.MAGIC_NUMBER + unchecked + marshal.dumps(code))
    assert len(clew.predict(run, np.ones((3, 2), dtype=np.float32))) == 3
    assert not attacked.exists()


def test_trust_is_remembered_until_the_code_changes(brought: Run, attacked: Path, monkeypatch: Any) -> None:
    outcome = command("evaluate", brought.path, "--split", "val")
    assert outcome.code == 2 and NOT_YOURS in outcome.err and len(outcome.err.splitlines()) == 1
    assert command("evaluate", brought.path, "--split", "val", "--trust").code == 0
    assert attacked.exists()
    assert clew.evaluate(brought, split="val").events
    (brought.code_folder / "network.py").write_text(MODEL + "# another line\n")
    with pytest.raises(RunError, match=NOT_YOURS):
        clew.evaluate(brought, split="val")


def test_model_get_names_the_code_that_it_brought(
    stored: str, attacked: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    outcome = command("model", "get", stored, "--output", tmp_path / "got")
    assert "brings code (not trusted: read it first): code/network.py" in outcome.out
    assert command("evaluate", tmp_path / "got", "--split", "val").code == 2
    outcome = command("model", "get", stored, "--output", tmp_path / "got", "--trust")
    assert "brings code (trusted): code/network.py" in outcome.out
    assert command("evaluate", tmp_path / "got", "--split", "val").code == 0


def test_what_the_user_stored_comes_back_without_a_question(trained: Run, attacked: Path, tmp_path: Path) -> None:
    place = models.store_model(trained, str(tmp_path / "models"))
    assert clew.evaluate(models.fetch_model(place, tmp_path / "back"), split="val").events


def test_a_fetched_run_of_a_shipped_recipe_needs_no_trust(
    run: Run, dataset: Dataset, attacked: Path, tmp_path: Path
) -> None:
    brought = models.fetch_model(models.store_model(run, str(tmp_path / "models")), tmp_path / "model")
    assert (brought.path / ORIGIN).is_file()
    assert clew.evaluate(brought, data=dataset).events


@pytest.mark.parametrize("recipe", ["columns", "lightning"])
def test_settings_alone_can_be_code(recipe: str, run_copy: Run, attacked: Path) -> None:
    """`model.build: os:system` needs no file."""
    mark_origin(run_copy.path, "s3://somewhere")
    model = {"build": "os:system", "arguments": {"command": f"touch {attacked}"}}
    settings = {"recipe": recipe, "columns": {"features": ["x"], "labels": ["y"]}, "model": model}
    run_copy.config_file.write_text(to_yaml({**settings, "train": run_copy.config().data["train"]}))
    with pytest.raises(RunError, match=rf"{NOT_YOURS}: model: os:system"):
        clew.evaluate(run_copy)
    assert not attacked.exists()


def test_the_index_of_saved_code_does_not_lead_out(
    trained: Run, attacked: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    run = Run.open(shutil.copytree(trained.path, tmp_path / "copy"))
    monkeypatch.setenv("ATTACKED", str(attacked))
    (tmp_path / "outside.py").write_text(MODEL)
    index = run.code_folder / "clew-code.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "recipe": "../../outside.py:X"}))
    with pytest.raises(RunError, match="not in this folder"):
        clew.evaluate(run, split="val")
    assert not attacked.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")
def test_a_run_of_another_user_is_not_executed(trained: Run, attacked: Path, tmp_path: Path, monkeypatch: Any) -> None:
    run = Run.open(shutil.copytree(trained.path, tmp_path / "theirs"))
    monkeypatch.setenv("ATTACKED", str(attacked))
    os.chown(run.code_folder / "network.py", 4711, 4711)
    with pytest.raises(RunError, match=f"came from user 4711 and {NOT_YOURS}"):
        clew.evaluate(run, split="val")
    assert not attacked.exists()


def program(path: Path, attacked: Path) -> Path:
    """A program of torch that, when it is loaded, executes what its author wrote."""
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    torch.export.save(torch.export.export(nn.Linear(2, 1), (torch.randn(6, 2),), dynamic_shapes=shapes), path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    hostile = b"cos\nsystem\n(S'touch %s'\ntR." % str(attacked).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, hostile if name.endswith("inputs/model.pt") else content)
    return path


def test_a_program_is_executed_only_by_those_who_made_or_trust_it(
    trained: Run, attacked: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    file, events = clew.export(trained, to="torch", split="val").path, np.ones((3, 2), dtype=np.float32)
    assert clew.predict(file, events).shape == (3, 1)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(f"{Path(archive.namelist()[0]).parts[0]}/extra/more", "other content")
    with pytest.raises(RunError, match=f"{NOT_YOURS}: a .pt2 file is a program"):
        clew.predict(file, events)
    assert clew.predict(file, events, trust=True).shape == (3, 1)


def test_an_onnx_file_of_another_recipe_is_not_asked_for_its_code(
    trained: Run, attacked: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """An ONNX file holds no code, but names a recipe, which is loaded to prepare events."""
    monkeypatch.chdir(tmp_path)
    file, events = clew.export(trained, to="onnx", split="val").path, np.ones((3, 2), dtype=np.float32)
    monkeypatch.setenv("CLEW_CONFIG", str(tmp_path / "another user"))
    with pytest.raises(RunError, match=NOT_YOURS):
        clew.predict(file, events)
    assert clew.predict(file, events, trust=True).shape == (3, 1)


@pytest.mark.parametrize(
    "facts",
    [
        {"recipe": "{code}", "settings": {"recipe": "tracking"}},  # the settings pretend to be those of another recipe
        {"recipe": "tracking", "original_recipe": "{code}"},  # the recipe of which a run saved a copy
    ],
    ids=["a name in the settings", "the original recipe"],
)
def test_the_description_of_a_file_cannot_hide_its_recipe(
    facts: dict[str, Any], trained: Run, attacked: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    import onnx

    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(MODEL)
    file = clew.export(trained, to="onnx", split="val").path
    model = onnx.load(file)
    entry = next(each for each in model.metadata_props if each.key == "clew")
    changed = json.dumps(facts).replace("{code}", str(tmp_path / "evil.py"))
    entry.value = json.dumps({**json.loads(entry.value), **json.loads(changed)})
    onnx.save(model, file)
    monkeypatch.setenv("ATTACKED", str(attacked))
    with pytest.raises(RunError, match=f"{NOT_YOURS}: the recipe .*evil.py"):
        clew.predict(file, np.ones((3, 2), dtype=np.float32))
    assert not attacked.exists()


@pytest.mark.parametrize("kind", ["pt2", "onnx"])
def test_generate_runs_no_code_of_a_file_from_elsewhere(
    kind: str, trained: Run, attacked: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    file = (
        program(tmp_path / "net.pt2", attacked) if kind == "pt2" else clew.export(trained, to="onnx", split="val").path
    )
    monkeypatch.setenv("CLEW_CONFIG", str(tmp_path / "another user"))
    monkeypatch.setenv("ATTACKED", str(attacked))
    with pytest.raises(RunError, match=NOT_YOURS):
        clew.generate(file, events=1, ranges={}, output="drawn.h5")
    done = command("generate", file, "--events", "1", "--output", "drawn.h5")
    assert NOT_YOURS in done.err
    assert not attacked.exists()


def test_a_downloaded_program_is_not_trained(attacked: Path, tmp_path: Path) -> None:
    (tmp_path / "brought").mkdir()
    mark_origin(tmp_path / "brought", "s3://somewhere")
    file = program(tmp_path / "brought" / "net.pt2", attacked)
    with pytest.raises(RunError, match=f"came from s3://somewhere and {NOT_YOURS}: torch runs pickles"):
        load_graph(file)
    assert not attacked.exists()
    assert command("model", "trust", file).code == 0
    with pytest.raises(Exception, match=r"."):  # the pickle is executed: what the refusal is for
        load_graph(file)
    assert attacked.exists()
