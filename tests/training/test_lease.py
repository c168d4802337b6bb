"""A training on lease: it stops when told, all ranks at the same step, and leaves no word when another has its work."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import clew
from clew import Dataset, Run
from clew.errors import LeaseError, StoppedError
from clew.jobs.lease import Lease
from clew.training.api import resume
from tests.training import recipe

LONG: dict[str, Any] = {"epochs": 100_000, "batch_size": 25, "threads": 1, "log_every": 1, "trace": False}


def after_steps(run: Path, act: Any) -> threading.Thread:
    """Do something once a training is under way."""

    def wait() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end and Run(run).last("step") is None:
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.fixture
def lease(tmp_path: Path) -> Lease:
    made = Lease(tmp_path / "lease")
    made.grant()
    return made


@pytest.mark.parametrize("workers", [1, 2])
def test_all_ranks_stop_at_the_same_step_on_request(flat: Dataset, tmp_path: Path, lease: Lease, workers: int) -> None:
    waits = after_steps(tmp_path / "run", lambda: lease.tell("pruned: no hope"))
    with pytest.raises(StoppedError, match="stopped at step"):
        clew.train(recipe("line"), flat, output=tmp_path / "run", workers=workers, lease=lease, **LONG)
    waits.join()
    run = Run(tmp_path / "run")
    steps = {stream: (run.last("step", stream) or {})["step"] for stream in run.streams()}
    assert len(steps) == workers and len(set(steps.values())) == 1
    end = run.end()
    assert run.state == "stopped" and end is not None and "(pruned: no hope)" in end["message"]
    assert run.state_file(steps["rank-0"]).exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_slow_run_without_its_lease_ends_without_a_record(
    flat: Dataset, tmp_path: Path, lease: Lease, workers: int
) -> None:
    waits = after_steps(tmp_path / "run", lease.revoke)
    with pytest.raises(LeaseError, match="assigned to another"):
        clew.train(recipe("line"), flat, output=tmp_path / "run", workers=workers, lease=lease, **LONG)
    waits.join()
    run = Run(tmp_path / "run")
    assert all(run.last("end", stream) is None for stream in run.streams())
    again = Lease(tmp_path / "again")
    again.grant()
    again.tell("enough")
    if run.states():  # another goes on with it
        with pytest.raises(StoppedError):
            resume(run, lease=again)
        assert run.state == "stopped"


def test_work_revoked_before_its_start_is_not_started(flat: Dataset, tmp_path: Path, lease: Lease) -> None:
    lease.revoke()
    with pytest.raises(LeaseError, match="before it started"):
        clew.train(recipe("line"), flat, output=tmp_path / "run", lease=lease, **LONG)
    assert not (tmp_path / "run").exists()


def test_it_gives_signs_of_life(flat: Dataset, tmp_path: Path, lease: Lease) -> None:
    before = lease.seen()
    clew.train(recipe("line"), flat, output=tmp_path / "run", lease=lease, **{**LONG, "epochs": 2})
    assert (lease.seen() or 0) > (before or 0)
    assert (Run(tmp_path / "run").end() or {})["cpu"] > 0
