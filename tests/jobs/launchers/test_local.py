"""Workers on this machine: all run, and when one fails all are stopped and its message is returned."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from clew.errors import ConfigError, LostWorkerError, WorkerError
from clew.jobs.local_workers import run_local

pytestmark = pytest.mark.timeout(60)

PRELOAD = ["torch._dynamo", "torch.distributed", "clew.training.loop"]
"""As for training: the first test that needs the server starts it for the whole session."""


def note(folder: Path, rank: int, ranks: int) -> None:
    (folder / str(rank)).write_text(f"{ranks} {os.getpid()}")


def sleep(folder: Path, rank: int, ranks: int) -> None:
    note(folder, rank, ranks)
    time.sleep(3600)


def fail(folder: Path, kind: str, rank: int, ranks: int) -> None:
    """The last rank fails; the others would continue for an hour."""
    note(folder, rank, ranks)
    if rank < ranks - 1:
        time.sleep(3600)
    while len(list(folder.iterdir())) < ranks:
        time.sleep(0.01)
    FAULTS[kind]()


def _raise(error: BaseException) -> None:
    raise error


FAULTS: dict[str, Callable[[], object]] = {
    "exception": lambda: _raise(ValueError("boom")),
    "user": lambda: _raise(ConfigError("wrong setting")),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "exit": lambda: sys.exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
}


def pids(folder: Path) -> list[int]:
    return [int(path.read_text().split()[1]) for path in folder.iterdir()]


def test_every_rank_runs_in_its_own_process(tmp_path: Path) -> None:
    run_local(note, (tmp_path,), 3, preload=PRELOAD)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]
    assert {path.read_text().split()[0] for path in tmp_path.iterdir()} == {"3"}
    assert len({os.getpid(), *pids(tmp_path)}) == 4


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("exception", WorkerError, "rank 2: ValueError: boom"),
        ("user", ConfigError, "wrong setting"),
        ("interrupt", WorkerError, "rank 2 was interrupted"),
        ("exit", LostWorkerError, "rank 2 died without a message (exit code 3)"),
        ("kill", LostWorkerError, "rank 2 died without a message (exit code -9)"),
        ("segfault", LostWorkerError, "rank 2 died without a message (exit code -11)"),
    ],
)
def test_the_failure_of_one_stops_all_and_is_reported(
    tmp_path: Path, kind: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        run_local(fail, (tmp_path, kind), 3, preload=PRELOAD)
    assert type(caught.value) is error
    assert str(caught.value).startswith(message)
    assert len(pids(tmp_path)) == 3
    assert not any(psutil.pid_exists(pid) for pid in pids(tmp_path))


def deaf(folder: Path, rank: int, ranks: int) -> None:
    """Rank 0 ignores SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    fail(folder, "exception", rank, ranks)


def test_a_worker_that_does_not_want_to_stop_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="rank 1: ValueError: boom"):
        run_local(deaf, (tmp_path,), 2, preload=PRELOAD)
    assert not any(psutil.pid_exists(pid) for pid in pids(tmp_path))


def test_workers_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from clew.jobs.local_workers import run_local; "
        "from tests.jobs.launchers.test_local import sleep; "
        f"run_local(sleep, (Path({str(tmp_path)!r}),), 2, preload=[])"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[3]) as starter:
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.05)
        starter.kill()
    pids = [int(file.read_text().split()[1]) for file in tmp_path.iterdir()]
    end = time.monotonic() + 20
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_workers_find_their_modules_loaded_after_other_users_of_the_server(tmp_path: Path) -> None:
    multiprocessing.get_context("forkserver").set_forkserver_preload(["json"])
    run_local(loaded, (tmp_path,), 1, preload=PRELOAD)
    assert (tmp_path / "modules").read_text().split() == ["clew.training.loop", "torch._dynamo", "torch.distributed"]


def loaded(folder: Path, rank: int, ranks: int) -> None:
    (folder / "modules").write_text(" ".join(sorted(set(PRELOAD) & set(sys.modules))))


def test_workers_find_the_loopback_interface(tmp_path: Path) -> None:
    run_local(interface, (tmp_path,), 1, preload=PRELOAD)
    assert (tmp_path / "name").read_text() in psutil.net_if_addrs()


def interface(folder: Path, rank: int, ranks: int) -> None:
    (folder / "name").write_text(os.environ["GLOO_SOCKET_IFNAME"])
