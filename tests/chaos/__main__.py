"""Storms from the command line: a table of faults, and everything that went wrong.

python -m tests.chaos --seed 1 --minutes 10 --json chaos.json
python -m tests.chaos --seed 7 --only "train/kill -9"
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from tests.chaos.faults import Fault
from tests.chaos.scenarios import (
    AcrossHosts,
    Asynchronous,
    Prepare,
    Scenario,
    Service,
    ServiceAcrossHosts,
    Study,
    Train,
    make_inputs,
)
from tests.chaos.storm import Outcome, run_storm, small_disk

SCENARIOS: tuple[type[Scenario], ...] = (Prepare, Train, Asynchronous, AcrossHosts, Study, Service, ServiceAcrossHosts)


def main() -> int:
    """0 if every storm was survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="the first seed; every round takes the next")
    parser.add_argument("--minutes", type=float, default=10, help="no new storm begins after this time")
    parser.add_argument("--only", default="", help="SCENARIO/FAULT, or the beginning of it")
    parser.add_argument("--json", type=Path, help="write all outcomes to this file")
    options = parser.parse_args()
    outcomes = list(_storms(options.seed, 60 * options.minutes, options.only))
    print_table(outcomes)
    if options.json:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n")
    return int(any(outcome.wrong for outcome in outcomes))


def _storms(seed: int, seconds: float, only: str) -> list[Outcome]:
    outcomes: list[Outcome] = []
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        make_inputs(folder)
        known = {
            kind: run_reference(kind, folder) for kind in SCENARIOS if kind.name.startswith(only.partition("/")[0])
        }
        while time.monotonic() < end:
            for kind, fault in _round(known, folder, only, seed):
                if time.monotonic() > end:
                    break
                duration, expected = known[kind]
                with small_disk(folder / "disk", kind.megabytes) as disk:
                    outcome = run_storm(kind(disk, folder), fault, seed, seconds=duration, expected=expected)
                outcomes.append(outcome)
                state = "survived" if not outcome.wrong else f"WRONG: {outcome.wrong}"
                print(f"{kind.name}/{fault.name}, seed {seed}: {outcome.strikes}: {state}", flush=True)
            seed += 1
    return outcomes


def _round(kinds: Iterable[type[Scenario]], folder: Path, only: str, seed: int) -> list[tuple[type[Scenario], Fault]]:
    """Every fault of every scenario once, in an order of the seed: a short run is a sample of everything."""
    storms = [(kind, fault) for kind in kinds for fault in kind(folder, folder).faults()]
    storms = [(kind, fault) for kind, fault in storms if f"{kind.name}/{fault.name}".startswith(only)]
    random.Random(seed).shuffle(storms)
    return [(kind, fault) for kind, fault in storms if not fault.missing()]


def run_reference(kind: type[Scenario], folder: Path) -> tuple[float, object]:
    """Run a scenario without faults. Return how long it lasts, and its result."""
    with small_disk(folder / "disk", kind.megabytes) as disk:
        scenario, start = kind(disk, folder), time.monotonic()
        outcome = run_storm(scenario, Fault(), 0, seconds=0, expected=None)
        duration = time.monotonic() - start
        wrong = [each for each in outcome.wrong if not each.startswith("another result")]  # nothing is expected yet
        assert not wrong, wrong
        result = scenario.result()
    print(f"{kind.name} without faults: {duration:.1f} s", flush=True)
    return duration, result


def print_table(outcomes: list[Outcome]) -> None:
    """Print how often every fault was injected and survived."""
    storms, strikes, lost = Counter[tuple[str, str]](), Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for outcome in outcomes:
        if not outcome.strikes and not outcome.wrong:
            continue  # the command had ended before
        key = outcome.scenario, outcome.fault
        storms[key] += 1
        strikes[key] += len(outcome.strikes)
        lost[key] += bool(outcome.wrong)
    print(f"\n{'scenario':16}{'fault':20}{'storms':>8}{'injected':>10}{'survived':>10}{'lost':>6}")
    for (scenario, fault), count in storms.items():
        key = scenario, fault
        print(f"{scenario:16}{fault:20}{count:>8}{strikes[key]:>10}{count - lost[key]:>10}{lost[key]:>6}")


if __name__ == "__main__":
    sys.exit(main())
