"""A Keras script keeps `compile` and `fit`: three lines add ranks, a run folder and a report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clew import Run
from tests.test_docs import ROOT, _blocks

pytest.importorskip("keras", reason="the extra keras is not installed")
pytestmark = [pytest.mark.exec, pytest.mark.timeout(200)]
BIN, SCRIPT = Path(sys.executable).parent, str(Path(__file__).parent / "keras_fit.py")
ONE = [sys.executable]
TWO = [str(BIN / "mpiexec"), "-n", "2", sys.executable]


def start(command: list[str], *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=150)


@pytest.mark.long
def test_fit_on_two_ranks_is_that_of_one_process(tmp_path: Path) -> None:
    for command, name in ((ONE, "one"), (TWO, "two")):
        done = start(command, SCRIPT, name, f"{name}.npz", folder=tmp_path)
        assert done.returncode == 0, done.stderr
    one, two = np.load(tmp_path / "one.npz"), np.load(tmp_path / "two.npz")
    assert set(one) == set(two) and {"log_loss", "log_auc", "log_val_accuracy"} < set(one)
    for name in one:
        np.testing.assert_allclose(two[name], one[name], rtol=1e-4, atol=1e-5, err_msg=name)
    run = Run.open(tmp_path / "two")
    assert run.state == "finished" and len(run.streams()) == 2 and run.report_file.exists()
    validations = [record["metrics"] for record in run.records("rank-0", "validation")]
    assert [metrics["accuracy"] for metrics in validations] == pytest.approx(list(two["log_val_accuracy"]))
    last = run.last("step")
    assert last is not None and (last["step"], last["samples"]) == (18, 3 * 81)
    assert last["loss"]["auc"] == pytest.approx(float(two["log_auc"][-1]))


@pytest.mark.long
def test_ranks_with_different_data_are_refused(tmp_path: Path) -> None:
    done = start(TWO, SCRIPT, "run", "weights.npz", "different", folder=tmp_path)
    assert done.returncode != 0
    assert "fit gets different batches on the ranks; give every rank the same data in the same order" in done.stderr


@pytest.mark.long
def test_a_loss_that_is_no_mean_is_refused(tmp_path: Path) -> None:
    done = start(TWO, SCRIPT, "run", "weights.npz", "sum", folder=tmp_path)
    assert done.returncode != 0
    assert "has reduction 'sum', which differs on several ranks" in done.stderr


@pytest.mark.long
def test_the_script_of_the_documentation_runs(tmp_path: Path) -> None:
    (script,) = (
        block for block in _blocks(ROOT / "docs" / "howto" / "models.md", "python") if "distributed.wrap" in block
    )
    (tmp_path / "train.py").write_text(script)
    done = start(ONE, "train.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    run = Run.open(tmp_path / "runs" / "keras")
    assert len(list(run.records(kind="validation"))) == 3
