"""The same search by Ray Tune: run by benchmarks/tune.py with a Python that has ray, and clew's packages on its path.

    python ray_tune.py SETTINGS RECIPE TRIALS FOLDER RESULT.json

Writes when the search started, and for each trial when its function was entered, its imports were done, it ended.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def objective(config: dict[str, Any]) -> None:
    """One trial: the same training by clew, in a process of Ray."""
    entered = time.time()
    from ray import tune

    import clew
    import clew.training.loop
    from clew.settings import load_settings

    imported = time.time()
    settings = load_settings(config["recipe"]).changed(
        {**config["settings"], "train.optimizer.lr": config["lr"]}, "ray"
    )
    run = clew.train(
        settings.recipe, None, config=settings.train, output=Path(config["folder"]) / f"run-{time.time_ns()}"
    )
    loss = min(record["metrics"]["loss"] for record in run.records(kind="validation"))
    report = {"entered": entered, "imported": imported, "ended": time.time()}
    tune.report({"loss": loss, **report})


def main() -> None:
    """Search, and write the times of all steps."""
    import ray
    from ray import tune
    from ray.tune.search.optuna import OptunaSearch

    settings, recipe, trials, folder, result = sys.argv[1:]
    start = time.time()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    started = time.time()
    space = {
        "lr": tune.loguniform(1e-3, 1e-1),
        "recipe": recipe,
        "settings": json.loads(settings),
        "folder": folder,
    }
    tuner = tune.Tuner(
        tune.with_resources(objective, {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            search_alg=OptunaSearch(seed=1),
            num_samples=int(trials),
            max_concurrent_trials=2,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(storage_path=str(Path(folder).absolute() / "ray"), verbose=0),
    )
    results = tuner.fit()
    each = [dict(one.metrics or {}) for one in results]
    Path(result).write_text(json.dumps({"start": start, "started": started, "trials": each}, default=str))


if __name__ == "__main__":
    main()
