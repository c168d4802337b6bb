"""The contract of readers."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from clew.core.config import Document, validate
from clew.data import readers
from clew.data.readers import FilePieces, Reader
from clew.data.table import Table, concat
from clew.errors import DataError
from clew.testing.suite import required
from clew.testing.tables import assert_same_table, columns_sharing_offsets

_IO_COUNTERS = Path("/proc/self/io")


class ReaderContract:
    """Tests of a reader. Subclass it, set `reader` and write a file in `write`.

    Example:
        >>> import h5py
        >>> class TestHdf5(ReaderContract):
        ...     reader = "hdf5"
        ...     file_name = "events.h5"
        ...
        ...     def write(self, path):
        ...         with h5py.File(path, "w") as file:
        ...             file["x"] = np.arange(self.events)
    """

    reader: ClassVar[str | type[Reader] | None] = None
    """The class of the reader, or its name if it is registered (entry point group `clew.readers`)."""
    file_name: ClassVar[str | None] = None
    """Name of the file that `write` writes, as users name such files."""
    events: ClassVar[int] = 2000
    """Number of events that `write` writes. More events are more pieces."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Settings of the reader for this file."""
    reads_single_pieces: ClassVar[bool] = True
    """Whether one piece is read without reading the rest of the file. Set False for formats that do not allow it; this
    is then not tested."""

    def write(self, path: Path) -> None:
        """Write a file of `events` events, and its companion files if it has any. Give events different lengths."""
        raise NotImplementedError(f"{type(self).__name__} must define write(path)")

    def piece_options(self, events: int) -> dict[str, Any]:
        """Return the settings that divide the file into pieces of about this many events; {} if there are none."""
        return {"chunk": events}

    @pytest.fixture(scope="class")
    @classmethod
    def path(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The file."""
        path: Path = tmp_path_factory.mktemp("files") / required(cls, "file_name", '"events.dat"')
        cls().write(path)
        return path

    def _read(self, location: str | Path, events: int | None = None) -> FilePieces:
        """Return the pieces of a file, of about `events` events each; None: few pieces."""
        kind = required(type(self), "reader", "MyReader")
        reader = readers.find(kind) if isinstance(kind, str) else kind
        options = {**self.options, **self.piece_options(events or 2 * self.events)}
        return FilePieces(validate(reader, Document(options, source="the suite")), str(location))

    def _problem(self, location: str | Path) -> str:
        """Return the message about a file that cannot be read."""
        with pytest.raises(DataError) as caught:
            list(self._read(location))
        message = str(caught.value)
        assert message.isprintable(), f"the message has more than one line: {message!r}"
        assert str(location) not in message, f"the message names the file, which clew adds itself: {message}"
        return message

    def test_the_name_of_a_file_selects_the_reader(self, path: Path) -> None:
        kind = required(type(self), "reader", "MyReader")
        if isinstance(kind, str):
            assert readers.kind_of(str(path)) == kind
        else:
            assert kind.accepts(path.name.lower())

    @pytest.mark.parametrize("pieces", [41, 18, 8])
    def test_pieces_of_any_size_give_the_same_events(self, path: Path, pieces: int) -> None:
        size = max(1, self.events // pieces)
        parts = list(self._read(path, size))
        if self.piece_options(size):
            assert len(parts) > pieces / 2, f"pieces of {size} events are too large"
        assert_same_table(concat(parts), concat(list(self._read(path))))

    def test_all_pieces_have_the_same_columns_and_share_the_same_offsets(self, path: Path) -> None:
        parts = self._read(path, 13)[:: max(1, self.events // 200)]
        assert all(part.schema == parts[0].schema for part in parts)
        assert all(columns_sharing_offsets(part) == columns_sharing_offsets(parts[0]) for part in parts)

    def test_the_declared_columns_are_read(self, path: Path) -> None:
        pieces = self._read(path)
        declared = pieces.reader.declared_schema()
        assert declared is None or declared == pieces[0].schema

    def test_pieces_are_a_sequence(self, path: Path) -> None:
        pieces = self._read(path, max(1, self.events // 8))
        assert isinstance(pieces, Sequence)
        assert len(pieces) == len(list(pieces)) == len(pieces[:])
        assert_same_table(pieces[-1], pieces[len(pieces) - 1])
        assert_same_table(concat(pieces[-2:]), concat(list(pieces)[-2:]))
        with pytest.raises(IndexError):
            pieces[len(pieces)]

    def test_pieces_can_be_sent_to_other_processes(self, path: Path) -> None:
        pieces = self._read(path, max(1, self.events // 8))
        received = pickle.loads(pickle.dumps(pieces))
        assert received == pieces and received.plan == pieces.plan
        assert_same_table(received[0], pieces[0])

    def test_the_pieces_of_a_file_that_changed_are_computed_again(self, path: Path, tmp_path: Path) -> None:
        copy = tmp_path / path.name
        copy.write_bytes(path.read_bytes())
        pieces = self._read(copy, max(1, self.events // 8))
        plan = pieces.plan
        assert pieces.plan is plan
        os.utime(copy, ns=(0, 1))
        assert pieces.plan == plan and pieces.plan is not plan

    def test_a_url_is_read_like_a_path(self, path: Path) -> None:
        from fsspec.implementations.memory import MemoryFileSystem

        folder = f"{type(self).__name__}-{path.parent.name}"
        for file in path.parent.iterdir():
            MemoryFileSystem().pipe(f"/{folder}/{file.name}", file.read_bytes())
        assert_same_table(concat(list(self._read(f"memory://{folder}/{path.name}"))), self._all(path))

    def test_a_missing_file_is_reported(self, path: Path) -> None:
        for location in (path.parent / "none" / path.name, f"memory://none/{path.name}"):
            assert "no such file" in self._problem(location)

    def test_an_empty_file_is_reported(self, path: Path, tmp_path: Path) -> None:
        (tmp_path / path.name).write_bytes(b"")
        assert self._problem(tmp_path / path.name)

    @pytest.mark.parametrize("seed", range(12))
    def test_a_damaged_file_raises_a_data_error_or_is_read(self, path: Path, tmp_path: Path, seed: int) -> None:
        data = bytearray(path.read_bytes())
        random = np.random.default_rng(seed)
        for position in random.integers(0, len(data), 40):
            data[position] = random.integers(256)
        (tmp_path / path.name).write_bytes(data if seed % 2 else data[: random.integers(len(data))])
        with contextlib.suppress(DataError):
            list(self._read(tmp_path / path.name, max(1, self.events // 8)))

    def test_one_piece_is_read_without_the_rest(self, path: Path) -> None:
        if not (self.reads_single_pieces and _IO_COUNTERS.exists()):  # only Linux counts the bytes
            return
        pieces = self._read(path, max(1, self.events // 80))
        last = pieces[-1]
        before = _bytes_read()
        assert_same_table(pieces[-1], last)
        share = (_bytes_read() - before) / path.stat().st_size
        assert share < 0.3, f"{share:.0%} of the file were read for one of {len(pieces)} pieces"

    def _all(self, path: Path) -> Table:
        return concat(list(self._read(path)))


def _bytes_read() -> int:
    """The number of bytes that this process has read so far, by any library."""
    return int(_IO_COUNTERS.read_text().partition("rchar: ")[2].split()[0])
