"""Locations of inputs: names, folders and globs, on disk and in a store."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from clew import storage
from clew.errors import DataError
from clew.storage.store_errors import storage_error

NAMES = ("b.txt", "a.txt", "c.root", "d.root", ".hidden.txt", "inner/e.txt", "inner/.g.txt", ".secret/f.txt")


def content(location: str) -> bytes:
    with storage.open_binary(location) as stream:
        return stream.read()


@pytest.fixture
def disk(tmp_path: Path) -> str:
    """A folder with files, hidden ones, and folders."""
    for name in NAMES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return str(tmp_path)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> str:
    """The same in the memory of fsspec, one location per test."""
    place = f"/{request.node.name.partition('[')[0]}"
    for name in NAMES:
        MemoryFileSystem().pipe(f"{place}/{name}", name.encode())
    return f"memory:/{place}"


@pytest.fixture(params=["disk", "store"])
def root(request: pytest.FixtureRequest) -> str:
    location: str = request.getfixturevalue(request.param)
    return location


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", "a.txt b.txt c.root d.root"),
        ("/", "a.txt b.txt c.root d.root"),
        ("/a.txt", "a.txt"),
        ("/*", "a.txt b.txt c.root d.root"),
        ("/*.txt", "a.txt b.txt"),
        ("/[ab].t?t", "a.txt b.txt"),
        ("/**/*.txt", "a.txt b.txt inner/e.txt"),
        ("/inner", "inner/e.txt"),
        ("/*.root:tree", "c.root:tree d.root:tree"),
        ("/c.root:dir/tree", "c.root:dir/tree"),
        ("/none.txt", ""),
        ("/none/*.txt", ""),
    ],
)
def test_names_folders_and_globs_stand_for_files(root: str, pattern: str, expected: str) -> None:
    locations = storage.expand(f"{root}{pattern}")
    if pattern == "/**/*.txt":
        locations = [name for name in locations if ".secret" not in name]  # fsspec also lists hidden folders
    assert locations == [f"{root}/{name}" for name in expected.split()]


@pytest.mark.parametrize("name", ["a[1].txt", "what?.txt", "star*.txt", "two words.txt", "ä.txt", "x:y.txt"])
def test_a_file_of_that_very_name_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("1")
    (tmp_path / "a1.txt").write_text("2")
    assert storage.expand(str(tmp_path / name)) == [str(tmp_path / name)]
    assert content(str(tmp_path / name)) == b"1"


def test_home_is_expanded(disk: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", disk)
    assert storage.expand("~/*.txt") == [f"{disk}/a.txt", f"{disk}/b.txt"]
    assert content("~/a.txt") == b"a.txt"
    assert storage.stat("~/c.root:tree") == storage.stat(f"{disk}/c.root")


def test_relative_names_stay_relative(disk: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(disk)
    assert storage.expand("*.txt") == ["a.txt", "b.txt"]
    assert storage.expand("inner") == ["inner/e.txt"]


def test_a_chain_of_stores_stays_whole(disk: str) -> None:
    with zipfile.ZipFile(f"{disk}/all.zip", "w") as archive:
        archive.writestr("one.txt", "1")
        archive.writestr("two.txt", "22")
    locations = storage.expand(f"zip://*.txt::{disk}/all.zip")
    assert locations == [f"zip://one.txt::{disk}/all.zip", f"zip://two.txt::{disk}/all.zip"]
    assert content(locations[1]) == b"22"


@pytest.mark.parametrize(
    ("location", "parts"),
    [
        ("a.root:tree", ("a.root", "tree")),
        ("/x/a.root:dir/tree", ("/x/a.root", "dir/tree")),
        ("root://host:1094//x/a.ROOT:tree;2", ("root://host:1094//x/a.ROOT", "tree;2")),
        ("a.root", ("a.root", "")),
        ("s3://bucket/a.txt", ("s3://bucket/a.txt", "")),
        ("x:y.txt", ("x:y.txt", "")),
    ],
)
def test_the_name_of_a_tree_is_separated_from_its_file(location: str, parts: tuple[str, str]) -> None:
    assert storage.split_inside(location) == parts


def test_files_are_opened_with_seek(root: str) -> None:
    with storage.open_binary(f"{root}/c.root:tree") as stream:
        stream.seek(2)
        assert stream.read() == b"root"


def test_the_token_stays_until_a_rewrite(root: str) -> None:
    before = storage.stat(f"{root}/a.txt")
    assert before == storage.stat(f"{root}/a.txt")
    assert before.size == 5 and before.token
    if storage.is_url(root):
        MemoryFileSystem().pipe(root.removeprefix("memory:/") + "/a.txt", b"other")
    else:
        Path(root, "a.txt").write_text("other")
        os.utime(Path(root, "a.txt"), ns=(0, 1))
    assert storage.stat(f"{root}/a.txt").size == 5
    assert storage.stat(f"{root}/a.txt").token != before.token


def test_the_checksum_is_that_of_all_content_in_order(root: str) -> None:
    expected = hashlib.sha256(b"b.txtc.root").hexdigest()
    assert storage.checksum([f"{root}/b.txt", f"{root}/c.root:tree"]) == expected
    assert storage.checksum([f"{root}/c.root", f"{root}/b.txt"]) != expected


def test_the_same_content_has_the_same_checksum_anywhere(disk: str, store: str) -> None:
    assert storage.checksum([f"{disk}/a.txt"]) == storage.checksum([f"{store}/a.txt"])


def test_missing_files_are_reported_in_one_line(root: str) -> None:
    for name in (f"{root}/none.txt", f"{root}/none/none.txt"):
        for ask in (content, storage.stat, lambda name: storage.checksum([name])):
            with pytest.raises(DataError) as caught:
                ask(name)
            assert str(caught.value) == f"{name}: cannot be read (no such file)"


def test_a_folder_cannot_be_opened(disk: str) -> None:
    with pytest.raises(DataError, match=r"inner: cannot be read \(Is a directory\)"):
        content(f"{disk}/inner")


@pytest.mark.parametrize("url", ["gs://bucket/a.txt", "https://host/a.txt"])
def test_a_store_that_is_not_installed_is_reported(url: str) -> None:
    for ask in (content, storage.expand, storage.stat):
        with pytest.raises(DataError) as caught:
            ask(url)
        assert str(caught.value).startswith(f"{url}: cannot be read (") and "\n" not in str(caught.value)


@pytest.mark.parametrize(("url", "extra"), [("s3://bucket/a", "s3"), ("root://host//a", "xrootd")])
def test_a_package_that_is_missing_is_named_as_an_extra(url: str, extra: str) -> None:
    message = str(storage_error(ImportError("Install s3fs to access S3"), url))
    assert message == f"{url}: needs another package; pip install 'clew[{extra}]'"
