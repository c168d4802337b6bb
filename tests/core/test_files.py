"""Files are written whole or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from clew.core.files import atomic_path, sha256, write_text


def write_half(path: Path, error: type[BaseException]) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text("half of the n")
        raise error


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_writer_that_stops_half_way_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(error):
        write_half(path, error)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_first_writer_that_stops_half_way_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        write_half(tmp_path / "a.txt", error)
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_fails_before_its_first_byte_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), atomic_path(tmp_path / "a.txt"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_the_old_file_stands_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with atomic_path(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_of_one_file_do_not_interfere(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with atomic_path(path) as first, atomic_path(path) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"


def test_folders_are_made_on_the_way(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b" / "c.txt", "größe")
    assert (tmp_path / "a" / "b" / "c.txt").read_bytes() == "größe".encode()


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_sha256_reads_files_of_any_size(tmp_path: Path, size: int) -> None:
    content = b"x" * size
    (tmp_path / "a").write_bytes(content)
    assert sha256(tmp_path / "a") == hashlib.sha256(content).hexdigest()
