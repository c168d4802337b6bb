"""The contract of stores."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from clew.storage.checksums import local_file
from clew.storage.store import LocalFile, Store
from clew.testing.suite import required


class StoreContract:
    """Tests of a store. Subclass it, set `store`, and define `location`.

    Example:
        >>> from clew.storage.local_disk import LocalDisk
        >>> class TestLocalDisk(StoreContract):
        ...     store = LocalDisk
        ...
        ...     def location(self, tmp_path):
        ...         return str(tmp_path / "store")
    """

    store: ClassVar[Callable[[], Store] | None] = None
    """The class of the store."""
    part: ClassVar[int] = 1000
    """Size of a part in bytes. Some stores demand a minimum."""

    def location(self, tmp_path: Path) -> str:
        """Return the location of a folder in the store that does not exist yet. It is different for every test."""
        raise NotImplementedError(f"{type(self).__name__} must define location(tmp_path)")

    def _open(self) -> Store:
        store: Store = required(type(self), "store", "MyStore")()
        return store

    def _source(self, tmp_path: Path, name: str = "source.bin", size: float = 2.5) -> LocalFile:
        """A local file of so many parts."""
        path = tmp_path / "local" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(int(size * self.part)))
        return local_file(path, self._open().required_checksums)

    def _put(self, store: Store, location: str, files: Mapping[str, LocalFile]) -> dict[str, str]:
        targets = store.targets(location, files)
        for name, source in files.items():
            writer = store.writer(targets[name], source, {}, self.part)
            writer.close({number: writer.write(number, start, data) for number, start, data in self._parts(source)})
        store.publish(location, targets, files)
        return targets

    def _parts(self, source: LocalFile) -> list[tuple[int, int, bytes]]:
        """Number, offset and content of the parts, the last first: parts may come in any order."""
        data = source.path.read_bytes()
        starts = list(enumerate(range(0, max(len(data), 1), self.part)))
        return [(number, start, data[start : start + self.part]) for number, start in reversed(starts)]

    def test_a_file_is_written_in_parts_and_read_in_ranges(self, tmp_path: Path) -> None:
        store, source = self._open(), self._source(tmp_path)
        location = f"{self.location(tmp_path)}/one.bin"
        self._put(store, location, {"": source})
        stored = store.files(location)
        assert list(stored) == [""], "files() of a file has the name ''"
        data = source.path.read_bytes()
        assert stored[""].size == len(data)
        for start, stop in ((0, len(data)), (0, 1), (self.part - 1, self.part + 1), (len(data) - 3, len(data))):
            assert store.read(stored[""], start, stop) == data[start:stop], f"bytes {start} to {stop}"

    def test_the_files_of_a_folder_are_listed_by_their_relative_path(self, tmp_path: Path) -> None:
        store, location = self._open(), self.location(tmp_path)
        names = {"a.txt": 0.1, "inner/b.bin": 1.0, "inner/deeper/c.bin": 1.5}
        files = {name: self._source(tmp_path, name, size) for name, size in names.items()}
        self._put(store, location, files)
        stored = store.files(location)
        assert sorted(stored) == sorted(files)
        for name, source in files.items():
            assert stored[name].size == source.size
            assert store.read(stored[name], 0, source.size) == source.path.read_bytes(), name
            assert list(store.files(stored[name].location)) == [""], "the location of a file leads to it"

    def test_a_missing_file_is_not_listed(self, tmp_path: Path) -> None:
        assert self._open().files(f"{self.location(tmp_path)}/none") == {}

    def test_a_file_that_is_not_complete_is_not_listed(self, tmp_path: Path) -> None:
        store, source = self._open(), self._source(tmp_path)
        location = f"{self.location(tmp_path)}/one.bin"
        target = store.targets(location, {"": source})[""]
        writer = store.writer(target, source, {}, self.part)
        writer.write(*self._parts(source)[0])
        assert store.files(location) == {}
        writer.drop()
        assert store.files(location) == {}

    def test_another_process_completes_an_upload(self, tmp_path: Path) -> None:
        store, source, memory = self._open(), self._source(tmp_path), dict[str, Any]()
        location = f"{self.location(tmp_path)}/one.bin"
        target = store.targets(location, {"": source})[""]
        first, *others = self._parts(source)
        receipts = {first[0]: store.writer(target, source, memory, self.part).write(*first)}
        saved = json.loads(json.dumps({"memory": memory, "receipts": receipts}))
        writer = self._open().writer(target, source, saved["memory"], self.part)
        received = {int(number): receipt for number, receipt in saved["receipts"].items()}
        writer.close({**received, **{number: writer.write(number, start, data) for number, start, data in others}})
        (stored,) = store.files(location).values()
        assert store.read(stored, 0, stored.size) == source.path.read_bytes()

    def test_checksums_are_those_of_the_content(self, tmp_path: Path) -> None:
        store, source = self._open(), self._source(tmp_path)
        assert "sha256" in store.required_checksums
        location = f"{self.location(tmp_path)}/one.bin"
        self._put(store, location, {"": source})
        (stored,) = store.files(location).values()
        data = source.path.read_bytes()
        expected = {
            "sha256": hashlib.sha256(data).hexdigest(),
            "md5": hashlib.md5(data, usedforsecurity=False).hexdigest(),
            "adler32": f"{zlib.adler32(data):08x}",
        }
        for algorithm, value in store.checksums(stored).items():
            assert value == expected[algorithm], algorithm

    def test_a_rewritten_file_has_other_content_and_another_token(self, tmp_path: Path) -> None:
        store, location = self._open(), f"{self.location(tmp_path)}/one.bin"
        tokens = []
        for number in range(2):
            source = self._source(tmp_path, f"source{number}.bin")
            self._put(store, location, {"": source})
            (stored,) = store.files(location).values()
            assert store.read(stored, 0, stored.size) == source.path.read_bytes()
            tokens.append(stored.token)
        assert tokens[0] != tokens[1] or tokens == ["", ""], "the token must change with the content, or be empty"

    def test_a_removed_file_is_gone(self, tmp_path: Path) -> None:
        store, location = self._open(), self.location(tmp_path)
        self._put(store, location, {name: self._source(tmp_path, name, 0.1) for name in ("a", "b")})
        store.remove(store.files(location)["a"])
        assert list(store.files(location)) == ["b"]
