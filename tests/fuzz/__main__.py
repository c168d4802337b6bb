"""Many inputs, by hand: prints one row per target and every bad end, and writes the inputs that ended badly.

python -m tests.fuzz --inputs 100000 --workers 12 --only root,hdf5 --json fuzz.json --bad bad-inputs
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.fuzz.harness import BAD, SECONDS, TARGETS, Outcome, fuzz

_SAMPLES = 3
"""Inputs that are written for each way to end badly."""


def main() -> int:
    """Run the targets that were named; the exit code is 1 if an input ended badly."""
    options = _options()
    kinds = ("read", "refused", *BAD)
    print("| target | inputs |", " | ".join(kinds), "| seconds |", flush=True)
    results: dict[str, Any] = {}
    for name in options.only or TARGETS:
        began, numbers = time.monotonic(), range(options.first, options.first + options.inputs)
        outcome = fuzz(TARGETS[name], numbers, seed=options.seed, workers=options.workers, seconds=options.seconds)
        seconds = time.monotonic() - began
        results[name] = {"inputs": len(numbers), "seed": options.seed, "seconds": round(seconds, 1)}
        results[name] |= {"counts": outcome.counts, "bad": outcome.bad}
        counts = " | ".join(str(outcome.counts[kind]) for kind in kinds)
        print(f"| {name} | {len(numbers)} | {counts} | {seconds:.0f} |", flush=True)
        _print_bad(outcome)
        if options.bad is not None:
            _write_bad(options.bad, name, outcome)
        if options.json is not None:
            options.json.write_text(json.dumps(results, indent=1) + "\n")
    return int(any(result["bad"] for result in results.values()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_targets, help=f"Targets, with commas between them: {', '.join(TARGETS)}")
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="Number of the first input.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="After this time an input counts as a hang.")
    parser.add_argument("--json", type=Path, help="Write the counts to this file, after every target.")
    parser.add_argument("--bad", type=Path, help="Write some inputs that ended badly to this folder.")
    return parser.parse_args()


def _targets(text: str) -> list[str]:
    names = text.split(",")
    if unknown := sorted(set(names) - set(TARGETS)):
        raise argparse.ArgumentTypeError(f"no such target: {', '.join(unknown)}")
    return names


def _print_bad(outcome: Outcome) -> None:
    for detail, examples in sorted(outcome.bad.items(), key=lambda item: -len(item[1])):
        print(f"  {len(examples)} x {detail}: inputs {examples[:3]}", flush=True)


def _write_bad(folder: Path, name: str, outcome: Outcome) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for numbers in outcome.bad.values():
        for number in numbers[:_SAMPLES]:
            (folder / f"{name}-{number}").write_bytes(outcome.bad_inputs[number])


if __name__ == "__main__":
    sys.exit(main())
