"""The best setting for a node: a short scan of threads, precision and batch size with a workload."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from clew import settings
from clew.bench.results import BenchResult
from clew.bench.workload.config import WorkloadConfig, check_devices, devices_per_copy
from clew.bench.workload.environment import environment
from clew.bench.workload.event_data import EventRequest, make_event_data
from clew.bench.workload.results import WorkloadResult
from clew.bench.workload.runner import WorkloadRunner
from clew.bench.workload.training_run import WorkloadRun
from clew.core.config import to_data
from clew.errors import WorkerError
from clew.runs import Run
from clew.runs.environment import allowed_cores

BATCHES = (1, 2, 4, 8, 16, 32, 64)
PRECISIONS = ("float32", "bf16")
_BATCH = 4
_OVERHEAD_SECONDS = 3.0
"""Approximate time of the first run without training. Later runs are assumed to take as long as the one before."""


@dataclass
class SettingRun:
    """One setting and its speed."""

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
        """The setting as text."""
        copies = f"{self.copies} cop{'ies' if self.copies > 1 else 'y'}"
        return f"{copies} of {self.threads} thread{'s' * (self.threads > 1)}, batch {self.batch_size}, {self.precision}"


@dataclass
class NodeScan(BenchResult):
    """The settings that were measured."""

    kind: ClassVar[str] = "node"

    trials: list[SettingRun] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    price_per_hour: float | None = None
    untried: list[str] = field(default_factory=list)
    """Settings that were not measured for lack of time."""

    @property
    def best(self) -> SettingRun:
        """The fastest setting.

        Raises:
            WorkerError: No setting ran.
        """
        successful = [run for run in self.trials if run.events_per_second]
        if not successful:
            raise WorkerError(f"no setting ran: {self.trials[0].message if self.trials else 'nothing was tried'}")
        return max(successful, key=lambda run: run.events_per_second)

    def best_setting(self) -> dict[str, Any]:
        """Return the fastest setting so far as a dictionary; empty if none ran."""
        if not any(run.events_per_second for run in self.trials):
            return {}
        return {name: getattr(self.best, name) for name in ("threads", "copies", "batch_size", "precision")}

    @property
    def cost(self) -> float | None:
        """Cost of a million events at the best setting, in the currency of the price."""
        if self.price_per_hour is None:
            return None
        return self.price_per_hour * 1e6 / (3600 * self.best.events_per_second)

    def derived(self) -> dict[str, Any]:
        if not self.best_setting():
            return {}
        return {"best": asdict(self.best), "cost_per_million_events": self.cost}


def scan_settings(
    config: WorkloadConfig,
    output: Path,
    *,
    seconds: float = 120.0,
    price_per_hour: float | None = None,
    notify: Callable[[str, SettingRun | None], None] = lambda text, run: None,
) -> NodeScan:
    """Measure threads per copy, then precisions, then batch sizes, each with the best of the earlier settings.

    Args:
        config: The workload.
        output: Folder for node.json and the runs.
        seconds: Approximate duration of the scan, without the generation of events.
        price_per_hour: Price of the node, for the cost of a million events.
        notify: Called with a line of text about the progress, and with every setting that was measured.

    Raises:
        ConfigError: There are too few devices.
        WorkerError: No setting ran.
    """
    check_devices(config)
    recipe = settings.load_settings(config.recipe, config.recipe_settings).recipe
    request = EventRequest(config.events, config.seed)
    data = make_event_data(recipe, request, output, lambda text: notify(text, None))
    scan = NodeScan(environment=environment(), price_per_hour=price_per_hour)
    runner = WorkloadRunner(config, output, data, WorkloadResult({}, {}, {}, {}), lambda text: notify(text, None))
    cores, has_devices = allowed_cores(), devices_per_copy(config) > 0
    first: dict[str, Any] = {
        "threads": cores,
        "copies": 1,
        "batch_size": min(_BATCH, config.events),
        "precision": PRECISIONS[0],
    }
    planned = _planned_changes(config, cores, first["batch_size"])
    start, overhead = time.monotonic(), _OVERHEAD_SECONDS
    for index, changes in enumerate(planned):
        run = SettingRun(**{**(scan.best_setting() or first), **changes})
        if not has_devices:
            run.copies = max(1, cores // run.threads)
        remaining, step = seconds - (time.monotonic() - start), _step_seconds(scan, run)
        if scan.trials and overhead + 2 * step > remaining:
            scan.untried.append(run.setting)
            continue
        notify(run.setting, None)
        run_start = time.monotonic()
        limit = max(1.0, remaining / (len(planned) - index) - overhead, 1.1 * step)
        trained = _measure(run, runner, limit)
        overhead = max(1.0, time.monotonic() - run_start - max(limit, trained))
        scan.trials.append(run)
        scan.save(output / "node.json")
        notify("", run)
    assert scan.best  # raises if no setting ran
    scan.save(output / "node.json")
    return scan


def _planned_changes(config: WorkloadConfig, cores: int, first_batch: int) -> list[dict[str, Any]]:
    """Return the settings to try, each as a change of the best one so far."""
    count = devices_per_copy(config)
    threads = [cores] if count else sorted({cores, *(t for t in (1, cores // 2) if t and cores % t == 0)}, reverse=True)
    sizes = [size for size in BATCHES if size <= config.events][:: 1 if count else 2]
    return [
        *({"threads": number} for number in threads),
        *({"precision": precision} for precision in PRECISIONS[1:]),
        *({"batch_size": size} for size in sizes if size != first_batch),
    ]


def _step_seconds(scan: NodeScan, run: SettingRun) -> float:
    """Return the approximate duration of one step, at the speed of the fastest setting so far."""
    speeds = [other.events_per_second for other in scan.trials if other.events_per_second]
    return run.copies * run.batch_size / max(speeds) if speeds else 0.0


def _measure(run: SettingRun, runner: WorkloadRunner, seconds: float) -> float:
    """Train with a setting for about this long, fill in the speed, and return the seconds of training."""
    extra = ("train.epochs=1000", f"train.minutes={seconds / 60}", "train.log_every=1", "train.trace=false")
    changes = {"copies": run.copies, "threads": run.threads, "precision": run.precision}
    config = WorkloadConfig(**{**to_data(runner.config), **changes, "settings": (*runner.config.settings, *extra)})
    title = f"{run.threads}-{run.batch_size}-{run.precision}"
    copies = [WorkloadRun(config.seed, copy, f"runs/{title}-{copy}") for copy in range(run.copies)]
    replace(runner, config=config).run(copies, run.batch_size, title)
    run.message = next((copy.message for copy in copies if copy.message), "")
    if run.message:
        return 0.0
    speeds = [_speed(Run((runner.output / copy.run).absolute())) for copy in copies]
    run.events_per_second = round(sum(speed for speed, _, _ in speeds), 4)
    run.steps = min(steps for _, steps, _ in speeds)
    return max(spent for _, _, spent in speeds)


def _speed(run: Run) -> tuple[float, int, float]:
    """Return the median events per second of all steps but the first, the number of steps, and their total seconds."""
    steps = [record for record in run.history() if record["kind"] == "step"]
    before = [0, *(step["samples"] for step in steps)]
    speeds = [(step["samples"] - earlier) / step["seconds"] for earlier, step in zip(before, steps, strict=False)]
    return statistics.median(speeds[1:] or speeds), len(steps), sum(step["seconds"] for step in steps)
