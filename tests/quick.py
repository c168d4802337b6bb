"""`-p tests.quick`: only what runs within the test process, for the inner loop (`make test-quick`).

A test that starts a process, forks or listens at a socket is skipped at the moment when it does so: no list has to be
kept. Git is allowed: a run records the commit, which takes milliseconds. Tests marked `slow` are left out, too, and
property tests try few examples.
"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

_EXAMPLES = 5
_real_start: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]


def pytest_configure() -> None:
    os.environ["CLEW_TEST_FORK"] = "none"


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in set(slow)]


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
    if Path(os.fsdecode(words[0])).name != "git":
        pytest.skip("not quick: it starts a process")
    _real_start(self, args, *more)


def _listen(*_: Any) -> NoReturn:
    pytest.skip("not quick: it starts a server")


def _fork(*_: Any, **__: Any) -> NoReturn:
    pytest.skip("not quick: it starts a process")
