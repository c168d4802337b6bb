"""`python -m tests.mutation [TEXT ...]`: plant every bug (whose name or file contains a text) and run its tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutation.bug import Bug
from tests.mutation.planted import BUGS

ROOT = Path(__file__).parents[2]
_FAILED = 1
"""The exit code of pytest when tests ran and some failed."""


def main(texts: list[str]) -> int:
    """Return 1 if a bug survives or cannot be planted."""
    chosen = [bug for bug in BUGS if not texts or any(text in f"{bug.name} {bug.file}" for text in texts)]
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        source = Path(shutil.copytree(ROOT / "src", Path(folder) / "src"))
        for bug in chosen:
            started = time.monotonic()
            message = _notice(bug, source)
            survivors += not message.startswith("noticed")
            print(f"{message} ({time.monotonic() - started:.0f} s): {bug.file}: {bug.name}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} bugs are noticed")
    return int(bool(survivors))


def _notice(bug: Bug, source: Path) -> str:
    """Plant a bug in the copy of the source, run its tests, remove it, and return what happened."""
    file = source / "clew" / bug.file
    text = file.read_text()
    if text.count(bug.before) != 1:
        return "MOVED: its text does not occur once"
    file.write_text(text.replace(bug.before, bug.after))
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()
    try:
        tests = [f"tests/{test}" for test in bug.tests.split()]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "--tb=no",
            "-rfE",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            *tests,
        ]
        environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    finally:
        file.write_text(text)
    if run.returncode != _FAILED:
        return f"SURVIVED: pytest ended with {run.returncode}"
    lines = [line for line in run.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return f"noticed by {lines[0].split()[1] if lines else 'an error'}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
