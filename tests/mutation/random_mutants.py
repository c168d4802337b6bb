"""`python -m tests.mutation.random_mutants`: plant small faults at random; the share that the tests notice, by package.

python -m tests.mutation.random_mutants --count 12 --seed 1 rules     # 12 per file whose path contains `rules`
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path

from tests.mutation.modules import EQUIVALENT, MODULES
from tests.mutation.operators import Mutant, mutants
from tests.mutation.runner import preload, run_tests, source_copy

_SLOWER, _LEAST_SECONDS = 10, 60
"""Tests that take this many times as long as without a fault, and this many seconds, hang."""


def main(arguments: list[str]) -> int:
    """Print every survivor, then the score of each package. Returns 1 if one is under the score it must have."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", help="only files whose path or package contains one of these")
    parser.add_argument("--count", type=int, default=12, help="mutants per file, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--least", type=float, default=0.9, help="the score that every package must reach")
    options = parser.parse_args(arguments)
    preload()
    noticed: Counter[str] = Counter()
    planted: Counter[str] = Counter()
    for package, files in MODULES.items():
        for file, tests in files.items():
            if options.texts and not any(text in f"{package} {file}" for text in options.texts):
                continue
            with source_copy() as source:
                killed, total = _try_file(source, file, tests.split(), options.count, options.seed)
            noticed[package] += killed
            planted[package] += total
    for package in planted:
        print(f"{package}: {noticed[package]} of {planted[package]} noticed, {noticed[package] / planted[package]:.0%}")
    return int(any(noticed[package] < options.least * planted[package] for package in planted))


def _try_file(source: Path, file: str, tests: list[str], count: int, seed: int) -> tuple[int, int]:
    """How many mutants of a file were noticed, and how many were planted."""
    text = (source / "clew" / file).read_text()
    lines = text.splitlines()
    known = EQUIVALENT.get(file, ())
    every = [each for each in mutants(text) if not any(part in lines[each.line - 1] for part in known)]
    chosen = random.Random(f"{seed} {file}").sample(every, min(count, len(every)))
    started = time.monotonic()
    sound = run_tests(source, tests, limit=1000)
    if sound.message != "pytest ended with 0":
        print(f"{file}: its tests fail without a fault: {sound.message}", flush=True)
        return 0, len(chosen)
    limit = max(_LEAST_SECONDS, _SLOWER * (time.monotonic() - started))
    survivors = [each for each in chosen if not _is_noticed(each, source / "clew" / file, source, tests, limit)]
    for each in survivors:
        print(f"SURVIVED {file}:{each}", flush=True)
    print(f"{file}: {len(chosen) - len(survivors)} of {len(chosen)} (of {len(every)} possible)", flush=True)
    return len(chosen) - len(survivors), len(chosen)


def _is_noticed(mutant: Mutant, file: Path, source: Path, tests: list[str], limit: float) -> bool:
    text = file.read_text()
    file.write_text(mutant.apply(text))
    try:
        outcome = run_tests(source, tests, limit=limit)
    finally:
        file.write_text(text)
    return outcome.message != "pytest ended with 0"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
