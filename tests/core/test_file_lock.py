"""Locks between processes."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clew.core import file_lock
from clew.core.file_lock import FileLock, hold_lock
from clew.core.process import process_identity
from tests.clock import Clock

_HOLDER = """
import pathlib, sys
from clew.core.file_lock import hold_lock
with hold_lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_exclusive_lock_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    with hold_lock(path), pytest.raises(BlockingIOError), hold_lock(path, timeout=0):
        pass
    with hold_lock(path, timeout=0):
        pass


def test_shared_locks_exclude_exclusive_locks_only(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = hold_lock(path, shared=True), hold_lock(path, shared=True, timeout=0)
    with first, second, pytest.raises(BlockingIOError), hold_lock(path, timeout=0):
        pass


def test_the_content_and_permissions_of_the_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with hold_lock(path, mode=0o600):
        path.write_text("content")
    with hold_lock(path):
        assert path.read_text() == "content"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_exception_in_the_block_releases_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with pytest.raises(ZeroDivisionError), hold_lock(path):
        _ = 1 / 0
    with hold_lock(path, timeout=0):
        pass


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", _HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        start = time.monotonic()
        with pytest.raises(BlockingIOError), hold_lock(path, timeout=0.3):
            pass
        assert time.monotonic() - start >= 0.3
        process.kill()
        with hold_lock(path, timeout=10):
            pass


def test_a_lock_that_another_process_took_over_is_not_released(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    lock.acquire()
    (tmp_path / "lock").write_text("another process")
    lock.release()
    assert (tmp_path / "lock").read_text() == "another process"


def test_a_released_lock_is_free_and_leaves_no_file(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    with lock.held():
        assert (tmp_path / "lock").exists()
    assert list(tmp_path.iterdir()) == []
    lock.release()


class WaitingClock(Clock):
    """Counts the seconds that a process waits; after some of them something happens."""

    def __init__(self, *events: tuple[float, Callable[[], object]]) -> None:
        self.events, self.pauses, self.readings = list(events), list[float](), 0

    def monotonic(self) -> float:
        self.readings += 1
        assert self.readings < 100_000, "it waits for ever"
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        assert self.seconds < 1000, "it waits for ever"
        self.pauses.append(seconds)
        while self.events and self.seconds >= self.events[0][0]:
            self.events.pop(0)[1]()


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[..., WaitingClock]:
    def start(*events: tuple[float, Callable[[], object]]) -> WaitingClock:
        clock = WaitingClock(*events)
        monkeypatch.setattr(file_lock, "time", clock)
        return clock

    return start


def test_the_lock_of_a_running_process_is_waited_for(tmp_path: Path, wait: Callable[..., WaitingClock]) -> None:
    path = tmp_path / "lock"
    path.write_text(process_identity())
    clock = wait((20.0, path.unlink))
    lock = FileLock(path)
    assert lock.acquire() is True
    assert 20 <= clock.seconds < 20.1 and path.read_text() == process_identity()
    assert clock.pauses[:3] == [0.001, 0.002, 0.004] and clock.pauses[-1] == 0.05
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_of_another_host_is_left_over_after_half_a_minute(
    tmp_path: Path, wait: Callable[..., WaitingClock]
) -> None:
    """The time starts again whenever the holder changes."""
    path = tmp_path / "lock"
    path.write_text("host-a 1 1.00")
    clock = wait((20.0, lambda: path.write_text("host-b 2 2.00")))
    FileLock(path).acquire()
    assert 50 < clock.seconds < 50.2 and path.read_text() == process_identity()
    assert list(tmp_path.iterdir()) == [path]


def test_the_lock_of_an_ended_process_of_this_host_is_free_at_once(
    tmp_path: Path, wait: Callable[..., WaitingClock]
) -> None:
    path, clock = tmp_path / "lock", wait()
    host, pid, _ = process_identity().split()
    path.write_text(f"{host} {pid} 1.00")  # another process had this number
    FileLock(path).acquire()
    assert clock.pauses == [] and path.read_text() == process_identity() and list(tmp_path.iterdir()) == [path]


def test_a_lock_that_is_being_written_is_waited_for(tmp_path: Path, wait: Callable[..., WaitingClock]) -> None:
    path = tmp_path / "lock"
    path.touch()
    clock = wait((40.0, path.unlink))
    FileLock(path).acquire()
    assert 40 <= clock.seconds < 40.1


def test_a_lock_that_was_taken_meanwhile_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: Callable[..., WaitingClock]
) -> None:
    """Two processes find the same lock left over; the other one is faster, and takes it before it is removed here."""
    path = tmp_path / "lock"
    path.write_text("host-a 1 1.00")
    clock = wait((60.0, path.unlink))
    clock.seconds = 0.0
    rename = Path.rename

    def slow_rename(source: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        source.write_text(f"{process_identity()}")
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", slow_rename)
    FileLock(path).acquire()
    assert clock.seconds >= 60 and list(tmp_path.iterdir()) == [path]


def test_nothing_is_left_behind_without_a_folder(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "none" / "lock")
    with pytest.raises(FileNotFoundError):
        lock.acquire()
    lock.release()


def test_a_block_that_fails_releases_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), FileLock(tmp_path / "lock").held():
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []


def test_a_timeout_is_waited_for_in_short_steps(tmp_path: Path, wait: Callable[..., WaitingClock]) -> None:
    path = tmp_path / "lock"
    with hold_lock(path):
        clock = wait()
        with pytest.raises(BlockingIOError, match="another process holds the lock"), hold_lock(path, timeout=0.95):
            pass
    assert clock.pauses == pytest.approx([0.1] * 10)
    freed = hold_lock(path)
    freed.__enter__()
    wait((0.25, lambda: freed.__exit__(None, None, None)))
    with hold_lock(path, timeout=1.0):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EIO])
@pytest.mark.parametrize("timeout", [None, 0.0])
def test_a_file_system_without_locks_is_an_error_if_the_lock_is_required(
    number: int, timeout: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match=os.strerror(number)), hold_lock(tmp_path / "lock", timeout=timeout):
        pass
    ran = []
    if number == errno.EIO:
        with pytest.raises(OSError, match="error"), hold_lock(tmp_path / "lock", timeout=timeout, required=False):
            ran.append(1)
    else:
        with hold_lock(tmp_path / "lock", timeout=timeout, required=False):
            ran.append(1)
    assert bool(ran) is (number != errno.EIO)


def test_a_lock_is_not_taken_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic"), hold_lock(tmp_path / "lock"):
        pass
    assert not (tmp_path / "target").exists()
