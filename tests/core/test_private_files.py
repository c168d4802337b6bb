"""Files of one user on a machine that several users share."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import tempfile
import time
from pathlib import Path

import pytest

from clew.core import private_files
from clew.core.private_files import (
    create_private,
    keep_compiled_code_private,
    open_own_part,
    private_folder,
    read_private,
    remove_dead_sockets,
    write_private,
)
from clew.errors import DataError, RunError
from tests.clock import Clock


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def be_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, files that exist belong to another user."""
    number = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: number)


def test_only_its_user_can_enter_the_folder(shared: Path) -> None:
    folder = private_folder()
    assert folder == shared / f"clew-{os.getuid()}" == private_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o704, 0o720, 0o777])
def test_a_folder_that_others_can_enter_is_refused(mode: int, shared: Path) -> None:
    private_folder().chmod(mode)
    with pytest.raises(RunError, match="not a folder that only you can enter"):
        private_folder()


def test_a_folder_of_another_user_is_refused(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shared / f"clew-{os.getuid() + 1}").mkdir(mode=0o700)
    be_another_user(monkeypatch)
    with pytest.raises(RunError, match="another user may have made it"):
        private_folder()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_only_a_folder_is_a_folder(kind: str, shared: Path) -> None:
    place = shared / f"clew-{os.getuid()}"
    if kind == "file":
        place.touch(mode=0o600)
    else:
        (shared / "elsewhere").mkdir(mode=0o700)
        place.symlink_to(shared / "elsewhere")
    with pytest.raises(RunError, match="not a folder"):
        private_folder()


def listening(path: Path, *, close: bool) -> socket.socket:
    """A socket that is two minutes old."""
    server = socket.socket(socket.AF_UNIX)
    with contextlib.ExitStack() as stack:
        stack.enter_context(server)
        server.bind(str(path))
        server.listen()
        if not close:
            stack.pop_all()
    old = time.time() - 120
    os.utime(path, (old, old))
    return server


def test_dead_sockets_are_removed(tmp_path: Path) -> None:
    with listening(tmp_path / "live", close=False):
        listening(tmp_path / "dead", close=True)
        listening(tmp_path / "young", close=True)
        os.utime(tmp_path / "young")
        (tmp_path / "file").touch()
        os.utime(tmp_path / "file", (0, 0))
        remove_dead_sockets(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "live", "young"]
        remove_dead_sockets(tmp_path, seconds=-1)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "live"]


def test_a_new_file_is_for_its_user_only_and_replaces_nothing(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        os.close(create_private(tmp_path / "new"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("new", "link"):
        with pytest.raises(FileExistsError):
            create_private(tmp_path / name)
    assert not (tmp_path / "target").exists()


def test_a_text_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "text"
    for text in ("first", "second"):
        write_private(path, text)
        assert read_private(path) == text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError):
        read_private(tmp_path / "missing")


@pytest.mark.parametrize("mode", [0o602, 0o620])
def test_a_text_that_others_can_change_is_not_read(mode: int, tmp_path: Path) -> None:
    write_private(tmp_path / "text", "mine")
    (tmp_path / "text").chmod(0o644)
    assert read_private(tmp_path / "text") == "mine", "others may read it"
    (tmp_path / "text").chmod(mode)
    with pytest.raises(RunError, match="not a file that you wrote"):
        read_private(tmp_path / "text")


def test_a_text_of_another_user_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_private(tmp_path / "text", "theirs")
    (tmp_path / "link").symlink_to(tmp_path / "text")
    with pytest.raises(RunError, match="cannot be trusted"):
        read_private(tmp_path / "link")
    be_another_user(monkeypatch)
    with pytest.raises(RunError, match="not a file that you wrote"):
        read_private(tmp_path / "text")


def test_a_part_is_continued_by_its_user_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = tmp_path / "part"
    for text in (b"one", b"two"):
        with open_own_part(part) as stream:
            stream.seek(0, os.SEEK_END)
            stream.write(text)
    assert part.read_bytes() == b"onetwo"
    os.link(part, tmp_path / "other name")
    with pytest.raises(DataError, match="is a link, or belongs to another user"):
        open_own_part(part)
    (tmp_path / "other name").unlink()
    be_another_user(monkeypatch)
    with pytest.raises(DataError, match="is a link, or belongs to another user"):
        open_own_part(part)
    with pytest.raises(NotADirectoryError):
        open_own_part(part / "below")


def test_compiled_code_is_kept_where_only_its_user_can_write(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    before = os.umask(0)
    try:
        keep_compiled_code_private()
    finally:
        os.umask(before)
    folder = shared / f"clew-{os.getuid()}" / "compiled"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder, folder.parent)] == [0o700, 0o700]
    keep_compiled_code_private()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
    keep_compiled_code_private()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "elsewhere", "the user's choice stays"


def test_a_socket_that_is_dead_for_long_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(private_files, "time", clock)
    with socket.socket(socket.AF_UNIX) as bound:  # nobody listens
        bound.bind(str(tmp_path / "dead"))
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("dead")
    for path, seconds in ((tmp_path / "dead", 1000), (tmp_path / "file", 1)):
        os.utime(path, (seconds, seconds))
    clock.seconds = 1060
    remove_dead_sockets(tmp_path, seconds=60)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dead", "file", "link"]
    clock.seconds += 1
    remove_dead_sockets(tmp_path, seconds=60)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_a_text_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_private(tmp_path / "folder", "text")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


def test_a_link_is_no_part(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"theirs")
    (tmp_path / "part").symlink_to(tmp_path / "target")
    with pytest.raises(DataError, match="is a link, or belongs to another user"):
        open_own_part(tmp_path / "part")
    assert (tmp_path / "target").read_bytes() == b"theirs"


def test_only_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(mode=0o700)
    with pytest.raises((RunError, IsADirectoryError)):
        read_private(tmp_path / "folder")
    os.mkfifo(tmp_path / "pipe", 0o600)
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        with pytest.raises(RunError, match="not a file that you wrote"):
            read_private(tmp_path / "pipe")
    finally:
        os.close(writer)


@pytest.mark.parametrize("name", ["text", "new"])
def test_descriptors_are_not_passed_on_to_other_programs(name: str, tmp_path: Path) -> None:
    with open_own_part(tmp_path / name) as stream:
        assert not os.get_inheritable(stream.fileno())
    descriptor = create_private(tmp_path / "other")
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)
