"""The best setting for a node: a short scan of threads, batch size and precision with the particle-flow workload."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clew import settings
from clew.bench.workload.config import WorkloadConfig, check_devices, devices_per_copy
from clew.bench.workload.environment import environment
from clew.bench.workload.event_data import make_event_data
from clew.bench.workload.results import WorkloadResult
from clew.bench.workload.runner import WorkloadRunner
from clew.bench.workload.training_run import WorkloadRun
from clew.core.config import to_data
from clew.core.files import write_text
from clew.errors import WorkerError
from clew.runs import Run
from clew.runs.environment import allowed_cores

BATCHES = (1, 2, 4, 8, 16, 32, 64)
PRECISIONS = ("float32", "bf16")
_BATCH = 4
_BESIDES = 3.0
"""Seconds that the first trial takes besides learning, about; the others as long as the one before."""


@dataclass
class SettingRun:
    """One setting."""

    threads: int
    copies: int
    batch_size: int
    precision: str
    events_per_second: float = 0.0
    """Of all copies together."""
    steps: int = 0
    message: str = ""

    @property
    def setting(self) -> str:
        """In words."""
        copies = f"{self.copies} cop{'ies' if self.copies > 1 else 'y'}"
        return f"{copies} of {self.threads} thread{'s' * (self.threads > 1)}, batch {self.batch_size}, {self.precision}"


@dataclass
class NodeScan:
    """What was tried, and the best of it."""

    trials: list[SettingRun] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    price_per_hour: float | None = None
    untried: list[str] = field(default_factory=list)
    """Settings for which there was no time."""
    kind: str = "node"
    format: int = 1

    @property
    def best(self) -> SettingRun:
        """The fastest.

        Raises:
            WorkerError: none ran.
        """
        good = [trial for trial in self.trials if trial.events_per_second]
        if not good:
            raise WorkerError(f"no setting ran: {self.trials[0].message if self.trials else 'nothing was tried'}")
        return max(good, key=lambda trial: trial.events_per_second)

    @property
    def cost(self) -> float | None:
        """Of a million events at the best setting, in the currency of the price."""
        if self.price_per_hour is None:
            return None
        return self.price_per_hour * 1e6 / (3600 * self.best.events_per_second)

    def save(self, path: Path) -> None:
        """As JSON."""
        told = {**asdict(self), "best": asdict(self.best), "cost_per_million_events": self.cost}
        write_text(path, json.dumps(told, indent=1) + "\n")


def scan_settings(
    config: WorkloadConfig,
    output: Path,
    *,
    seconds: float = 120.0,
    price_per_hour: float | None = None,
    told: Callable[[str, SettingRun | None], None] = lambda note, trial: None,
) -> NodeScan:
    """Try threads a copy (as many copies as then fill the cores), then precisions, then batch sizes, each with the best
    of what was found before. About `seconds` in all, the making of data not counted.

    Raises:
        ConfigError: there are no such devices.
        WorkerError: no setting ran.
    """
    check_devices(config)
    chosen = settings.load_settings(config.recipe, config.given)
    found = make_event_data(
        chosen.recipe, events=config.events, seed=config.seed, output=output, told=lambda note: told(note, None)
    )
    node = NodeScan(environment=environment(), price_per_hour=price_per_hour)
    count = devices_per_copy(config)
    cores = allowed_cores()
    teams = [cores] if count else sorted({cores, *(t for t in (1, cores // 2) if t and cores % t == 0)}, reverse=True)
    sizes = [size for size in BATCHES if size <= config.events]
    sizes = sizes[:: 1 if count else 2]
    first = _first(cores, config)
    planned: list[dict[str, Any]] = [
        *({"threads": threads} for threads in teams),
        *({"precision": precision} for precision in PRECISIONS[1:]),
        *({"batch_size": size} for size in sizes if size != first["batch_size"]),
    ]
    bench = WorkloadRunner(config, output, found, WorkloadResult({}, {}, {}, {}), lambda note: told(note, None))
    begun, besides = time.monotonic(), _BESIDES
    for place, changes in enumerate(planned):
        trial = SettingRun(**{**(_best(node) or first), **changes})
        if count == 0:
            trial.copies = max(1, cores // trial.threads)
        left, step = seconds - (time.monotonic() - begun), _step(node, trial)
        if node.trials and besides + 2 * step > left:
            node.untried.append(trial.setting)
            continue
        told(trial.setting, None)
        since = time.monotonic()
        limit = max(1.0, left / (len(planned) - place) - besides, 1.1 * step)
        learned = _measure(trial, bench, limit)
        besides = max(1.0, time.monotonic() - since - max(limit, learned))
        node.trials.append(trial)
        write_text(output / "node.json", json.dumps(asdict(node), indent=1) + "\n")
        told("", trial)
    node.save(output / "node.json")
    return node


def _first(cores: int, config: WorkloadConfig) -> dict[str, Any]:
    return {"threads": cores, "copies": 1, "batch_size": min(_BATCH, config.events), "precision": PRECISIONS[0]}


def _best(node: NodeScan) -> dict[str, Any]:
    """So far, as a start for the next; nothing where none ran."""
    good = [trial for trial in node.trials if trial.events_per_second]
    best = max(good, key=lambda trial: trial.events_per_second, default=None)
    return {key: getattr(best, key) for key in ("threads", "copies", "batch_size", "precision")} if best else {}


def _step(node: NodeScan, trial: SettingRun) -> float:
    """Seconds of one, about: at the speed of the fastest so far."""
    speeds = [known.events_per_second for known in node.trials if known.events_per_second]
    return trial.copies * trial.batch_size / max(speeds) if speeds else 0.0


def _measure(trial: SettingRun, bench: WorkloadRunner, seconds: float) -> float:
    """Fill in what a trial of so many seconds gave; how long it learned."""
    extra = ("train.epochs=1000", f"train.minutes={seconds / 60}", "train.log_every=1", "train.trace=false")
    changes = {"copies": trial.copies, "threads": trial.threads, "precision": trial.precision}
    own = WorkloadConfig(**{**to_data(bench.config), **changes, "settings": (*bench.config.settings, *extra)})
    title = f"{trial.threads}-{trial.batch_size}-{trial.precision}"
    made = [WorkloadRun(own.seed, copy, f"runs/{title}-{copy}") for copy in range(trial.copies)]
    WorkloadRunner(own, bench.output, bench.material, bench.result, bench.told).run(made, trial.batch_size, title)
    trial.message = next((each.message for each in made if each.message), "")
    if trial.message:
        return 0.0
    speeds = [_speed(Run((bench.output / each.run).absolute())) for each in made]
    trial.events_per_second = round(sum(speed for speed, _, _ in speeds), 4)
    trial.steps = min(steps for _, steps, _ in speeds)
    return max(spent for _, _, spent in speeds)


def _speed(run: Run) -> tuple[float, int, float]:
    """Events a second of the middle step behind the first (others compile and record too), the number of steps, and the
    seconds of all."""
    steps = [record for record in run.history() if record["kind"] == "step"]
    before = [0, *(step["samples"] for step in steps)]
    speeds = [(step["samples"] - seen) / step["seconds"] for seen, step in zip(before, steps, strict=False)]
    return statistics.median(speeds[1:] or speeds), len(steps), sum(step["seconds"] for step in steps)
