"""The commands of the pages on events and on files of particle flow, on fewer events and less pile-up."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from clew.recipes.particleflow import pileup, pythia
from tests.cli import done

from . import ROOT

PAGES = ROOT / "docs" / "reference" / "recipes"
EVENTS, FILES = (
    re.findall(start + r"\n\n```sh\n(.*?)```", (PAGES / page).read_text(), flags=re.DOTALL)[0]
    for page, start in (("particleflow.md", "## Events"), ("particleflow-files.md", "# .*?"))
)


@pytest.mark.slow
def test_the_page_s_commands_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pythia8mc", reason="pip install 'clew[hep]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pileup, "COLLISIONS_PER_PART", 100)
    monkeypatch.setitem(pythia.PROCESS_SETTINGS, "minimum bias", ("SoftQCD:nonDiffractive = on",))
    less = ["--set", "generator.pileup=5", "--set", "generator.pool.size=100", "--workers", "1"]
    for line in (EVENTS + FILES).splitlines():
        command = shlex.split(line.replace("--events 100", "--events 6"))[1:]
        done(*command, *(less if "generate" in command else []))
    assert [path.name for path in sorted(tmp_path.glob("*/synthetic-*.h5"))] == [
        "synthetic-ttbar-pu5-seed0-00000.h5",
        "synthetic-qcd-pu5-seed0-00000.h5",
        "synthetic-parametric-pu5-seed0-00000.h5",
    ]
