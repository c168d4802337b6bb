"""The commands of docs/howto/bench.md that need no long training run as written there."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.bench.test_hepscore import summary
from tests.bench.test_scale import study, trained
from tests.cli import done
from tests.test_docs import ROOT, _blocks

PAGE = ROOT / "docs" / "howto" / "bench.md"
QUICK = ("clew bench score", "clew bench compare")


def test_scores_and_comparisons_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two", "three", "results", "reference"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "particleflow_summary.json").write_text(json.dumps(summary(3.0)))
    for name in ("scaling", "later"):
        (tmp_path / name).mkdir()
        study(trained(1, 1e-2), trained(2, 6e-3)).save(tmp_path / name / "scale.json")
    monkeypatch.chdir(tmp_path)
    lines = [line for block in _blocks(PAGE, "sh") for line in block.splitlines() if line.startswith(QUICK)]
    assert len(lines) >= 3
    for line in lines:
        assert done(*shlex.split(line)[1:])


def test_the_reference_of_the_page_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "reference.yaml"
    file.write_text(_blocks(PAGE, "yaml")[0])
    (tmp_path / "particleflow_summary.json").write_text(json.dumps(summary(6.0)))
    assert "score 20" in done("bench", "score", tmp_path, "--reference", file)
