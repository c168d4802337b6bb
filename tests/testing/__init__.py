"""Runs the suites of `clew.testing` on test files, as their users do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_pytest(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on a test file with this content, in a process of its own."""
    (folder / "test_mine.py").write_text(textwrap.dedent(source))
    (folder / "pytest.ini").write_text("[pytest]\n")
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rfE", "--tb=short", f"--basetemp={folder}/tmp"]
    words += options or ["test_mine.py"]
    environment = {**os.environ, "CLEW_CACHE": str(folder / "cache"), "COLUMNS": "400"}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)


def failed_tests(folder: Path, source: str, chosen: Mapping[str, Sequence[str]] | None = None) -> dict[str, set[str]]:
    """Return the names of the tests that fail, without parameters, by test class.

    Args:
        folder: Where to run.
        source: The test file.
        chosen: The tests to run, by class; None: all.
    """
    nodes = [f"test_mine.py::{suite}::{test}" for suite, tests in (chosen or {}).items() for test in tests]
    done = run_pytest(folder, source, *nodes)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    names: dict[str, set[str]] = {}
    for suite, test in re.findall(r"^(?:FAILED|ERROR) test_mine\.py::(\w+)::(\w+)", done.stdout, flags=re.MULTILINE):
        names.setdefault(suite, set()).add(test)
    return names
