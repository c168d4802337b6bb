"""A training with a lease: all ranks stop at the same step, and a revoked one writes no end."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from clew import Dataset, Run
from clew.errors import LeaseError, StoppedError
from clew.jobs.lease import Lease
from clew.training.api import TrainingRequest, resume
from tests.training import recipe

LONG: dict[str, Any] = {"epochs": 100_000, "batch_size": 25, "threads": 1, "log_every": 1, "trace": False}


def train(data: Dataset, output: Path, lease: Lease, **settings: Any) -> Run:
    return TrainingRequest(recipe("line"), data, output=output, settings={**LONG, **settings}).run(lease=lease)


def after_steps(run: Path, act: Any) -> threading.Thread:
    """Do something once a training has done some steps."""

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
    granted = Lease(tmp_path / "lease")
    granted.grant()
    return granted


@pytest.mark.parametrize("workers", [1, 2])
def test_all_ranks_stop_at_the_same_step_on_request(flat: Dataset, tmp_path: Path, lease: Lease, workers: int) -> None:
    waits = after_steps(tmp_path / "run", lambda: lease.request_stop("pruned: no hope"))
    with pytest.raises(StoppedError, match="stopped at step"):
        train(flat, tmp_path / "run", lease, workers=workers)
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
        train(flat, tmp_path / "run", lease, workers=workers)
    waits.join()
    run = Run(tmp_path / "run")
    assert all(run.last("end", stream) is None for stream in run.streams())
    again = Lease(tmp_path / "again")
    again.grant()
    again.request_stop("enough")
    if run.states():  # another process resumes it
        with pytest.raises(StoppedError):
            resume(run, lease=again)
        assert run.state == "stopped"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_loses_its_lease_in_its_last_validation_writes_no_validation_and_no_end(
    flat: Dataset, tmp_path: Path, lease: Lease, workers: int
) -> None:
    """Another attempt writes them: this one was too slow to notice before its last step."""
    losing = recipe("line", revoked=str(lease.path))
    settings = LONG | {"epochs": 1, "workers": workers}
    with pytest.raises(LeaseError, match="assigned to another"):
        TrainingRequest(losing, flat, output=tmp_path / "run", settings=settings).run(lease=lease)
    run = Run(tmp_path / "run")
    kinds = {record["kind"] for stream in run.streams() for record in run.records(stream)}
    assert kinds.isdisjoint({"validation", "end"})


def test_work_revoked_before_its_start_is_not_started(flat: Dataset, tmp_path: Path, lease: Lease) -> None:
    lease.revoke()
    with pytest.raises(LeaseError, match="before it started"):
        train(flat, tmp_path / "run", lease)
    assert not (tmp_path / "run").exists()


def test_it_gives_signs_of_life(flat: Dataset, tmp_path: Path, lease: Lease) -> None:
    before = lease.last_heartbeat()
    train(flat, tmp_path / "run", lease, epochs=2)
    assert (lease.last_heartbeat() or 0) > (before or 0)
    assert (Run(tmp_path / "run").end() or {})["cpu"] > 0


@pytest.mark.parametrize("act", ["request_stop", "revoke"])
def test_an_ensemble_renews_its_lease_and_obeys_it(flat: Dataset, tmp_path: Path, lease: Lease, act: str) -> None:
    path, before = tmp_path / "run", lease.last_heartbeat() or 0
    heartbeats: list[float] = []

    def end() -> None:
        while not any(Run(each).last("step") for each in path.glob("replicas/*")):
            time.sleep(0.02)
        heartbeats.append(lease.last_heartbeat() or 0)
        lease.revoke() if act == "revoke" else lease.request_stop("pruned: too slow")

    thread = threading.Thread(target=end)
    thread.start()
    with pytest.raises(LeaseError if act == "revoke" else StoppedError):
        train(flat, path, lease, replicas=2)
    thread.join()
    assert heartbeats[0] > before
    end_record = Run(path).end()
    assert end_record is None if act == "revoke" else "pruned: too slow" in (end_record or {})["message"]


def test_a_run_that_an_earlier_attempt_still_writes_is_left_alone(flat: Dataset, tmp_path: Path, lease: Lease) -> None:
    """The attempt is repeated (exit code 75): the trial has not failed."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("recipe: line\n")
    with pytest.raises(LeaseError, match="an earlier attempt still writes it") as error:
        train(flat, tmp_path / "run", lease)
    assert error.value.exit_code == 75
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.yaml"]


def test_an_attempt_that_lost_its_lease_while_it_created_the_run_leaves_nothing(
    flat: Dataset, tmp_path: Path, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Run.create

    def create_and_lose(path: Path, **facts: Any) -> Run:
        lease.revoke()
        return create(path, **facts)

    monkeypatch.setattr(Run, "create", create_and_lose)
    with pytest.raises(LeaseError, match="assigned to another process before it started"):
        train(flat, tmp_path / "run", lease)
    assert not (tmp_path / "run").exists()
