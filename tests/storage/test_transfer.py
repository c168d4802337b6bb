"""Copying in parts between folders of this machine, without a server."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from clew import storage
from clew.errors import DataError
from clew.storage import transfer
from clew.storage.local_disk import LocalDisk
from clew.storage.store import StoredFile


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(transfer, "PART", 1000)
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.bin"
    path.write_bytes(os.urandom(7_500))
    return path


def interrupt(state: storage.TransferProgress) -> None:
    if state.done >= 3_000:
        raise KeyboardInterrupt


def test_file_urls_are_paths(source: Path, tmp_path: Path) -> None:
    for number, url in enumerate((f"file:{source}", f"file://{source}", f"file://localhost{source}")):
        assert not storage.is_url(url)
        storage.copy(url, tmp_path / f"{number}")
        assert (tmp_path / f"{number}").read_bytes() == source.read_bytes()
        assert storage.stat(url).size == 7_500


def test_an_interrupted_copy_is_resumed(source: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        storage.copy(source, tmp_path / "copy", watch=interrupt, workers=1)
    assert not (tmp_path / "copy").exists()
    done = storage.copy(source, tmp_path / "copy")
    assert 3_000 <= done.resumed < done.done == done.total == 7_500
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_source_that_changed_is_copied_from_the_start(source: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        storage.copy(source, tmp_path / "copy", watch=interrupt, workers=1)
    source.write_bytes(os.urandom(7_500))
    assert storage.copy(source, tmp_path / "copy").resumed == 0
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


def test_parts_that_went_bad_meanwhile_are_noticed(source: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        storage.copy(source, tmp_path / "copy", watch=interrupt, workers=1)
    partial = tmp_path / ".copy.clew-part"
    with partial.open("r+b") as stream:
        stream.write(b"altered")
    with pytest.raises(storage.ChecksumMismatchError, match="checksum mismatch"):
        storage.copy(source, tmp_path / "copy")
    assert storage.copy(source, tmp_path / "copy").resumed == 0
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


def test_parts_that_are_gone_are_fetched_again(source: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        storage.copy(source, tmp_path / "copy", watch=interrupt, workers=1)
    (tmp_path / ".copy.clew-part").unlink()
    assert storage.copy(source, tmp_path / "copy").resumed == 0
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


def test_no_file_lands_outside_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/../../out", "/etc/passwd"):
        monkeypatch.setattr(LocalDisk, "files", lambda self, location, name=name: {name: StoredFile("x", 1)})
        with pytest.raises(DataError, match=f"a file called '{name}', which leads out of the folder"):
            storage.copy(tmp_path / "from", tmp_path / "to")


def test_other_files_are_not_overwritten_without_request(source: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").write_text("precious")
    with pytest.raises(DataError, match="copy exists with other content; use --replace"):
        storage.copy(source, tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "precious"
    storage.copy(source, tmp_path / "copy", replace=True)
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert storage.copy(source, tmp_path / "copy").unchanged == 1


def test_the_marker_of_completeness_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "manifest.json", "z/b", "z/clew.json"):
        (tmp_path / "from" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "from" / name).write_text(name)
    order: list[str] = []
    read = LocalDisk.read

    def reading(self: LocalDisk, held: StoredFile, start: int, stop: int) -> bytes:
        order.append(Path(held.location).name)
        return read(self, held, start, stop)

    monkeypatch.setattr(LocalDisk, "read", reading)
    storage.copy(tmp_path / "from", tmp_path / "to")
    assert set(order[:2]) == {"a", "b"} and set(order[2:]) == {"manifest.json", "clew.json"}


def test_any_store_of_fsspec_takes_and_gives_files(source: Path, tmp_path: Path) -> None:
    place = f"memory://{tmp_path.name}/copy"
    storage.copy(source, place)
    assert storage.copy(source, place).unchanged == 1  # it has no checksum: compared byte by byte
    storage.copy(place, tmp_path / "back")
    assert storage.copy(place, tmp_path / "back").unchanged == 1
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    storage.copy(place, f"memory://{tmp_path.name}/other")
    assert MemoryFileSystem().cat_file(f"/{tmp_path.name}/other") == source.read_bytes()


def test_missing_and_forbidden_are_reported(source: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none: nothing there"):
        storage.copy(tmp_path / "none", tmp_path / "copy")
    with pytest.raises(DataError, match="none: no such file"):
        storage.copy(tmp_path / "none", "memory://x/y")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:word@host/a: refused", "https://me:***@host/a: refused"),
        ("https://h/a?X-Amz-Signature=abc123&x=1", "https://h/a?X-Amz-Signature=***&x=1"),
        ("root://h//a?authz=Bearer%20eyJ0.x-y_z", "root://h//a?authz=***"),
        ("Authorization: Bearer eyJ0.abc", "Authorization: Bearer ***"),
        ("s3://bucket/key", "s3://bucket/key"),
        ("rucio:scope:name?rse=DISK", "rucio:scope:name?rse=DISK"),
    ],
)
def test_secrets_are_masked(text: str, shown: str) -> None:
    assert storage.mask_secrets(text) == shown


def test_secrets_are_not_in_errors() -> None:
    with pytest.raises(DataError) as caught:
        storage.stat("nosuch://me:word@host/a?token=abc")
    assert "word" not in str(caught.value) and "abc" not in str(caught.value)


def test_secrets_are_not_in_what_is_written_down(source: Path, tmp_path: Path) -> None:
    MemoryFileSystem().pipe("/secret/a?token=abc", os.urandom(7_500))
    with pytest.raises(KeyboardInterrupt):
        storage.copy("memory://secret/a?token=abc", tmp_path / "copy", watch=interrupt, workers=1)
    note = json.loads((tmp_path / ".copy.clew-part.json").read_text())
    assert "abc" not in json.dumps(note)


@pytest.mark.parametrize(
    ("place", "name", "joined"),
    [
        ("s3://b/models/", "x", "s3://b/models/x"),
        ("folder", "x", "folder/x"),
        ("root://h//p?authz=1", "x", "root://h//p/x?authz=1"),
        ("rucio:scope", "x", "rucio:scope:x"),
        ("rucio:scope:pre?rse=A", "x", "rucio:scope:pre.x?rse=A"),
        ("rucio:scope:pre.", "x", "rucio:scope:pre.x"),
    ],
)
def test_places_are_joined(place: str, name: str, joined: str) -> None:
    assert storage.join(place, name) == joined
    assert storage.base_name(joined).endswith(name)


def test_a_folder_is_not_copied_into_itself(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("1")
    with pytest.raises(DataError, match="would lie inside of it; choose another target"):
        storage.copy(tmp_path / "a", tmp_path / "a" / "b" / "copy")
    assert [each.name for each in (tmp_path / "a").iterdir()] == ["file"]
