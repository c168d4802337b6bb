"""Runs and studies in a notebook: real kernels execute the cells."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import psutil
import pytest
from jupyter_client.manager import KernelManager

import clew
from clew import Run
from clew.errors import ConfigError, RunError

DATA = """
import numpy as np
from torch import nn
import clew
x = np.random.default_rng(0).normal(size=(400, 2)).astype(np.float32)
y = (x.sum(axis=1) > 0).astype(np.int64)
"""
CELLS = [
    DATA + "run = clew.train(nn.Linear(2, 2), (x, y), epochs=3, log_every=1, output='runs/first')",
    "run",
    "run.draw(style='CMS')",
    "clew.evaluate(run, split='val').draw('auc', 'confusion')",
    "clew.runs('runs')[['state', 'epochs_done', 'loss', 'train.optimizer.lr']]",
    "from clew.tuning.config import TuneConfig\n"
    "config = TuneConfig(space={'x': {'uniform': [0, 1]}}, trials=4)\n"
    "study = clew.tune(config, 'studies/first', function=lambda values: values['x'] ** 2)",
    "study",
]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """The outputs of the cells."""
    folder, v4 = tmp_path_factory.mktemp("notebook"), nbformat.v4
    notebook = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in CELLS])  # type: ignore[no-untyped-call]
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(folder)}}).execute()
    return [cell.outputs for cell in notebook.cells]


pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]


def html(outputs: list[Any]) -> str:
    (output,) = [each for each in outputs if each["output_type"] != "stream"]  # optuna imports tqdm, which warns
    text: str = output["data"]["text/html"]
    assert "<script" not in text
    return text


def test_a_training_shows_a_bar_curves_and_a_table(outputs: list[list[Any]]) -> None:
    text = html(outputs[0])
    assert "<b>runs/first</b> <progress" in text and "finished" in text
    assert text.count("<svg") == 2 and text.count("<polyline") >= 3
    assert "<th>epoch</th><th>loss</th>" in text and "<td>3/3</td>" in text


def test_a_run_shows_its_curves(outputs: list[list[Any]]) -> None:
    text = html(outputs[1])
    assert "Run runs/first" in text and "<td>finished</td>" in text and text.count("<svg") == 2


@pytest.mark.parametrize("cell", [2, 3])
def test_plots_are_drawn_by_matplotlib(cell: int, outputs: list[list[Any]]) -> None:
    (output,) = outputs[cell]
    assert output["data"]["image/png"].startswith("iVBOR")


def test_runs_are_a_data_frame(outputs: list[list[Any]]) -> None:
    (output,) = outputs[4]
    text = output["data"]["text/html"]
    assert "<th>first</th>" in text and "<td>finished</td>" in text and "<td>0.001</td>" in text


def test_a_study_shows_its_trials(outputs: list[list[Any]]) -> None:
    for cell in (5, 6):
        text = html(outputs[cell])
        assert "Study studies/first: 4 complete" in text and "<svg" in text and "<th>x</th>" in text


def wait_until(condition: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


def reply_to(client: Any, message: str) -> Any:
    """The kernel's answer to a request to execute a cell."""
    while True:
        reply = client.get_shell_msg(timeout=120)
        if reply["parent_header"]["msg_id"] == message:
            return reply


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_kernel_leaves_no_worker_and_a_run_that_resumes(workers: int, tmp_path: Path) -> None:
    manager = KernelManager()
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=120)
    try:
        cell = f"clew.train(nn.Linear(2, 2), (x, y), epochs=100000, output='runs/long', workers={workers}, log_every=1)"
        training = client.execute(DATA + cell, stop_on_error=False)  # the next cell is not aborted
        records = tmp_path / "runs" / "long" / "records" / "rank-0.jsonl"
        wait_until(lambda: records.exists() and records.read_text().count('"kind": "step"') > 5)
        kernel = psutil.Process(manager.provisioner.pid)  # type: ignore[union-attr]
        ranks = set(kernel.children(recursive=True)) - set(kernel.children())
        assert len(ranks) >= (0 if workers == 1 else workers)  # the kernel itself trains with one worker
        manager.interrupt_kernel()
        reply = reply_to(client, training)
        assert reply["content"]["ename"] == "InterruptError"
        assert "resume with: clew train --resume runs/long" in reply["content"]["evalue"]
        _, alive = psutil.wait_procs(list(ranks), timeout=30)
        assert not alive
        assert Run.open(tmp_path / "runs" / "long").state == "interrupted"
        step = max(record["step"] for record in Run.open(tmp_path / "runs" / "long").records("rank-0", "step"))
        more = "from clew.training.api import resume\nrun = resume('runs/long', recipe=nn.Linear(2, 2), minutes=0.05)"
        assert reply_to(client, client.execute(more))["content"]["status"] == "ok"
        resumed = Run.open(tmp_path / "runs" / "long")
        assert resumed.state == "finished"
        assert max(record["step"] for record in resumed.records("rank-0", "step")) > step
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such folder; runs are in runs/"):
        clew.runs(tmp_path / "none")
    assert clew.runs(tmp_path).empty
    import numpy as np
    from torch import nn

    x = np.zeros((50, 2), dtype=np.float32)
    run = clew.train(nn.Linear(2, 1), (x, x[:, 0]), epochs=1, output=tmp_path / "runs" / "a")
    with pytest.raises(ConfigError, match="mplhep has no style 'CSM'; did you mean 'CMS'"):
        run.draw(style="CSM")
    with pytest.raises(ConfigError, match="there is no plot of 'mea'"):
        clew.evaluate(run, split="val").draw("mea")
    (tmp_path / "runs" / "b").mkdir()
    (tmp_path / "runs" / "b" / "config.yaml").write_text("recipe: [")
    frame = clew.runs(tmp_path / "runs")
    assert list(frame["state"]) == ["damaged", "finished"]
