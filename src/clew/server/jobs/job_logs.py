"""Logs of jobs: what a job printed, as one plain file per attempt."""

from __future__ import annotations

import codecs
import shutil
from dataclasses import dataclass
from pathlib import Path

MAX_LOG_BYTES = 200_000_000
"""Bytes stored per attempt; the agent has the complete log."""
MAX_LOG_BYTES_OVER_QUOTA = 100_000
"""Bytes stored per attempt if the owner's quota is used up: enough to see an error."""


@dataclass(frozen=True)
class LogPart:
    """A part of a log. Positions are in bytes."""

    text: str
    begin: int
    next: int
    """Where the next part begins."""
    size: int
    """Length of the log."""


class JobLogs:
    """The logs of all jobs, in a folder of the server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "logs"

    def file(self, job: int, attempt: int) -> Path:
        """Return the file of an attempt."""
        return self._folder / str(job) / f"{attempt}.txt"

    def append(self, job: int, attempt: int, offset: int, data: bytes, *, limit: int = MAX_LOG_BYTES) -> int:
        """Append output to a log.

        Bytes that the log already has are skipped. Data that would leave a gap is not written, and neither is data
        beyond `limit` bytes. The sender continues from the returned length, and stops if that does not grow.

        Args:
            job: The job.
            attempt: Its attempt.
            offset: Position of `data` in the log.
            data: The output.
            limit: Length at which the log ends.

        Returns:
            The length of the log.
        """
        file = self.file(job, attempt)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as stream:
            size = stream.tell()
            if offset <= size < limit:
                stream.write(data[size - offset :])
            return stream.tell()

    def size(self, job: int) -> int:
        """Return the bytes of all attempts of a job."""
        return sum(path.stat().st_size for path in (self._folder / str(job)).glob("*.txt"))

    def delete(self, job: int) -> None:
        """Delete the logs of a job."""
        shutil.rmtree(self._folder / str(job), ignore_errors=True)

    def read(self, job: int, attempt: int, begin: int = 0, limit: int = 100_000) -> LogPart:
        """Read at most `limit` bytes from position `begin`. A character that is cut is left for the next part."""
        file = self.file(job, attempt)
        if not file.exists():
            return LogPart("", 0, 0, 0)
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            begin = min(begin, size)
            stream.seek(begin)
            data = stream.read(max(limit, 16))
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data)
        return LogPart(text, begin, begin + len(data) - len(decoder.getstate()[0]), size)

    def tail(self, job: int, attempt: int, limit: int) -> LogPart:
        """Read the last `limit` bytes."""
        size = self.read(job, attempt, 1 << 62, 16).size
        return self.read(job, attempt, max(0, size - limit), limit)
