"""`python -m tests.fuzz`: many inputs, by hand. Prints one row per target, and every bad end with some inputs."""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.harness import BAD, TARGETS, fuzz


def main() -> int:
    """Run the targets that were named; the exit code is 1 if an input ended badly."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="Default: all.")
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="Number of the first input.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    kinds = ("read", "refused", *BAD)
    print("| target | inputs |", " | ".join(kinds), "| seconds |", flush=True)
    is_bad = False
    for name in options.target or TARGETS:
        began, numbers = time.monotonic(), range(options.first, options.first + options.inputs)
        outcome = fuzz(TARGETS[name], numbers, seed=options.seed, workers=options.workers)
        counts = " | ".join(str(outcome.counts[kind]) for kind in kinds)
        print(f"| {name} | {len(numbers)} | {counts} | {time.monotonic() - began:.0f} |", flush=True)
        for detail, examples in sorted(outcome.bad.items(), key=lambda item: -len(item[1])):
            print(f"  {len(examples)} x {detail}: inputs {examples[:3]}", flush=True)
            is_bad = True
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
