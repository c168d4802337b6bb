"""The worked examples of the pages for users of other tools run as they are written."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import clew
from clew.runs import list_runs
from tests.cli import done
from tests.test_docs import ROOT, _blocks

HOWTO = ROOT / "docs" / "howto"
pytestmark = pytest.mark.timeout(500)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with `events.h5`, as the pages describe it."""
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(600, 2)).astype(np.float32)
    with h5py.File("events.h5", "w") as file:
        file["X"], file["y"] = x, (x.sum(axis=1) > 0).astype(np.int64)


def _run_commands(page: Path, section: str = "## A worked example") -> int:
    text = page.read_text().partition(section)[2]
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL) for line in block.splitlines()]
    for line in lines:
        done(*shlex.split(line)[1:])
    return len(lines)


def test_ray_tune() -> None:
    page = HOWTO / "from-ray-tune.md"
    Path("net.py").write_text(_blocks(page, "python")[0])
    Path("study.yaml").write_text(_blocks(page, "yaml")[0])
    assert _run_commands(page) == 4
    assert clew.Run.open("runs/best").state == "finished"


def test_itwinai() -> None:
    page = HOWTO / "from-itwinai.md"
    Path("model.py").write_text(_blocks(page, "python")[0])
    Path("net.yaml").write_text(_blocks(page, "yaml")[0])
    assert _run_commands(page) == 4
    assert clew.Run.open("runs/net").streams() == ["rank-0", "rank-1"] and Path("scaling").is_dir()


def test_ariadne() -> None:
    page = HOWTO / "from-ariadne.md"
    Path("train.cfg").write_text(_blocks(page, "text")[0])
    assert _run_commands(page) == 4
    settings = clew.Run.open("runs/graphs").config().data
    assert settings["model"]["hidden"] == 32 and settings["train"]["batch_size"] == 16


def test_optuna(capsys: pytest.CaptureFixture[str]) -> None:
    objective, in_optuna = _blocks(HOWTO / "from-optuna.md", "python")
    exec(objective, {})
    exec(in_optuna, {})
    assert re.search(r"^20 \d\.\d+", capsys.readouterr().out, flags=re.MULTILINE)


def test_determined(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("train.py").write_text(_blocks(HOWTO / "from-determined.md", "python")[0])
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.5"])
    runpy.run_path("train.py", run_name="__main__")
    clew.distributed.close()
    (run,) = list_runs(Path("runs"))
    assert (run.path / "artefacts" / "model.pt").exists()
