"""The suite of stores: each fault of a store fails the test that is about it."""

from __future__ import annotations

from pathlib import Path

from tests.testing import failed_tests

SOURCE = '''
from dataclasses import replace
from clew.storage.local_disk import LocalDisk
from clew.testing import StoreContract


class Suite(StoreContract):
    store = LocalDisk

    def location(self, tmp_path):
        return str(tmp_path / "store")


class TestCorrect(Suite):
    pass


class OffByOne(LocalDisk):
    def read(self, file, start, stop):
        return super().read(file, start, stop + 1)


class TestOffByOne(Suite):
    store = OffByOne


class Flat(LocalDisk):
    """Lists files by their last name only."""
    def files(self, location):
        return {name.rpartition("/")[2]: file for name, file in super().files(location).items()}


class TestFlat(Suite):
    store = Flat


class Constant(LocalDisk):
    """The token does not change."""
    def files(self, location):
        return {name: replace(file, token="same") for name, file in super().files(location).items()}


class TestConstant(Suite):
    store = Constant


class WrongSum(LocalDisk):
    def checksums(self, file):
        return {"md5": "0" * 32}


class TestWrongSum(Suite):
    store = WrongSum


class Keeps(LocalDisk):
    def remove(self, file):
        pass


class TestKeeps(Suite):
    store = Keeps


class Hasty(LocalDisk):
    """Writes to the final name at once."""
    def writer(self, location, source, memory, part):
        writer = super().writer(location, source, memory, part)
        writer._partial.replace(writer._path)
        writer._partial = writer._path
        return writer


class TestHasty(Suite):
    store = Hasty
'''


def test_each_fault_fails_its_test(tmp_path: Path) -> None:
    failed = failed_tests(tmp_path, SOURCE)
    assert "TestCorrect" not in failed
    assert "test_a_file_is_written_in_parts_and_read_in_ranges" in failed["TestOffByOne"]
    assert failed["TestFlat"] == {"test_the_files_of_a_folder_are_listed_by_their_relative_path"}
    assert failed["TestConstant"] == {"test_a_rewritten_file_has_other_content_and_another_token"}
    assert failed["TestWrongSum"] == {"test_checksums_are_those_of_the_content"}
    assert failed["TestKeeps"] == {"test_a_removed_file_is_gone"}
    assert failed["TestHasty"] >= {"test_a_file_that_is_not_complete_is_not_listed"}
