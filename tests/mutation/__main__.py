"""`python -m tests.mutation [TEXT ...]`: plant every bug (whose name or file contains a text) and run its tests.

With `--list` the bugs are only printed, each with its file and its tests.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.mutation.bug import Bug
from tests.mutation.planted import BUGS
from tests.mutation.planter import Target, results
from tests.mutation.runner import preload, run_tests, source_copy

_LIMIT = 600.0
"""Seconds for the tests of one bug that are run alone."""


def main(texts: list[str]) -> int:
    """Return 1 if a bug survives or cannot be planted."""
    words = [text for text in texts if text != "--list"]
    chosen = [bug for bug in BUGS if not words or any(word in f"{bug.name} {bug.file}" for word in words)]
    if "--list" in texts:
        print("\n".join(f"{bug.name}: {bug.file}: {bug.tests}" for bug in chosen))
        return 0
    noticed = 0
    preload()
    with source_copy() as source:
        targets = [
            Target("planted", bug.file, tuple(bug.tests.split()), (bug,)) for bug in chosen if not bug.has_moved()
        ]
        found = {(file, name): is_noticed for file, name, is_noticed in results(source, targets)}
        for bug in chosen:
            message = "noticed" if found.get((bug.file, bug.name)) else _try_alone(bug, source)
            noticed += message == "noticed"
            print(f"{message}: {bug.file}: {bug.name}", flush=True)
    print(f"{noticed} of {len(chosen)} bugs are noticed")
    return int(noticed < len(chosen))


def _try_alone(bug: Bug, source: Path) -> str:
    """Run the tests of a bug in a process that imports the file with the bug: it may be in code that runs at import."""
    if bug.has_moved():
        return "MOVED, its text does not occur once"
    file = source / "clew" / bug.file
    text = file.read_text()
    file.write_text(bug.apply(text))
    outcome = run_tests(source, bug.tests.split(), limit=_LIMIT)
    file.write_text(text)
    return "noticed" if outcome.noticed else f"SURVIVED, {outcome.message}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
