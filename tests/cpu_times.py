"""CPU seconds of every test, those of its processes included, as lines of JSON.

    CLEW_CPU_TIMES=times.jsonl python -m pytest -p tests.cpu_times -n 0 tests/tuning

Wall time depends on what else the machine does; CPU time depends on the test. A line holds the test, the seconds of its
setup (with the fixtures that it is the first to need), call and teardown, and its wall time. The kernel counts them in
a control group, which needs root. Without it a process counts when it is waited for, and one that outlives its test for
none.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest

_ROOTS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
_lines: dict[str, dict[str, float]] = {}
_groups: list[Path] = []
"""At most one: the control group of this process and of all that it starts."""


def pytest_configure() -> None:
    for root in _ROOTS:
        if os.access(root / "cgroup.procs", os.W_OK) and not _groups:
            _groups.append(root / f"clew-tests-{os.getpid()}")
            _groups[0].mkdir()
            (_groups[0] / "cgroup.procs").write_text(str(os.getpid()))


def _seconds() -> float:
    if _groups:
        return int((_groups[0] / "cpu.stat").read_text().split()[1]) / 1e6
    return sum(os.times()[:4])


def _phase(item: pytest.Item, name: str) -> Generator[None, object, object]:
    cpu, wall = _seconds(), time.monotonic()
    try:
        return (yield)
    finally:
        line = _lines.setdefault(item.nodeid, {"wall": 0.0})
        line[name] = _seconds() - cpu
        line["wall"] += time.monotonic() - wall


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _phase(item, "setup"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _phase(item, "call"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    result = yield from _phase(item, "teardown")
    line = {"test": item.nodeid, **{name: round(value, 3) for name, value in _lines.pop(item.nodeid).items()}}
    with Path(os.environ.get("CLEW_CPU_TIMES", "cpu_times.jsonl")).open("a") as file:
        file.write(json.dumps(line) + "\n")
    return result
