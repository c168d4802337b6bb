"""The page of file formats: its numbers are those of the code, and its programs read files without clew."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import clew
from clew.data.prepare.generate import generate
from clew.recipe import find

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "formats.md"
CONSTANTS = {
    "dataset": "clew.data.dataset.manifest:FORMAT",
    "table": "clew.data.table.hdf5:FORMAT",
    "run folder": "clew.runs.folder:FORMAT",
    "records": "clew.runs.records:SCHEMA",
    "state to resume from": "clew.training.checkpoint:FORMAT",
    "weights": "clew.training.checkpoint:WEIGHTS_FORMAT",
    "study": "clew.tuning.folder:FORMAT",
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_the_page_names_the_format_of_the_code(name: str) -> None:
    module, _, constant = CONSTANTS[name].partition(":")
    assert f"| {name} | {getattr(importlib.import_module(module), constant)} |" in PAGE.read_text()


@pytest.mark.slow
def test_its_programs_read_a_dataset_and_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    generate(find("tracking")(), 60, 1, tmp_path / "events", workers=1)
    clew.prepare("tracking", input=["events"], output="dataset", workers=1)
    clew.train("tracking", "dataset", epochs=1, output="runs/first")
    capsys.readouterr()
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        assert "clew." not in block and "import clew" not in block
        exec(block, {})
    shown = capsys.readouterr().out
    assert re.search(r"^\d+ mm\n\[0\.\d+\]\n\['edge_hidden\.bias'", shown), shown
