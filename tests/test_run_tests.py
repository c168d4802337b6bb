"""`tools/run-tests`: a second attempt for few tests that failed among others, none for tests that fail again."""

from __future__ import annotations

import subprocess
from pathlib import Path

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


def test_a_test_that_passes_alone_is_named(tmp_path: Path) -> None:
    ended = run(tmp_path, FIRST_FAILS)
    assert ended.returncode == 0, ended
    assert "passed alone" in ended.stdout and "::test_once" in ended.stdout.splitlines()[-1]


def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    ended = run(tmp_path, FIRST_FAILS + ALWAYS_FAILS)
    assert ended.returncode == 1, ended
    assert "second attempt, alone: 2 tests" in ended.stdout and "passed alone" not in ended.stdout
