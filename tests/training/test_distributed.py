"""Three calls make a loop of one's own a distributed one, with records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import clew
from clew import Dataset, Run
from clew.errors import RunError

BIN = Path(sys.executable).parent
SCRIPT = str(Path(__file__).parent / "own_loop.py")
STARTERS = {
    "alone": [sys.executable],
    "torchrun": [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"],
    "mpiexec": [str(BIN / "mpiexec"), "-n", "2", sys.executable],
}


def start(how: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*STARTERS[how], SCRIPT, *arguments], capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("how", STARTERS)
def test_a_user_defined_loop_trains_the_same_with_every_launcher(how: str, flat: Dataset, tmp_path: Path) -> None:
    done = start(how, str(flat.path), str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    run = Run.open(tmp_path / "run")
    assert run.state == "finished"
    assert len(run.streams()) == (1 if how == "alone" else 2)
    steps = -(-flat.splits["train"] // 24)
    norms = []
    for stream in run.streams():
        assert sum(1 for _ in run.records(stream, "step")) == 2 * steps
        norms.append([record["metrics"]["norm"] for record in run.records(stream, "validation")])
    assert all(each == norms[0] for each in norms)
    assert norms[0][-1] == pytest.approx(3.0, abs=1.5)


def test_a_script_that_fails_leaves_a_run_that_failed(flat: Dataset, tmp_path: Path) -> None:
    assert start("alone", str(flat.path), str(tmp_path / "run"), "fail").returncode == 1
    run = Run.open(tmp_path / "run")
    end = run.last("end")
    assert run.state == "failed"
    assert end is not None and end["message"] == "boom on purpose"


def test_setup_comes_first() -> None:
    with pytest.raises(RunError, match=r"call clew.distributed.setup\(\) first"):
        clew.distributed.log(loss=1.0)
