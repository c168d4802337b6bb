"""A notebook in a real browser: a cell with `clew.train` shows curves that grow while the training runs.

Jupyter's server and pages are large (90 packages), and not part of the lock: `tools/sites-install jupyter` installs
them in an environment of their own. The kernel is this environment's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from clew import Run

CELL = """
import numpy as np
from torch import nn
import clew
x = np.random.default_rng(0).normal(size=(2000, 2)).astype(np.float32)
y = (x.sum(axis=1) > 0).astype(np.int64)
run = clew.train(nn.Linear(2, 2), (x, y), epochs=100000, minutes=0.2, log_every=1, output="runs/live")
"""

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(400)]


@pytest.fixture
def jupyter(tmp_path: Path) -> Iterator[str]:
    """The address of a Jupyter server whose folder holds `book.ipynb`, with a kernel of this environment."""
    program = Path(__file__).parents[2] / ".venv-jupyter" / "bin" / "jupyter-notebook"
    if not program.exists():
        pytest.skip("no Jupyter server here: tools/sites-install jupyter")
    kernel = tmp_path / "share" / "kernels" / "python3" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    words = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": words, "display_name": "Python 3", "language": "python"}))
    folder = tmp_path / "work"
    folder.mkdir()
    v4 = nbformat.v4
    book = v4.new_notebook(cells=[v4.new_code_cell(CELL)])  # type: ignore[no-untyped-call]
    book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, folder / "book.ipynb")  # type: ignore[no-untyped-call]
    places = {"JUPYTER_PATH": "share", "JUPYTER_RUNTIME_DIR": "runtime", "JUPYTER_CONFIG_DIR": "config"}
    environment = {**os.environ, **{name: str(tmp_path / place) for name, place in places.items()}}
    options = ["--no-browser", "--allow-root", "--ServerApp.port=0", "--IdentityProvider.token=secret"]
    with (tmp_path / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [str(program), *options], cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        while not list((tmp_path / "runtime").glob("jpserver-*.json")):
            assert process.poll() is None, (tmp_path / "log.txt").read_text()[-3000:]
            time.sleep(0.2)
        (facts,) = (tmp_path / "runtime").glob("jpserver-*.json")
        yield json.loads(facts.read_text())["url"]
    finally:
        process.terminate()
        process.wait(60)


def test_curves_grow_while_a_cell_trains(jupyter: str, browser: Any, tmp_path: Path) -> None:
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(f"{jupyter}notebooks/book.ipynb?token=secret")
    page.locator(".jp-CodeCell .cm-content").first.click()
    page.wait_for_selector("text=Python 3 >> visible=true")
    page.keyboard.press("Shift+Enter")
    output = page.locator(".jp-OutputArea-output").first
    output.locator("polyline").first.wait_for()
    points = [_points(output)]
    while points[-1] == points[0]:  # the cell is not executed again: clew replaces its output
        page.wait_for_timeout(500)
        points.append(_points(output))
    assert Run.open(tmp_path / "work" / "runs" / "live").state == "running"
    output.locator("text=finished").first.wait_for()
    assert output.locator("svg").count() == 2 and output.locator("progress").count() == 1
    assert Run.open(tmp_path / "work" / "runs" / "live").state == "finished"
    context.close()


def _points(output: Any) -> str:
    """The points of the first curve."""
    return str(output.locator("polyline").first.get_attribute("points"))
