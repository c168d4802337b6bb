"""Runs tests over a copy of the source, in a process that is forked from one with torch and pytest loaded.

So a run takes as long as its tests, and not the seconds that importing torch takes.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_PRELOAD = "torch torch._dynamo numpy h5py awkward scipy.stats fastapi sqlalchemy httpx psutil yaml zmq optuna plotly"
_FAILED = 1
"""The exit code of pytest when tests ran and some failed."""


@dataclass
class Outcome:
    """How the tests ended over a source with a fault."""

    noticed: bool
    message: str
    """The first test that failed, or why it is not known that the tests notice."""


class _FirstFailure:
    """A plugin of pytest that writes the name of the first failed test to a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self._descriptor, f"{report.nodeid}\n".encode())


def preload() -> None:
    """Import what most tests need. Nothing of clew: its source is replaced."""
    for name in _PRELOAD.split():
        importlib.import_module(name)


@contextmanager
def source_copy() -> Iterator[Path]:
    """A copy of `src` that may be changed."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(shutil.copytree(ROOT / "src", Path(folder) / "src", ignore=shutil.ignore_patterns("__pycache__")))


def run_tests(source: Path, tests: Sequence[str], *, limit: float) -> Outcome:
    """Run tests, given below `tests`, over a source. To run for longer than `limit` seconds is to notice a fault."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        become_pytest(source, tests, [_FirstFailure(writing)])
    os.close(writing)
    code = wait_for(pid, limit)
    with os.fdopen(reading) as lines:
        failed = lines.readline().strip()
    if code is None:
        return Outcome(True, "the time limit")
    return Outcome(code == _FAILED, failed if code == _FAILED else f"pytest ended with {code}")


def become_pytest(source: Path, tests: Sequence[str], plugins: list[object], options: Sequence[str] = ()) -> None:
    """Run tests over a source in this process, and end it."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    sys.path.insert(0, str(source))
    sys.dont_write_bytecode = True
    os.environ.update(PYTHONPATH=str(source), PYTHONDONTWRITEBYTECODE="1", CLEW_TEST_FORK="none")
    os.chdir(ROOT)
    words = ["-x", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist"]
    words += ["-W", "ignore::pytest.PytestAssertRewriteWarning", *options]  # what is preloaded
    code = _FAILED
    try:
        code = pytest.main([*words, *(f"tests/{test}" for test in tests)], plugins=plugins)
    finally:
        os._exit(code)  # also after an exception: this process must not remove the copy of the source


def wait_for(pid: int, limit: float) -> int | None:
    """The exit code of a process; None if it had to be killed, with all that it started."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None
