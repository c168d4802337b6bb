"""The commands and settings of docs/howto/trees.md run."""

from __future__ import annotations

import shlex
from pathlib import Path

import h5py
import pytest

from clew import Run, Table
from tests.cli import done
from tests.models.test_estimators import events
from tests.test_docs import ROOT, _blocks

PAGE = ROOT / "docs" / "howto" / "trees.md"
NET = """
from torch import nn

def build():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
"""


@pytest.mark.long
def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with h5py.File("events.h5", "w") as file:
        for name, values in events(400).items():
            file[name] = values
    Path("net.py").write_text(NET)
    Path("study.yaml").write_text(_blocks(PAGE, "yaml")[0])
    lines = [shlex.split(line) for block in _blocks(PAGE, "sh") for line in block.splitlines()]
    assert len(lines) == 10
    output = {}
    for words in lines:
        if words[1] == "tune":
            Path("dataset").symlink_to(Run.open("runs/histogram").config().data["train"]["dataset"])
        output[" ".join(words[1:3])] = done(*words[1:])
    assert "auc" in output["compare runs/trees"] and "accuracy" in output["compare runs/trees"]
    assert Table.load("scores.h5").fixed("output").shape == (400, 2)
    report = Path("runs/trees/report.html").read_text()
    assert "Permutation importance" in report and "Feature importance, XGBClassifier" in report
    assert len(list(Path("studies/trees/trials").iterdir())) == 3
