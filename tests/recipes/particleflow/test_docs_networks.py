"""The commands of docs/reference/recipes/particleflow.md that train a network, on small events with a small network."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from clew import Table
from tests.cli import done

from . import ROOT, flow_events
from .test_recipe import SMALL


def test_the_page_s_commands_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "reference" / "recipes" / "particleflow.md").read_text()
    block = re.findall(r"## Networks\n\n```sh\n(.*?)```", page, flags=re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "events").mkdir()
    flow_events(40).save(tmp_path / "events" / "synthetic.h5")
    less = [word for each in (*SMALL, "train.epochs=1") for word in ("--set", each)]
    for line in block.splitlines():
        command = shlex.split(line)[1:]
        if "generate" not in command:
            done(*command, *(less if "train" in command else []))
    predictions = Table.load(tmp_path / "particles.h5")
    assert {"pid", "charge", "pt", "eta", "phi", "energy"} <= set(predictions) and (
        tmp_path / "runs/flow/report.html"
    ).exists()
