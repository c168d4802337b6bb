"""`python -m tests.mutation.random_mutants`: plant small faults at random; the share that the tests notice, by package.

python -m tests.mutation.random_mutants --count 12 --seed 1 rules     # 12 per file whose path contains `rules`
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.mutation.modules import EQUIVALENT, MODULES
from tests.mutation.operators import Mutant, mutants
from tests.mutation.planter import Target, results
from tests.mutation.runner import preload, source_copy


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
    with source_copy() as source:
        targets = list(_targets(source, options.texts, options.count, options.seed))
        for name, mutant, is_noticed in results(source, targets, ["-p", "tests.quick"]):
            noticed[name] += is_noticed
            if not is_noticed:
                print(f"SURVIVED {name}:{mutant}" if mutant else f"fails without a fault: {name}", flush=True)
    packages = dict.fromkeys(target.package for target in targets)
    scores = [_print_score(package, targets, noticed, options) for package in packages]
    return int(min(scores) < options.least)


def _targets(source: Path, texts: Sequence[str], count: int, seed: int) -> Iterator[Target]:
    """The files whose path or package contains one of the texts, each with some of its mutants."""
    for package, modules in MODULES.items():
        for file, tests in modules.items():
            if texts and not any(text in f"{package} {file}" for text in texts):
                continue
            text = (source / "clew" / file).read_text()
            lines = text.splitlines()
            every = [each for each in mutants(text) if not _is_equivalent(each, lines[each.line - 1], file)]
            chosen = random.Random(f"{seed} {file}").sample(every, min(count, len(every)))
            yield Target(package, file, tuple(tests.split()), tuple(chosen))


def _is_equivalent(mutant: Mutant, line: str, file: str) -> bool:
    """Whether it is listed as a fault that changes nothing that can be observed."""
    fault = str(mutant).partition(": ")[2]
    return any(part in line and known in ("", fault) for part, known in EQUIVALENT.get(file, ()))


def _print_score(package: str, targets: Sequence[Target], noticed: Counter[str], options: argparse.Namespace) -> float:
    """Print the files of a package and its row of the table. Returns its share of noticed mutants."""
    chosen = [target for target in targets if target.package == package]
    for target in chosen:
        print(f"{target.file}: {noticed[target.file]} of {len(target.mutants)}")
    total = sum(len(target.mutants) for target in chosen)
    score = sum(noticed[target.file] for target in chosen)
    print("| package | files | seed, mutants per file | mutants | noticed | share |")
    columns = (package, len(chosen), f"{options.seed}, {options.count}", total, score, f"{score / total:.0%}")
    print(f"| {' | '.join(map(str, columns))} |", flush=True)
    return score / total


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
