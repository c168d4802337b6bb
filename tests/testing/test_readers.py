"""The suite of readers: a correct reader passes, and each fault fails the test that is about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing import failed_tests, run_pytest

SOURCE = '''
import numpy as np
from clew import Ragged, Table, readers
from clew.errors import DataError
from clew.testing import ReaderContract

ROW = 8


class NumbersReader(readers.Reader):
    """Reads 8-byte integers; event n has n % 3 of them as items."""

    endings = (".numbers",)
    chunk: int = 100

    def pieces(self, location):
        with readers.open_file(location) as stream:
            rows = stream.seek(0, 2) // ROW
        return readers.cut_evenly(rows, self.chunk)

    def load(self, location, piece):
        with readers.open_file(location) as stream:
            stream.seek(piece.start * ROW)
            number = np.frombuffer(stream.read((piece.stop - piece.start) * ROW), "<i8")
        lengths = number % 3
        x = Ragged.from_lengths(np.repeat(number, lengths), lengths)
        return Table({"number": number, "x": x, "y": x.share(x.values * 2)})


class Suite(ReaderContract):
    reader, file_name = NumbersReader, "events.numbers"

    def write(self, path):
        np.arange(self.events, dtype="<i8").tofile(path)


class TestCorrect(Suite):
    pass
'''
FAULTS = '''
class Skips(NumbersReader):
    """Loses the last event of each piece."""
    def load(self, location, piece):
        return super().load(location, piece._replace(stop=max(piece.start + 1, piece.stop - 1)))


class TestSkips(Suite):
    reader = Skips


class Guesses(NumbersReader):
    """The type of a column depends on the content of a piece."""
    def load(self, location, piece):
        table = super().load(location, piece)
        return table.join({"number": table["number"].astype("i4" if piece.start else "i8")})


class TestGuesses(Suite):
    reader = Guesses


class ReadsAll(NumbersReader):
    def load(self, location, piece):
        with readers.open_file(location) as stream:
            stream.read()
        return super().load(location, piece)


class TestReadsAll(Suite):
    reader = ReadsAll


class WrongError(NumbersReader):
    """Raises an error of its library, and one with the name of the file."""
    def pieces(self, location):
        try:
            return super().pieces(location)
        except DataError as error:
            raise (OSError(str(error)) if "no such" in str(error) else DataError(f"{location}: {error}"))


class TestWrongError(Suite):
    reader = WrongError


class TestForgetful(ReaderContract):
    reader = NumbersReader
'''


def test_a_correct_reader_passes(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, SOURCE)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout


def test_each_fault_fails_its_test(tmp_path: Path) -> None:
    failed = failed_tests(tmp_path, SOURCE + FAULTS)
    assert "test_pieces_of_any_size_give_the_same_events" in failed["TestSkips"]
    assert "test_all_pieces_have_the_same_columns_and_share_the_same_offsets" in failed["TestGuesses"]
    assert failed["TestReadsAll"] == {"test_one_piece_is_read_without_the_rest"}
    assert failed["TestWrongError"] == {"test_a_missing_file_is_reported", "test_an_empty_file_is_reported"}
    assert len(failed["TestForgetful"]) > 5
    assert "TestCorrect" not in failed


@pytest.mark.parametrize("attribute", ["file_name", "reader"])
def test_a_missing_attribute_is_named(tmp_path: Path, attribute: str) -> None:
    empty = SOURCE + f"\nclass TestForgetful(Suite):\n    {attribute} = None\n"
    done = run_pytest(tmp_path, empty, "test_mine.py::TestForgetful::test_pieces_are_a_sequence")
    assert f"TestForgetful needs a class attribute {attribute}, for example:" in done.stdout
