"""The commands and the code of docs/howto/from-lightning.md run."""

from __future__ import annotations

import shlex
from pathlib import Path

import h5py
import pytest

from clew import Run, Table
from tests.cli import done
from tests.models.test_estimators import events
from tests.test_docs import ROOT, _blocks

PAGE = ROOT / "docs" / "howto" / "from-lightning.md"


@pytest.mark.timeout(400)
def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with h5py.File("events.h5", "w") as file:
        for name, values in events(400).items():
            file[name] = values
    Path("my.py").write_text(_blocks(PAGE, "python")[0])
    Path("study.yaml").write_text(_blocks(PAGE, "yaml")[0])
    lines = [shlex.split(line) for block in _blocks(PAGE, "sh") for line in block.splitlines()]
    assert len(lines) == 6
    for words in lines:
        if words[1] == "tune":
            Path("dataset").symlink_to(Run.open("runs/lit").config().data["train"]["dataset"])
        done(*words[1:])
    assert Table.load("scores.h5").fixed("output").shape == (400, 2)
    assert Run.open("runs/wide").streams() == ["rank-0", "rank-1"]
    assert len(list(Path("studies/lit/trials").iterdir())) == 3
