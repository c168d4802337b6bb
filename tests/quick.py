"""`-p tests.quick`: only what runs within the test process, for the inner loop (`make test-quick`).

A test that starts a process, forks or listens at a socket is skipped at the moment when it does so: no list has to be
kept. A library may turn the exception of the skip into one of its own: then the failure of the test counts as a skip,
and so does the same failure of a fixture in later tests.
Git is allowed: a run records the commit, which takes milliseconds. So is `uname`, which libraries run. Tests with a
browser are left out, too, and property tests try few examples. `make test-quick` also leaves out tests marked `slow`
(more than about a CPU second within the test process) and `long`.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

_EXAMPLES = 5
_ALLOWED = ("git", "uname")
_refusals: list[str] = []
"""What the running test tried to start."""
_consequences: list[BaseException] = []
"""Failures that followed from a refusal. Those of a fixture are raised again in every test that has it."""
_real_start: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]


def pytest_configure(config: pytest.Config) -> None:
    os.environ["CLEW_TEST_FORK"] = "none"
    for kind in ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning"):  # of what was refused half-way
        config.addinivalue_line("filterwarnings", f"ignore::{kind}")


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    with_browser = {item for item in items if "browser" in getattr(item, "fixturenames", ())}
    config.hook.pytest_deselected(items=list(with_browser))
    items[:] = [item for item in items if item not in with_browser]


def pytest_runtest_setup() -> None:
    _refusals.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo and (_refusals or any(call.excinfo.value is each for each in _consequences)):
        _consequences.append(call.excinfo.value)
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, "Skipped: not quick: it starts a process or a server")
    return report


def pytest_collection_finish() -> None:
    settings.register_profile(
        "quick", deadline=None, max_examples=_EXAMPLES, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("quick")
    subprocess.Popen._execute_child = _start  # type: ignore[attr-defined]
    socket.socket.listen = _listen  # type: ignore[method-assign]
    os.fork = os.posix_spawn = _fork
    import multiprocessing.util

    multiprocessing.util.spawnv_passfds = _fork


def _start(self: Any, args: Any, *more: Any) -> None:
    words = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
    if Path(os.fsdecode(words[0])).name not in _ALLOWED:
        _refuse("not quick: it starts a process")
    _real_start(self, args, *more)


def _listen(*_: Any) -> NoReturn:
    _refuse("not quick: it starts a server")


def _fork(*_: Any, **__: Any) -> NoReturn:
    _refuse("not quick: it starts a process")


def _refuse(reason: str) -> NoReturn:
    _refusals.append(reason)
    pytest.skip(reason)
