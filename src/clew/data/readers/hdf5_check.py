"""Checks HDF5 files from elsewhere in a process of its own.

HDF5 ends the process, or never returns, for some damaged files. A file is therefore first opened by a helper process,
which reads all attributes and looks at all datasets. If that process ends or takes too long, the file is refused.
"""

from __future__ import annotations

import atexit
import functools
import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import h5py

from clew.core.process import safe_path
from clew.data.readers.hdf5_heap import HeapCheckedStream
from clew.errors import DataError

READ_ERRORS = (OSError, KeyError, RuntimeError, SystemError, TypeError, ValueError)
"""What h5py raises for a damaged file. SystemError: it loses the error of a function that HDF5 called."""
_SECONDS = 60.0
"""Time for one file: much more than any needs."""


def uses_heaps(path: Path) -> bool:
    """Check a file, and return whether its datasets need heaps.

    The answer is kept until the file changes. A worker process checks the file itself: its end is noticed by the
    process that started it.

    Raises:
        DataError: the file is damaged, or has values in other files.
    """
    facts = path.stat()
    return _remembered(path.absolute(), facts.st_ino, facts.st_size, facts.st_mtime_ns)


@functools.lru_cache(1000)
def _remembered(path: Path, *_: int) -> bool:
    return check_file(path) if multiprocessing.parent_process() is not None else _checker().check(path)


def check_file(path: Path) -> bool:
    """Check a file in this process, and return whether its datasets need heaps.

    Raises:
        DataError: the file is damaged, or has values in other files.
    """
    try:
        with path.open("rb") as stream, h5py.File(HeapCheckedStream(stream), "r") as file:
            for name in file.attrs:
                file.attrs[name]
            check_whole(file)
            return any(dataset.dtype.hasobject for dataset in all_datasets(file).values())
    except READ_ERRORS as error:
        raise DataError(f"not a readable HDF5 file ({error.__cause__ or error})") from error


def check_whole(file: h5py.File) -> None:
    """Check that no value comes from another file, which would be any file of the user.

    Raises:
        DataError: A dataset or a link leads out of the file.
    """
    outside = [path for path, dataset in all_datasets(file).items() if dataset.external or dataset.is_virtual]
    file.visititems_links(lambda path, link: outside.append(path) if isinstance(link, h5py.ExternalLink) else None)
    if outside:
        raise DataError(
            f"'{outside[0]}' is in another file, which is not read; put everything into one file (h5repack)"
        )


def all_datasets(file: h5py.File) -> dict[str, Any]:
    """Return all datasets by path, in the order of their paths."""
    datasets: dict[str, Any] = {}
    file.visititems(lambda path, item: datasets.update({path: item}) if isinstance(item, h5py.Dataset) else None)
    return datasets


class FileChecker:
    """A helper process that checks files one after the other.

    Args:
        seconds: Time for one file.
    """

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def check(self, path: Path) -> bool:
        """Return whether the datasets of a file need heaps.

        Raises:
            DataError: the file is damaged, has values in other files, or ended the helper process.
        """
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            process.stdin.write(json.dumps(str(path)).encode() + b"\n")
            process.stdin.flush()
            answer = self._answer(process)
        if isinstance(answer, str):
            raise DataError(answer)
        return answer

    def close(self) -> None:
        """End the helper process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            command = [sys.executable, *safe_path(), "-m", __name__]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        return self._process

    def _answer(self, process: subprocess.Popen[bytes]) -> bool | str:
        """Return the answer for the last file, or why there is none."""
        assert process.stdout is not None
        end, line = time.monotonic() + self._seconds, b""
        while not line.endswith(b"\n"):
            if not select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                self.close()
                return f"HDF5 did not open the file within {self._seconds:g} s; it is damaged"
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                code = process.wait()
                self.close()
                return f"HDF5 ended the process that opened the file ({_reason(code)}); it is damaged"
            line += data
        answer: bool | str = json.loads(line)
        return answer


def _reason(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


@functools.cache
def _checker_of(_: int) -> FileChecker:
    checker = FileChecker()
    atexit.register(checker.close)
    return checker


def _checker() -> FileChecker:
    """Return the checker of this process: one that was forked needs its own."""
    return _checker_of(os.getpid())


def main() -> None:
    """Read names of files from the standard input, and answer each with one line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks, which then ends this one
    for line in sys.stdin:
        try:
            answer: bool | str = check_file(Path(json.loads(line)))
        except DataError as error:
            answer = str(error)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
