"""Folders that other users can write to: links that they put in the place of files that clew is about to write."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from clew import storage
from clew.core.file_lock import hold_lock
from clew.core.files import write_text
from clew.errors import DataError
from clew.jobs.lease import Lease


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user that an attacker wants to have overwritten."""
    file = tmp_path / "victim"
    file.write_text("precious")
    return file


@pytest.mark.parametrize("link", ["symbolic", "hard"])
def test_a_download_does_not_follow_a_link(link: str, tmp_path: Path, victim: Path) -> None:
    (tmp_path / "events.bin").write_bytes(b"downloaded")
    shared = tmp_path / "shared"
    shared.mkdir()
    part = shared / ".events.bin.clew-part"
    part.symlink_to(victim) if link == "symbolic" else os.link(victim, part)
    with pytest.raises(DataError, match="is a link, or belongs to another user"):
        storage.copy(f"file://{tmp_path}/events.bin", shared / "events.bin")
    assert victim.read_text() == "precious" and not (shared / "events.bin").exists()
    part.unlink()
    storage.copy(f"file://{tmp_path}/events.bin", shared / "events.bin")
    assert (shared / "events.bin").read_bytes() == b"downloaded"


def test_a_lock_is_not_taken_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="symbolic link"), hold_lock(tmp_path / "lock"):
        pass
    assert not (tmp_path / "made").exists()


def test_reading_the_mask_of_new_files_does_not_change_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread that makes a file meanwhile must not get a file that all can read."""
    before, ended, modes = os.umask(0o077), threading.Event(), set[int]()
    change, changes = os.umask, list[int]()

    def note(mask: int) -> int:
        changes.append(mask)
        return change(mask)

    monkeypatch.setattr(os, "umask", note)

    def make_files() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            file = tmp_path / f"secret-{number % 50}"
            file.unlink(missing_ok=True)
            file.touch()
            modes.add(stat.S_IMODE(file.stat().st_mode))

    thread = threading.Thread(target=make_files)
    thread.start()
    try:
        for number in range(300):
            write_text(tmp_path / "text", str(number))
    finally:
        ended.set()
        thread.join()
        change(before)
    assert not changes, "a thread rarely comes between two changes, but it can"
    assert modes == {0o600}
    assert stat.S_IMODE((tmp_path / "text").stat().st_mode) == 0o600


def test_a_lease_is_not_renewed_through_a_link(tmp_path: Path, victim: Path) -> None:
    os.utime(victim, (1, 1))
    (tmp_path / "lease").symlink_to(victim)
    lease = Lease(tmp_path / "lease")
    lease.beat(now=True)
    assert victim.stat().st_mtime == 1
