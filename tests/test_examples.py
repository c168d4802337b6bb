"""The notebooks in `examples/` and the tutorials: every cell runs in a real kernel; they are stored without outputs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).parents[1]
BOOKS = sorted([*(ROOT / "examples").glob("*.ipynb"), *(ROOT / "docs" / "tutorials").glob("*.ipynb")])
SHOWN = {
    "benchmark-node": ["image/png", "best: ", "wl-scores", "score "],
    "columnar": ["text/html", "'events': 3000"],
    "elastic-workers": ["image/png", "worker 4", "no heartbeat", "samples: True"],
    "fast-simulation": ["image/png", "runs/flow finished", "separation/response"],
    "first-tagger": ["image/png", "text/html", "part_pt"],
    "keras-model": ["image/png", "largest difference of the validation losses"],
    "lightning": ["text/html", "image/png"],
    "service": ["image/png", "job 1: done", "did you mean 'train.epochs'", "accuracy on new events", "stopped"],
    "several-workers": ["image/png", "communicate", "0.0\\n"],
    "study": ["image/png", "Study(studies/first", "best.yaml"],
    "tracking": ["image/png", "nodes", "efficiency"],
    "trees_and_network": ["text/html", "runs/network"],
    "weaver": ["text/html", "score_jet_isTop"],
}
"""What the outputs of a notebook contain: kinds of output, and text."""

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(700)]


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def test_every_notebook_is_expected() -> None:
    assert sorted(path.stem for path in BOOKS) == sorted(SHOWN)


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path: Path) -> None:
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)
    assert path.stat().st_size < 20_000


@pytest.mark.long
@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    book = read(path)
    nbclient.NotebookClient(book, timeout=500, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = str([output.get("data", output.get("text")) for output in outputs])
    for text in SHOWN[path.stem]:
        assert text in shown, shown[-3000:]
