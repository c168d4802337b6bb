"""The audit of dependencies: versions with known holes are found."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _audit(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "audit.py"), str(folder)]
    return subprocess.run(command, text=True, capture_output=True, check=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_this_version_has_no_known_holes() -> None:
    done = _audit(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("requirements.lock", "keras==", "keras==3.8.0 #"),
        ("requirements.lock", "torch==", "torch==2.9.1 #"),
        ("pyproject.toml", "keras>=3.15.1", "keras>=3.12"),
        ("pyproject.toml", "blosc2>=4.14.1", "blosc2>=4"),
    ],
)
def test_a_version_with_a_known_hole_is_found(file: str, old: str, new: str, project: Path) -> None:
    text = (project / file).read_text()
    assert old in text
    (project / file).write_text("\n".join(line.replace(old, new).split(" #")[0] for line in text.splitlines()))
    done = _audit(project)
    assert done.returncode == 1 and file in done.stdout and new.split(" ")[0].split("=")[0] in done.stdout


def test_make_check_runs_the_audit() -> None:
    check = (ROOT / "Makefile").read_text().partition("\ncheck:")[2].partition("\n\n")[0]
    assert "tools/audit.py" in check
