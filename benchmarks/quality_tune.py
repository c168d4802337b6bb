"""Does a study of 40 trials on the tracking recipe beat the recipe's own settings, on events that neither has seen?

    python benchmarks/quality_tune.py [--quick] [--json FILE] [--output FOLDER]

A study searches the learning rate, batch size, width, weight decay and schedule for the best validation loss, with as
many epochs per trial as the defaults of the recipe get here, pruned by successive halving. Then the winner and the
defaults are trained on three seeds each and evaluated on events of another generator seed. About 15 minutes on two busy
cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import clew
from clew import Dataset, settings
from clew.recipes.tracking import Tracking
from clew.runs.environment import capture
from clew.tuning.api import local_executor, tune
from clew.tuning.report import write_report
from clew.tuning.study_cost import study_cost

SPACE = {
    "train.optimizer.lr": {"log": [1e-4, 3e-2]},
    "train.batch_size": {"log": [8, 128], "integer": True},
    "train.optimizer.weight_decay": {"log": [1e-6, 1e-2]},
    "train.schedule.name": {"choice": ["constant", "cosine"]},
    "model.hidden": {"choice": [32, 64, 128]},
}
METRICS = ("loss", "efficiency", "purity")


def main() -> int:
    """0 where the winner is better than the defaults on every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="6 trials of 2 epochs on 300 events, one seed")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--output", type=Path, help="keep the study in this folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        results = measure(Path(scratch), arguments.output, quick=arguments.quick)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    for bar in results["bars"]:
        print(f"{'ok    ' if bar['ok'] else 'MISSED'}  {bar['name']}: {bar['value']:+.4f} (bar {bar['bar']:g})")
    return 0 if arguments.quick else int(not all(bar["ok"] for bar in results["bars"]))


def measure(scratch: Path, output: Path | None, *, quick: bool) -> dict[str, Any]:
    """The study, then both contestants on each seed."""
    events, trials, epochs, seeds = (300, 6, 2, 1) if quick else (900, 40, 5, 3)
    train, unseen = (_events(scratch / name, events, seed) for name, seed in (("train", 1), ("unseen", 2)))
    split = {"train": 0.75, "val": 0.25}
    dataset = clew.prepare("tracking", input=[str(train)], output=str(scratch / "dataset"), split=split, workers=1)
    plain = _template(dataset, epochs, trials)
    start = time.perf_counter()
    study = tune(plain, output or scratch / "study", executor=partial(local_executor, plain, oversubscribe=True))
    seconds, spent = time.perf_counter() - start, study_cost(study.snapshot())
    (best,) = study.best()
    print(f"{study.count()} in {seconds:.0f} s; best {best.values[0]:.4f} with {best.settings}")
    print(f"page: {write_report(study)}")
    scores = {
        name: [_score(settings, scratch / f"{name}-{seed}", unseen, seed) for seed in range(1, seeds + 1)]
        for name, settings in (("defaults", plain), ("tuned", plain.changed(best.settings, "the best trial")))
    }
    print(f"{'':10}" + "".join(f"{metric:>22}" for metric in METRICS))
    for name, each in scores.items():
        print(f"{name:10}" + "".join(_words([run[metric] for run in each]) for metric in METRICS))
    worst = {m: [t[m] - d[m] for t, d in zip(scores["tuned"], scores["defaults"], strict=True)] for m in METRICS}
    bars = [
        _bar("loss on unseen events, tuned against defaults, the worst seed", max(worst["loss"]), 0, less=True),
        _bar("efficiency on unseen events, tuned against defaults, the worst seed", min(worst["efficiency"]), 0),
    ]
    conditions = {
        "events": events,
        "trials": trials,
        "epochs": epochs,
        "settings": best.settings,
        "scores": scores,
        "study_seconds": round(seconds),
        "saved_by_pruning_seconds": round(spent.saved),
        "machine": {key: value for key, value in capture().items() if key in ("cpu", "cores", "packages", "python")},
    }
    return {"bars": bars, "conditions": conditions}


def _events(folder: Path, events: int, seed: int) -> Path:
    folder.mkdir(parents=True)
    for _ in Tracking().generate(events, seed, folder):
        pass
    return folder


def _template(dataset: Dataset, epochs: int, trials: int) -> settings.Settings:
    fixed = {"dataset": str(dataset.path), "epochs": epochs, "threads": 1, "trace": False}
    study = {
        "space": SPACE,
        "objective": "val/loss",
        "trials": trials,
        "parallel": 2,
        "sampler": {"name": "tpe", "seed": 1},
        "pruner": {"name": "asha", "warmup": 1},
    }
    return settings.load_settings("tracking").changed(
        {**{f"train.{key}": value for key, value in fixed.items()}, "tune": study}, "here"
    )


def _score(template_settings: settings.Settings, path: Path, unseen: Path, seed: int) -> dict[str, float]:
    run = clew.train(template_settings.recipe, None, config=template_settings.train, output=path, seed=seed)
    tallies = clew.evaluate(run, input=[str(unseen)]).metrics
    return {metric: float(tallies[metric].value) for metric in METRICS}


def _words(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{f'{statistics.fmean(values):.4f}{spread}':>22}"


def _bar(name: str, value: float, bar: float, *, less: bool = False) -> dict[str, Any]:
    return {"name": name, "value": value, "bar": bar, "unit": "", "ok": value < bar if less else value > bar}


if __name__ == "__main__":
    raise SystemExit(main())
