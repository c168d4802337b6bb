"""Three calls make a user-defined loop distributed, with records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import clew
from clew import Dataset, Run
from clew.errors import RunError
from clew.runs.listing import list_run

BIN = Path(sys.executable).parent
SCRIPT = str(Path(__file__).parent / "own_loop.py")
STARTERS = {
    "alone": [sys.executable],
    "torchrun": [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"],
    "mpiexec": [str(BIN / "mpiexec"), "-n", "2", sys.executable],
}


def start(how: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*STARTERS[how], SCRIPT, *arguments], capture_output=True, text=True, timeout=100)


@pytest.mark.long
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
    times = list_run(run).times
    assert times.samples_per_second and times.seconds_per_epoch and times.load_seconds and times.data_wait_seconds
    assert norms[0][-1] == pytest.approx(3.0, abs=1.5)


@pytest.mark.exec
def test_a_script_that_fails_leaves_a_run_that_failed(flat: Dataset, tmp_path: Path) -> None:
    assert start("alone", str(flat.path), str(tmp_path / "run"), "fail").returncode == 1
    run = Run.open(tmp_path / "run")
    end = run.last("end")
    assert run.state == "failed"
    assert end is not None and end["message"] == "boom on purpose"


def test_several_ranks_call_setup_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RunError, match=r"call clew.distributed.setup\(\) on every rank first"):
        clew.distributed.log(loss=1.0)


def test_a_single_process_needs_no_setup_to_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    clew.log(loss=0.5)
    (tmp_path / "table.txt").write_text("1")
    assert clew.artefact("table.txt", "numbers.txt").read_text() == "1"
    with pytest.raises(RunError, match="no such file"):
        clew.artefact("missing.txt")
    with pytest.raises(RunError, match="without folders"):
        clew.artefact("table.txt", "../numbers.txt")
    clew.distributed.close()
    (run,) = (tmp_path / "runs").iterdir()
    assert Run.open(run).state == "finished" and (run / "artefacts" / "numbers.txt").exists()
