"""How tests are run: second attempts of `tools/run-tests`, skips that fail a run, what `make test-quick` leaves out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.operators import mutants

TOOL = Path(__file__).parent.parent / "tools" / "run-tests"
FIRST_FAILS = """
from pathlib import Path
def test_once():
    seen = Path(__file__).with_name("seen")
    again = seen.exists()
    seen.touch()
    assert again
"""
ALWAYS_FAILS = "def test_never(): assert False\n"


def run(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run the tool on one file of tests that is not part of this project."""
    (folder / "test_example.py").write_text(text)
    (folder / "pytest.ini").touch()
    return subprocess.run(
        [TOOL, "-c", folder / "pytest.ini", folder], capture_output=True, text=True, check=False, timeout=200
    )


@pytest.mark.long
def test_a_test_that_passes_alone_is_named(tmp_path: Path) -> None:
    ended = run(tmp_path, FIRST_FAILS)
    assert ended.returncode == 0, ended
    assert "passed alone" in ended.stdout and "::test_once" in ended.stdout.splitlines()[-1]


@pytest.mark.long
def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    ended = run(tmp_path, FIRST_FAILS + ALWAYS_FAILS)
    assert ended.returncode == 1, ended
    assert "second attempt, alone: 2 tests" in ended.stdout and "passed alone" not in ended.stdout


def run_with(plugin: str, folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with a plugin of this project on one file of tests that is not part of it."""
    (folder / "test_example.py").write_text(text)
    (folder / "pytest.ini").touch()
    words = [sys.executable, "-m", "pytest", "-q", "-p", plugin, "-p", "no:cacheprovider"]
    words += ["-c", str(folder / "pytest.ini"), str(folder)]
    return subprocess.run(words, cwd=TOOL.parents[1], capture_output=True, text=True, check=False, timeout=200)


@pytest.mark.parametrize(("reason", "code"), [("needs an NVIDIA GPU", 0), ("no Chromium here", 9)])
def test_a_skip_fails_the_run_unless_its_reason_is_listed(reason: str, code: int, tmp_path: Path) -> None:
    ended = run_with("tests.allowed_skips", tmp_path, f"import pytest\ndef test_it(): pytest.skip({reason!r})\n")
    assert ended.returncode == code, ended
    assert ("::test_it: " in ended.stdout) == (code == 9)


QUICK = """
import multiprocessing, socket, subprocess, sys
def test_plain(): pass
def test_git(): subprocess.run(["git", "--version"], check=True)
def test_command(): subprocess.run([sys.executable, "-c", ""])
def test_pool(): multiprocessing.get_context("fork").Process(target=print).start()
def test_spawned(): multiprocessing.get_context("spawn").Process(target=print).start()
def test_server(): socket.create_server(("127.0.0.1", 0))
"""


def test_quick_tests_start_neither_processes_nor_servers(tmp_path: Path) -> None:
    ended = run_with("tests.quick", tmp_path, QUICK)
    assert ended.returncode == 0 and "2 passed, 4 skipped" in ended.stdout, ended


def test_a_mutant_differs_in_one_place() -> None:
    text = (
        "def f(a: int = 1) -> bool:\n    if a < 2 and a:\n        raise ValueError(f'{a + 1}')\n    return a + 3 == 4\n"
    )
    changed = sorted(each.apply(text).splitlines()[each.line - 1].strip() for each in mutants(text))
    assert changed == sorted(
        [
            "if ((a < 2) or a):",
            "if a <= 2 and a:",
            "if a < 3 and a:",
            "return None",
            "return (a + 3) != 4",
            "return a - 3 == 4",
            "return a + 4 == 4",
            "return a + 3 == 5",
        ]
    )
