"""The overhead of a study in addition to its trials, and a comparison with Ray Tune.

    python benchmarks/tune.py [--quick] [--json FILE] [--ray PYTHON] [--device]

Always: the coordinator's own time over 1,000 trivial trials in this process, and the time of one ask of four
parameters with 10,000 trials in the history. `--ray PYTHON`, of an environment with `ray[tune]` and optuna and of the
same version, adds the rival: the same Optuna search over the same trainings on the same two slots, the imports of torch
left out on both sides (not part of CI). `--device` adds trials/hour of small trainings as separate runs on an
accelerator, so many at a time: what packed trials will be measured against.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import clew
from clew import Dataset
from clew.core.config import to_data
from clew.recipes.tracking import Tracking
from clew.runs.environment import capture
from clew.settings import load_settings
from clew.tuning.api import tune
from clew.tuning.config import TuneConfig
from clew.tuning.job_executor import JobExecutor
from clew.tuning.study import Study

HERE = Path(__file__).parent
FOUR = {
    "train.optimizer.lr": {"log": [1e-5, 1e-1]},
    "train.optimizer.weight_decay": {"log": [1e-6, 1e-2]},
    "model.dropout": {"uniform": [0, 0.5]},
    "model.hidden": {"choice": [32, 64, 128]},
}
IMPORTS = """
import time
start = time.time()
import torch, torch._dynamo, torch.distributed, clew.training.loop
print(time.time() - start)
"""


def main() -> int:
    """0 where every bar is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="200 trials, a history of 2,000")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--ray", type=Path, metavar="PYTHON", help="a Python that has ray[tune]")
    parser.add_argument("--device", action="store_true", help="separate runs on an accelerator too")
    arguments = parser.parse_args()
    quick, conditions = arguments.quick, dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        bars = [
            overhead(scratch, 200 if quick else 1000, conditions),
            history(scratch, 2000 if quick else 10_000, conditions),
        ]
        if arguments.ray:
            bars += rival(scratch, arguments.ray, 10 if quick else 24, 2 if quick else 6, conditions)
        if arguments.device:
            separate(scratch, 16 if quick else 64, conditions)
    conditions |= {key: value for key, value in capture().items() if key in ("cpu", "cores", "python", "packages")}
    conditions["load"] = os.getloadavg()
    for bar in bars:
        met = "ok    " if bar["ok"] else "MISSED"
        print(f"{met}  {bar['name']}: {bar['value']:.4g} {bar['unit']} (bar {bar['bar']:g})")
    print({key: value for key, value in conditions.items() if key != "packages"})
    if arguments.json:
        arguments.json.write_text(json.dumps({"bars": bars, "conditions": conditions}, indent=1) + "\n")
    return int(not all(bar["ok"] for bar in bars))


def overhead(scratch: Path, trials: int, conditions: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds per trial of a function that does nothing."""
    study = _study(scratch / "trivial", trials)
    start, cpu = time.perf_counter(), time.process_time()
    tune(study.config, study, function=lambda values: float(values["model.dropout"]))
    each = 1e3 * (time.perf_counter() - start) / trials
    conditions["trivial_cpu_ms"] = round(1e3 * (time.process_time() - cpu) / trials, 2)
    assert study.count()["complete"] == trials
    return _bar(f"a trivial trial in this process, mean of {trials}", each, 20, "ms")


def history(scratch: Path, trials: int, conditions: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of one ask in an open study, after this number of trials."""
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    study, rng = _study(scratch / "long", trials + 20), random.Random(1)
    space: dict[str, Any] = {
        "train.optimizer.lr": FloatDistribution(1e-5, 1e-1, log=True),
        "train.optimizer.weight_decay": FloatDistribution(1e-6, 1e-2, log=True),
        "model.dropout": FloatDistribution(0, 0.5),
        "model.hidden": CategoricalDistribution([32, 64, 128]),
    }
    for _ in range(trials):
        values = {
            "train.optimizer.lr": 10 ** rng.uniform(-5, -1),
            "train.optimizer.weight_decay": 10 ** rng.uniform(-6, -2),
            "model.dropout": rng.uniform(0, 0.5),
            "model.hidden": rng.choice([32, 64, 128]),
        }
        study.optuna_study.add_trial(optuna.trial.create_trial(params=values, distributions=space, value=rng.random()))
    start = time.perf_counter()
    again = Study.open(scratch / "long")
    conditions["open_seconds"] = round(time.perf_counter() - start, 2)
    spent, used = list[float](), list[float]()
    for _ in range(12):
        start, cpu = time.perf_counter(), time.process_time()
        trial = again.ask("me")
        spent.append(1e3 * (time.perf_counter() - start))
        used.append(1e3 * (time.process_time() - cpu))
        assert trial is not None
        again.tell(trial.number, rng.random())
    conditions["ask_ms"], conditions["ask_cpu_ms"] = [round(each) for each in spent], [round(each) for each in used]
    return _bar(f"an ask of 4 parameters behind {trials:,} trials, 25th percentile", _quartile(spent), 250, "ms")


def rival(scratch: Path, python: Path, trials: int, turns: int, conditions: dict[str, Any]) -> list[dict[str, Any]]:
    """Trials per hour once both slots are busy, and seconds to the first trial, by clew and by Ray Tune in turns. The
    machine has other load: each side counts by the least disturbed quarter of its rounds."""
    settings = {"train.dataset": str(_dataset(scratch).path), "train.epochs": 8, "train.threads": 1, "model.hidden": 16}
    rounds = [_round(scratch, python, settings, trials, number) for number in range(turns)]
    conditions["rival"] = rounds
    print(f"{'':8}{'trials/hour':>14}{'first trial, s':>16}")
    for name in ("clew", "ray"):
        for each in rounds:
            print(f"{name:8}{each[name]['per_hour']:>14,.0f}{each[name]['first']:>16.2f}")
    rates = {name: np.percentile([each[name]["per_hour"] for each in rounds], 75) for name in ("clew", "ray")}
    firsts = {name: _quartile([each[name]["first"] for each in rounds]) for name in ("clew", "ray")}
    ratio = float(rates["clew"] / rates["ray"])
    report = {"name": f"trials/hour against Ray Tune, quartiles of {turns}", "value": ratio, "bar": 1, "unit": "x"}
    return [
        {**report, "ok": ratio >= 1},
        _bar(
            f"time to the first trial against Ray Tune's, quartiles of {turns}", firsts["clew"] / firsts["ray"], 1, "x"
        ),
    ]


def _round(scratch: Path, python: Path, settings: dict[str, Any], trials: int, number: int) -> dict[str, Any]:
    """Both, one after the other."""
    return {
        "clew": _clew(scratch / f"clew-{number}", settings, trials),
        "ray": _ray(scratch / f"ray-{number}", python, settings, trials),
    }


def _clew(folder: Path, settings: dict[str, Any], trials: int) -> dict[str, float]:
    study = {
        "space": {"train.optimizer.lr": {"log": [1e-3, 1e-1]}},
        "trials": trials,
        "sampler": {"name": "tpe", "seed": 1},
    }
    template = load_settings("tracking").changed({**settings, "tune": {**study, "parallel": 2}}, "here")
    (folder.parent / f"{folder.name}.json").write_text(json.dumps(template.data))  # JSON is YAML
    yaml = (folder.parent / f"{folder.name}.json").rename(folder.parent / f"{folder.name}.yaml")
    imports = float(subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True).stdout)
    start = time.time()
    command = [
        sys.executable,
        "-c",
        "from clew.cli.main import run; run()",
        "tune",
        "run",
        str(yaml),
        "--output",
        str(folder),
    ]
    subprocess.run([*command, "--oversubscribe"], check=True, stdout=subprocess.DEVNULL)
    runs = [clew.Run(path) for path in sorted((folder / "trials").glob("trial-*"))]
    starts = [(run.last("start") or {})["time"] for run in runs]
    return _rates(start, starts, [(run.end() or {})["time"] for run in runs], imports)


