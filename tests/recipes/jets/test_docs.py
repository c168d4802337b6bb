"""The commands of docs/reference/recipes/jets.md, one after the other, on fewer jets and for one epoch."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import uproot

from clew import settings
from tests.cli import done

from . import ROOT
from .test_toptagging import momenta, public_file

PAGE = (ROOT / "docs" / "reference" / "recipes" / "jets.md").read_text()


def _block(language: str, number: int = 0) -> str:
    return str(re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)[number])


@pytest.mark.long
@pytest.mark.slow
def test_the_page_s_commands_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pythia8mc", reason="pip install 'clew[hep]'")
    pytest.importorskip("fastjet", reason="pip install 'clew[hep]'")
    monkeypatch.chdir(tmp_path)
    fewer = {"--events 20000": "--events 100", "--dataset dataset": "--dataset dataset --epochs 1"}
    for line in _block("sh").splitlines():
        for long, short in fewer.items():
            line = line.replace(long, short)
        done(*shlex.split(line)[1:])
    with uproot.open(tmp_path / "scores.root") as file:
        assert {"jet_pt", "score_top", "score_q"} <= set(file["predictions"].keys())
    exec(_block("python"), {})
    assert (tmp_path / "roc.pdf").stat().st_size > 5000


@pytest.mark.long
def test_the_page_s_commands_for_the_public_files_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for split, count in (("train", 200), ("val", 40), ("test", 50)):
        public_file(tmp_path / f"{split}.h5", momenta(count), format="table")
    for line in _block("sh", 1).splitlines():
        printed = done(*shlex.split(line.replace("--dataset dataset", "--dataset dataset --epochs 1"))[1:])
    assert "rejection 30" in printed


def test_the_page_s_settings_are_valid(tmp_path: Path) -> None:
    (tmp_path / "sample.yaml").write_text(_block("yaml"))
    assert settings.load_settings(str(tmp_path / "sample.yaml")).recipe.config.data.classes == ("QCD", "top")
