"""Runs inputs in worker processes with limits of time and memory, and counts how each ended."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import clew.inference.predict  # noqa: F401 (torch is loaded once, before processes are forked)
from tests.fuzz.network_targets import NETWORK_TARGETS
from tests.fuzz.targets import FILE_TARGETS, Target

SECONDS = 60.0
"""Time for one input: much more than any needs, on a busy machine too."""
MEMORY = 1 << 30
"""Bytes that a process may take in addition to what it has after its imports."""
BAD = ("traceback", "crash", "hang", "memory")
TARGETS = FILE_TARGETS | NETWORK_TARGETS
_OPENED = "opened"
"""What a worker sends first: from now on, an input is what ends it."""
_OPEN_SECONDS = 300.0
_FORK = multiprocessing.get_context("fork")


@dataclass
class Outcome:
    """How the inputs of one target ended: `read`, `refused`, or one of `BAD`, with the inputs that ended badly."""

    counts: Counter[str] = field(default_factory=Counter)
    bad: dict[str, list[int]] = field(default_factory=dict)
    """Numbers of inputs, by what happened."""
    bad_inputs: dict[int, bytes] = field(default_factory=dict)
    """The inputs that ended badly."""

    def add(self, number: int, kind: str, detail: str) -> None:
        """Count one input."""
        self.counts[kind] += 1
        if kind in BAD:
            self.bad.setdefault(f"{kind}: {detail}", []).append(number)


def fuzz(target: Target, inputs: range, *, seed: int, workers: int = 1, seconds: float = SECONDS) -> Outcome:
    """Run inputs of a target.

    Args:
        target: What to fuzz.
        inputs: Numbers of the inputs.
        seed: Seed of the inputs.
        workers: Processes.
        seconds: After this time an input counts as a hang.
    """
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="clew-fuzz-") as folder:
        examples = Path(folder) / "examples"
        examples.mkdir()
        _in_process(target.write_examples, examples)
        texts = [path.read_bytes() for path in sorted(examples.iterdir()) if path.is_file()]
        assert texts, f"{target.name}: no examples"
        pool = [_Worker(target, texts, seed, inputs[n::workers], Path(folder) / f"worker-{n}") for n in range(workers)]
        while any(worker.is_running for worker in pool):
            wait([worker.pipe for worker in pool if worker.is_running], timeout=1.0)
            for worker in pool:
                for number, kind, detail in worker.results(seconds):
                    outcome.add(number, kind, detail)
        for number in itertools.chain(*outcome.bad.values()):
            outcome.bad_inputs[number] = target.input(seed, number, texts)
    return outcome


class _Worker:
    """A process that runs inputs one after the other. It is started again after an input that ended it."""

    def __init__(self, target: Target, examples: list[bytes], seed: int, inputs: range, folder: Path) -> None:
        self._target, self._examples, self._seed, self._folder = target, examples, seed, folder
        self._left, self._is_open = list(inputs), False
        folder.mkdir()
        self._start()

    @property
    def is_running(self) -> bool:
        """Whether inputs are left."""
        return bool(self._left)

    def results(self, seconds: float) -> Iterator[tuple[int, str, str]]:
        """Yield number, outcome and details of inputs that have ended since the last call, or take too long."""
        while self._left:
            try:
                if not self.pipe.poll():
                    break
                kind, detail = self.pipe.recv()
            except (EOFError, OSError):
                assert self._is_open, f"{self._target.name}: it cannot be opened"
                yield self._replaced("crash")
                continue
            if kind == _OPENED:
                self._is_open = True
                self._began = time.monotonic()
                continue
            self._began = time.monotonic()
            yield self._left.pop(0), kind, detail
        if self._left and time.monotonic() - self._began > (seconds if self._is_open else _OPEN_SECONDS):
            yield self._replaced("hang")
        if not self._left:
            self._end()

    def _replaced(self, kind: str) -> tuple[int, str, str]:
        """Start another process for the inputs after the one that ended or blocked this one."""
        code = self._end()
        number = self._left.pop(0)
        if self._left:
            self._start()
        return number, kind, signal.Signals(-code).name if code and code < 0 and kind == "crash" else f"code {code}"

    def _start(self) -> None:
        self.pipe, other = _FORK.Pipe(duplex=False)
        arguments = (self._target, self._examples, self._seed, tuple(self._left), self._folder, other)
        self._process = _FORK.Process(target=_work, args=arguments, daemon=True)
        self._process.start()
        other.close()
        self._is_open = False
        self._began = time.monotonic()

    def _end(self) -> int | None:
        self._process.join(timeout=0.5)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            self._process.join()
        self.pipe.close()
        return code


def _work(
    target: Target, examples: list[bytes], seed: int, inputs: tuple[int, ...], folder: Path, pipe: Connection
) -> None:
    """Read inputs and send how each ended."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.environ |= {"CLEW_CACHE": str(folder / "cache"), "CLEW_CONFIG": str(folder / "config"), "CLEW_SERVER": ""}
    warnings.simplefilter("ignore")
    target.open(folder)
    path = folder / target.file_name
    with contextlib.suppress(Exception):
        path.write_bytes(examples[0])
        target.read(path)  # imports what is loaded late, before memory is limited
    _limit_memory()
    pipe.send((_OPENED, ""))
    for number in inputs:
        path.write_bytes(target.input(seed, number, examples))
        os.utime(path, (number, number))  # the clock of files is too coarse: each input is a file of another time
        pipe.send(_outcome(target, path))


def _outcome(target: Target, path: Path) -> tuple[str, str]:
    from clew.errors import ClewError

    try:
        target.read(path)
    except ClewError as error:
        text = str(error)
        return ("refused", "") if text and "\n" not in text else ("traceback", f"message of {len(text)} characters")
    except MemoryError as error:
        return "memory", _place(error)
    except Exception as error:  # a traceback that a user would see
        return "traceback", _place(error)
    return "read", ""


def _place(error: BaseException) -> str:
    """The kind of an error, its place, and the last place in clew."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/clew/" in frame.filename and "/site-packages/" not in frame.filename]
    where = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in (*own[-1:], frames[-1]))
    return f"{type(error).__name__} {str(error)[:80]!r} ({where})"


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _in_process(work: Any, *arguments: Any) -> None:
    """Call a function in a process of its own: libraries that start threads must not do so in this one."""
    process = _FORK.Process(target=work, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0, f"the examples could not be written: {process.exitcode}"


__all__ = ["BAD", "TARGETS", "Outcome", "fuzz"]
