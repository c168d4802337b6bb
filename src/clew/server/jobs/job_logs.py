"""What jobs print, as plain files of the server: appended where they end, read in pieces."""

from __future__ import annotations

import codecs
import shutil
from dataclasses import dataclass
from pathlib import Path

MOST = 200_000_000
"""Bytes that are kept of an attempt; its agent has all of it."""
LEAST = 100_000
"""The same where its owner has no room left: enough to see what went wrong."""


@dataclass(frozen=True)
class Piece:
    """A part of a log."""

    text: str
    begin: int
    """In bytes, as the others."""
    next: int
    size: int


class Logs:
    """The logs of all jobs, a file an attempt."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "logs"

    def file(self, job: int, attempt: int) -> Path:
        """That of an attempt."""
        return self._folder / str(job) / f"{attempt}.txt"

    def append(self, job: int, attempt: int, offset: int, data: bytes, *, most: int = MOST) -> int:
        """Add what begins at `offset`; how long the log is then. What is there already is not written again, and what
        would leave a hole, or make it longer than `most` bytes, is not written at all: whoever sends goes on from the
        answer, and stops where that does not grow.
        """
        file = self.file(job, attempt)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as stream:
            size = stream.tell()
            if offset <= size < most:
                stream.write(data[size - offset :])
            return stream.tell()

    def size(self, job: int) -> int:
        """Bytes of all attempts."""
        return sum(path.stat().st_size for path in (self._folder / str(job)).glob("*.txt"))

    def drop(self, job: int) -> None:
        """Remove what a job printed."""
        shutil.rmtree(self._folder / str(job), ignore_errors=True)

    def read(self, job: int, attempt: int, begin: int = 0, limit: int = 100_000) -> Piece:
        """A part of a log; whole characters only."""
        file = self.file(job, attempt)
        if not file.exists():
            return Piece("", 0, 0, 0)
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            begin = min(begin, size)
            stream.seek(begin)
            data = stream.read(max(limit, 16))
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data)
        return Piece(text, begin, begin + len(data) - len(decoder.getstate()[0]), size)
