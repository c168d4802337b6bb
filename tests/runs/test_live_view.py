"""`clew.train` shows its progress: a bar and lines in a terminal, HTML in a notebook, nothing with `progress=False`."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import numpy as np
import pytest
from rich.console import Console
from torch import nn

import clew
from clew.runs.live_view import TerminalView

SCRIPT = """
import numpy as np
from torch import nn
import clew
x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
run = clew.train(nn.Linear(2, 1), (x, x.sum(axis=1)), epochs=2{more})
"""


def in_terminal(script: str, folder: Path) -> str:
    """The output of a script whose standard output is a terminal."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "NO_COLOR": "1"}
    with subprocess.Popen([sys.executable, "-c", script], cwd=folder, stdout=follower, env=environment) as process:
        os.close(follower)
        text = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            text += part
    os.close(leader)
    assert process.returncode == 0
    return text.decode()


def piped(script: str, folder: Path) -> str:
    return subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_a_terminal_shows_the_data_the_run_and_every_epoch(tmp_path: Path) -> None:
    output = in_terminal(SCRIPT.format(more=""), tmp_path)
    assert "\x1b[?25l" in output  # the cursor is hidden while a bar is shown
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output)
    assert "train 161, val 39 events" in text
    assert "run runs/linear-001" in text and "3 parameters, 161 samples, on cpu" in text
    assert "epoch   1/2" in text and "epoch   2/2" in text and "mae" in text


def test_progress_false_shows_nothing(tmp_path: Path) -> None:
    assert in_terminal(SCRIPT.format(more=", progress=False"), tmp_path) == ""


@pytest.mark.parametrize(("more", "lines"), [("", 0), (", progress=True", 2)])
def test_a_file_gets_lines_only_if_they_are_asked_for(more: str, lines: int, tmp_path: Path) -> None:
    text = piped(SCRIPT.format(more=more), tmp_path)
    assert text.count("epoch ") == lines and (lines or not text)


def test_a_run_watched_from_its_second_epoch_shows_how_many_there_are(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    run = clew.train(nn.Linear(2, 1), (x, x.sum(axis=1)), epochs=3, output=tmp_path / "run", progress=False)
    file = run.records_folder / "rank-0.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    first = next(index for index, line in enumerate(lines) if '"validation"' in line) + 1
    file.write_text("".join(lines[:first]))
    output = io.StringIO()
    view = TerminalView(Console(file=output, width=120))
    view.started(run)
    with file.open("a") as records:
        records.writelines(lines[first:])
    view.close()
    text = output.getvalue()
    assert "epoch   1/3" not in text and "epoch   2/3" in text and "epoch   3/3" in text


def run_notebook(cells: list[str], folder: Path) -> list[list[Any]]:
    """The outputs of the cells of a real notebook."""
    v4: Any = nbformat.v4
    notebook = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    return [cell.outputs for cell in notebook.cells]


@pytest.mark.filterwarnings("default")  # of the packages of Jupyter
def test_a_notebook_shows_html(tmp_path: Path) -> None:
    training, silent = run_notebook([SCRIPT.format(more=""), SCRIPT.format(more=", progress=False")], tmp_path)
    assert silent == []
    (output,) = training
    html = output["data"]["text/html"]
    assert "<b>runs/linear-001</b> <progress" in html and "finished" in html
    assert "<th>epoch</th><th>loss</th><th>mae</th>" in html and "<td>2/2</td>" in html
    assert "<script" not in html
