"""`python -m tests.mutation [TEXT ...]`: plant every bug (whose name or file contains a text) and run its tests."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.mutation.bug import Bug
from tests.mutation.planted import BUGS
from tests.mutation.runner import preload, run_tests, source_copy

_LIMIT = 600.0
"""Seconds for the tests of one bug."""


def main(texts: list[str]) -> int:
    """Return 1 if a bug survives or cannot be planted."""
    chosen = [bug for bug in BUGS if not texts or any(text in f"{bug.name} {bug.file}" for text in texts)]
    survivors = 0
    preload()
    with source_copy() as source:
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
    try:
        outcome = run_tests(source, bug.tests.split(), limit=_LIMIT)
    finally:
        file.write_text(text)
    return f"{'noticed by' if outcome.noticed else 'SURVIVED:'} {outcome.message}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
