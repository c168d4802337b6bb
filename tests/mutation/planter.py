"""A plugin of pytest that tries many mutants in one session: tests are imported and collected once.

Every mutant gets a fork of the session. There the code of its functions is replaced, and the tests that call the
changed function run. So no time is spent on importing clew and its tests again. A fault in code that runs at import has
no effect this way, and survives.
"""

from __future__ import annotations

import ast
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from tests.mutation.in_place import LoadedFunctions, functions, lines_of
from tests.mutation.runner import become_pytest, wait_for

_fork = os.fork
"""`tests.quick` replaces it."""
_SLOWER, _LEAST_SECONDS = 10, 30
"""Tests that take this many times as long as without a fault, and this many seconds, hang."""
_LIMIT = 3000.0
"""Seconds for all tests without a fault."""
_CANNOT = 99
"""The exit code of a fork that could not replace the code."""


class Fault(Protocol):
    """What can be planted in the text of a file. Its text (`str`) names it."""

    @property
    def line(self) -> int:
        """The first line that changes."""

    def apply(self, text: str) -> str:
        """The text with the fault."""


@dataclass(frozen=True)
class Target:
    """A source file, the tests that must notice its mutants, and the mutants."""

    package: str
    file: str
    """Below `src/clew`."""
    tests: tuple[str, ...]
    """Below `tests`: files, or names of tests."""
    mutants: tuple[Fault, ...]


def results(source: Path, targets: Sequence[Target], options: Sequence[str] = ()) -> Iterator[tuple[str, str, bool]]:
    """A file, a mutant of it, and whether its tests noticed; a test and no mutant if it fails without a fault."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        tests = sorted({test for target in targets for test in target.tests})
        become_pytest(source, tests, [Planter(source, targets, writing)], options)
    os.close(writing)
    with os.fdopen(reading) as lines:
        for line in lines:
            name, mutant, is_noticed = json.loads(line)
            yield name, mutant, is_noticed
    os.waitpid(pid, 0)


class Planter:
    """Runs all tests once without a fault, then for each mutant those that call the changed function."""

    def __init__(self, source: Path, targets: Sequence[Target], writing: int) -> None:
        self._source = source
        self._targets = targets
        self._writing = writing
        self._calls: dict[str, set[str]] = defaultdict(set)
        """The functions that the tests of a file (in fixtures), or one test, call."""
        self._seconds: dict[str, float] = {}
        """How long each test takes. One that fails without a fault is missing."""
        self._now: set[str] = set()
        self._report: Path | None = None
        self._writes = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        self._functions = LoadedFunctions([str(self._path(target)) for target in self._targets])
        report = self._source.parent / "calls.json"
        if self._fork(_LIMIT) is None:
            self._start_report(report)
            session.config.option.maxfail = 0
            return None  # pytest runs the tests in this fork
        calls, self._seconds = json.loads(report.read_text())
        self._calls.update({name: set(called) for name, called in calls.items()})
        for target in self._targets:
            for mutant in target.mutants:
                if self._is_fork_for(session, target, mutant):
                    return None
        return True

    def _start_report(self, report: Path) -> None:
        self._report = report
        for path in {self._path(target) for target in self._targets}:
            self._functions.report_calls(str(path), path.read_text(), self._now.add)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._keep(item.nodeid.split("::")[0])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._report is None:
            return
        if report.when == "call" and report.passed:
            self._keep(report.nodeid)
            self._seconds[report.nodeid] = report.duration
        elif report.failed:
            self._tell(report.nodeid, "", False)

    def pytest_sessionfinish(self) -> None:
        if self._report is not None:
            calls = {name: sorted(called) for name, called in self._calls.items()}
            self._report.write_text(json.dumps([calls, self._seconds]))

    def _keep(self, name: str) -> None:
        if self._report is not None:
            self._calls[name] |= self._now
            self._now.clear()

    def _path(self, target: Target) -> Path:
        return self._source / "clew" / target.file

    def _fork(self, limit: float) -> int | None:
        """None in the fork. In this process, its exit code; -1 if it took longer than `limit` seconds."""
        pid = _fork()
        if pid == 0:
            os.setsid()
            return None
        code = wait_for(pid, limit)
        return -1 if code is None else code

    def _is_fork_for(self, session: pytest.Session, target: Target, mutant: Fault) -> bool:
        """True in the fork, which then runs the tests. In this process, tell whether the mutant was noticed."""
        path = self._path(target)
        text = path.read_text()
        items = self._items(session, target, mutant)
        limit = max(_LEAST_SECONDS, _SLOWER * sum(self._seconds[item.nodeid] for item in items))
        self._write(path, mutant.apply(text))  # for processes, and for modules that are not imported yet
        code = self._fork(limit)
        if code is None:
            if not self._functions.replace_code(str(path), text, mutant.apply(text)):
                os._exit(_CANNOT)
            session.items[:] = items
            return True
        self._write(path, text)
        self._tell(target.file, str(mutant), code not in (0, _CANNOT) and bool(items))
        return False

    def _items(self, session: pytest.Session, target: Target, mutant: Fault) -> list[pytest.Item]:
        """The tests of a file that call the changed function; all of them if none does within this process."""
        tests = tuple(f"tests/{test}" for test in target.tests)
        items = [item for item in session.items if item.nodeid in self._seconds and item.nodeid.startswith(tests)]
        path = self._path(target)
        changed = {
            f"{path}:{lines_of(each)}"
            for each in functions(ast.parse(path.read_text()))
            if each.lineno <= mutant.line <= (each.end_lineno or 0)
        }
        calling = [item for item in items if changed & self._called_by(item)]
        return calling or items

    def _called_by(self, item: pytest.Item) -> set[str]:
        return self._calls[item.nodeid] | self._calls[item.nodeid.split("::")[0]]

    def _write(self, path: Path, text: str) -> None:
        """Write a file with a time of its own, so that no compiled code of another text is used."""
        path.write_text(text)
        self._writes += 1
        os.utime(path, (self._writes, self._writes))

    def _tell(self, name: str, mutant: str, noticed: bool) -> None:
        os.write(self._writing, (json.dumps([name, mutant, noticed]) + "\n").encode())