def _ray(folder: Path, python: Path, settings: dict[str, Any], trials: int) -> dict[str, float]:
    folder.mkdir()
    packages = Path(np.__file__).parent.parent
    path = os.pathsep.join([str(Path(clew.__file__).parent.parent), str(packages)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    words = [json.dumps(settings), "tracking", str(trials), str(folder), str(folder / "result.json")]
    command = [str(python), str(HERE / "rivals" / "ray_tune.py"), *words]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    report = json.loads((folder / "result.json").read_text())
    first = min(report["trials"], key=lambda each: each["imported"])
    imports = first["imported"] - first["entered"]
    return _rates(
        report["start"], [e["imported"] for e in report["trials"]], [e["ended"] for e in report["trials"]], imports
    )


def _rates(start: float, starts: list[float], ends: list[float], imports: float) -> dict[str, float]:
    """Seconds to the first trial without imports; trials per hour after the first two, which import."""
    order = sorted(ends)
    hourly = 3600 * (len(order) - 2) / (order[-1] - order[1])
    return {"first": max(min(starts) - start - imports, 0.0), "per_hour": hourly, "imports": imports}


def separate(scratch: Path, trials: int, conditions: dict[str, Any]) -> None:
    """Trials per hour as separate runs that share a device, several at a time."""
    from clew.jobs.launchers.launcher import Slot

    settings = {"train.dataset": str(_dataset(scratch).path), "train.epochs": 3, "train.threads": 1, "model.hidden": 16}
    trials_per_hour = {}
    for parallel in (1, 4, 8, 16):
        tuned = {"space": {"train.optimizer.lr": {"log": [1e-3, 1e-1]}}, "trials": trials, "sampler": "random"}
        template = load_settings("tracking").changed({**settings, "tune": tuned}, "here")
        rooms = [Slot()] * parallel
        start = time.perf_counter()
        path = scratch / f"separate-{parallel}"
        tune(
            template,
            path,
            executor=lambda study, template=template, rooms=rooms: JobExecutor(study.folder, template, rooms),  # type: ignore[misc]
        )
        trials_per_hour[parallel] = round(3600 * trials / (time.perf_counter() - start))
        device = clew.Run(path / "trials" / "trial-0000").last("plan") or {}
        print(
            f"separate runs, {parallel} at a time on {device.get('device')}: {trials_per_hour[parallel]:,} trials/hour",
            flush=True,
        )
    conditions["separate_per_hour"] = trials_per_hour


def _dataset(scratch: Path) -> Dataset:
    if not (scratch / "dataset").exists():
        (scratch / "events").mkdir()
        for _ in Tracking().generate(200, 1, scratch / "events"):
            pass
    return clew.prepare("tracking", input=[str(scratch / "events")], output=str(scratch / "dataset"), workers=1)


def _study(path: Path, trials: int) -> Study:
    config = TuneConfig.model_validate({"space": FOUR, "trials": trials, "sampler": {"name": "tpe", "seed": 1}})
    return Study.create(path, {"tune": to_data(config)}, config)


def _quartile(values: list[float]) -> float:
    """The machine has other load, which is left out."""
    return float(np.percentile(values, 25))


def _bar(name: str, value: float, bar: float, unit: str) -> dict[str, Any]:
    return {"name": name, "value": value, "bar": bar, "unit": unit, "ok": value <= bar}


if __name__ == "__main__":
    raise SystemExit(main())
