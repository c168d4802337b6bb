"""Does every strategy, with its defaults, reach the quality of one process?

MNIST-5k (784-100-10) and jet images (a small CNN), four workers, batches of 50, Adam; every strategy and one process
are trained on the same split, seed by seed, for so many epochs that none of them improves any more.
Compared is the validation accuracy over the best of the ten tenths of the epochs, in pairs of equal seeds. (The best of
all epochs would favour the noisiest accuracy. The last tenth would punish early convergence: on jet images those that
average get three times the epochs, reach the result of one process after a third of them, and then overfit: diloco
0.9115 after four tenths, 0.886 at the end, its loss risen from 0.24 to 0.64.)
Stated is how many epochs each needed to come within half a percent of where one process comes. Quality does not depend
on the load of the machine; times are not taken.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from _contest import Sheet, main, options
from _pictures import digits, jets

import clew
from clew import Run

HERE = Path(__file__).parent
STRATEGIES = ("downpour", "easgd", "gem", "diloco", "backup")
TASKS = {"digits": (digits, "narrow", 100), "jet images": (jets, "images", 60)}
LONGER = {"easgd": 3, "diloco": 3, "backup": 3}
"""Where four workers average, each makes a quarter of the steps: the factor for their epochs."""
NEAR = 0.005


def split(x: Any, y: Any, seed: int) -> tuple[Any, Any]:
    order = np.random.default_rng(seed).permutation(len(y))
    cut = len(y) // 5
    return (x[order[cut:]], y[order[cut:]]), (x[order[:cut]], y[order[:cut]])


def train(task: str, strategy: str, seed: int, output: str, epochs: int) -> None:
    load, model, _ = TASKS[task]
    training, held = split(*load(), seed)
    strategy_settings: dict[str, Any] = {} if strategy == "alone" else {"strategy": strategy, "workers": 4}
    clew.train(
        f"{HERE / '_pictures.py'}:{model}",
        training,
        held,
        loss="cross_entropy",
        output=output,
        best={"metric": "accuracy", "direction": "maximize"},
        optimizer={"lr": 1e-3},
        epochs=epochs,
        batch_size=50,
        threads=1,
        seed=seed,
        trace=False,
        monitor_seconds=None,
        **strategy_settings,
    )


def curve(run: Run) -> list[float]:
    """The validation accuracy of every epoch."""
    return [record["metrics"]["accuracy"] for record in run.records(kind="validation")]


class Trainings:
    """Trainings in separate processes, a few at a time; finished ones in the folder are not repeated."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self._folder, self._pool = folder, ThreadPoolExecutor(jobs)

    def curves(self, task: str, strategy: str, seeds: Iterable[int], epochs: int) -> list[list[float]]:
        """The validation accuracies of every seed."""
        return list(self._pool.map(lambda seed: self._curve(task, strategy, seed, epochs), seeds))

    def _curve(self, task: str, strategy: str, seed: int, epochs: int) -> list[float]:
        output = self._folder / f"{task}-{strategy}-{seed}".replace(" ", "-")
        cached = output.with_suffix(".json")
        if not cached.exists():
            command = json.dumps([task, strategy, seed, str(output), epochs])
            subprocess.run([sys.executable, __file__, "--one", command], check=True, stdout=subprocess.DEVNULL)
            cached.write_text(json.dumps(curve(Run.open(output))))
        return list(json.loads(cached.read_text()))


def reached(accuracies: list[float]) -> float:
    """The final accuracy: the mean over the best tenth of the epochs."""
    return max(float(part.mean()) for part in np.array_split(accuracies, 10) if len(part))


def needed(accuracies: list[float], goal: float) -> float:
    """Epochs until the accuracy is reached; NaN if it never is."""
    return next((float(number) for number, value in enumerate(accuracies, 1) if value >= goal), np.nan)


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    seeds = range(2 if arguments.quick else arguments.seeds)
    folder = arguments.folder or folder
    folder.mkdir(parents=True, exist_ok=True)
    trainings, everything = Trainings(folder, arguments.jobs), dict[str, Any]()
    for task, (_, _, epochs) in TASKS.items():
        if arguments.task not in (None, task):
            continue
        epochs = 6 if arguments.quick else epochs
        strategies = arguments.only or STRATEGIES
        lengths = {"alone": epochs, **{each: epochs * LONGER.get(each, 1) for each in strategies}}
        with ThreadPoolExecutor(len(lengths)) as pool:
            futures = {name: pool.submit(trainings.curves, task, name, seeds, long) for name, long in lengths.items()}
        results = {name: each.result() for name, each in futures.items()}
        everything |= {f"{task}, {name}": each for name, each in results.items()}
        compare(sheet, task, results.pop("alone"), results)
    return {"workers": 4, "batch": 50, "seeds": len(seeds), "curves": everything}


def compare(sheet: Sheet, task: str, alone: list[list[float]], others: Mapping[str, list[list[float]]]) -> None:
    sheet.state(f"{task}: one process", float(np.mean([reached(each) for each in alone])), "accuracy")
    goals = [reached(each) - NEAR for each in alone]
    goal_epochs = [needed(each, goal) for each, goal in zip(alone, goals, strict=True)]
    sheet.state(f"{task}: one process, epochs needed", float(np.mean(goal_epochs)), "epochs")
    for strategy, trained in others.items():
        pairs = np.array([reached(curve) - reached(reference) for curve, reference in zip(trained, alone, strict=True)])
        error = max(float(pairs.std(ddof=1) / np.sqrt(len(pairs))), 1e-9)
        sheet.state(f"{task}: {strategy}", float(np.mean([reached(each) for each in trained])), "accuracy")
        name = f"{task}: {strategy} against one process"
        sheet.bar(name, float(pairs.mean() / error), -2.0, "standard errors")
        epochs_needed = [needed(each, goal) for each, goal in zip(trained, goals, strict=True)]
        sheet.state(f"{task}: {strategy}, epochs needed", float(np.mean(epochs_needed)), "epochs")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        train(*json.loads(sys.argv[2]))
        sys.exit()
    parser = options(__doc__, "two seeds, a few epochs: shows that it runs, not how good anything is")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=STRATEGIES, help="these strategies alone")
    parser.add_argument("--task", choices=TASKS, help="this task alone")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time, each of up to five processes")
    parser.add_argument("--folder", type=Path, help="keep trained runs here, and continue from them")
    sys.exit(main(measure, parser))
