"""Locks between processes."""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clew.core.file_lock import FileLock, hold_lock

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
