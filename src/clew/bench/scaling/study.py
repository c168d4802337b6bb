"""Measure how training scales: one training per number of workers, on this machine or at a site."""

from __future__ import annotations

import functools
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import psutil
from pydantic import Field, field_validator

from clew.bench.measured_jobs import last_log_line, local_launcher, run_job
from clew.bench.scaling import measurement
from clew.bench.scaling.expectation import LINKS, LinkConfig, expect
from clew.bench.scaling.forecast import forecast
from clew.bench.scaling.measurement import ScalingRun
from clew.bench.scaling.results import ScalingResult
from clew.core.config import Section, to_data
from clew.data.dataset import Dataset
from clew.errors import ConfigError, RunError, WorkerError
from clew.jobs.launchers.launcher import Launcher
from clew.jobs.sites import BatchRequest, load_site, site_launcher
from clew.jobs.task import TrainTask
from clew.runs import Run
from clew.runs.environment import allowed_cores, capture
from clew.settings import load_settings
from clew.training.config import Count, Positive
from clew.training.strategy_table import strategy_traits

Strategy = Literal["allreduce", "sharded", "pipeline", "downpour", "easgd", "gem", "diloco", "backup"]
Size = Annotated[int, Field(ge=1)]
_MAY_CHANGE = ("workers", "repeat", "predict", "links")
"""Settings that may change when a study is resumed."""


class ScaleConfig(Section):
    """The settings of a scaling study."""

    recipe: str
    dataset: str | None = None
    workers: Annotated[tuple[Size, ...], Field(min_length=1)] = (1, 2, 4)
    strategies: Annotated[tuple[Strategy, ...], Field(min_length=1)] = ("allreduce",)
    weak: bool = False
    """Weak scaling: one batch per worker, and as many passes over the data as workers. Else the work is shared."""
    epochs: Annotated[int, Field(ge=1)] = 3
    """The first epoch does not count for the speed if there are several."""
    batch_size: Count | None = None
    """Batch size of all workers together; in weak scaling of each worker. Default: that of the recipe."""
    repeat: Count = 1
    """Trainings per size, with different seeds."""
    threads: Count | None = None
    """Threads per worker, the same at every size. Default on this machine: the cores divided by the largest size."""
    predict: tuple[Size, ...] = ()
    """Sizes to predict. Default: powers of two up to 16 times the largest measured size."""
    links: dict[str, LinkConfig] = LINKS
    """Connections whose effect is expected from the bytes of a step, with assumed values."""
    minutes: Positive = 10.0
    """Time limit per training."""
    on: str | None = None
    """Name of a site; None: this machine."""
    settings: tuple[str, ...] = ()
    """Settings of every training, for example `train.precision=bf16`."""

    @field_validator("workers", "strategies", "predict")
    @classmethod
    def _without_duplicates(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(values))

    @property
    def predicted_sizes(self) -> list[int]:
        """The sizes to predict."""
        largest = max(self.workers)
        return sorted(self.predict) or [2**n for n in range(24) if 2**n <= 16 * largest]


@dataclass(frozen=True)
class ScalingProgress:
    """The progress of a study: trainings done, their total number, and the current one."""

    done: int
    total: int
    run: ScalingRun
    seconds: float = 0.0
    ended: bool = False
    state: str = ""


OnProgress = Callable[[ScalingProgress], None]


def measure_scaling(
    config: ScaleConfig, output: Path, on_progress: OnProgress = lambda progress: None
) -> ScalingResult:
    """Train at every size, one after the other.

    `scale.json` and `scale.html` are written after every training. The same call resumes an interrupted study, also
    with more sizes.

    Args:
        config: The settings of the study.
        output: Folder for the runs and the results.
        on_progress: Called several times per second.

    Raises:
        ConfigError: The settings are not valid.
        RunError: The folder holds something else, or a study with other settings.
        WorkerError: No training succeeded.
    """
    settings = load_settings(config.recipe, config.settings)
    data = Dataset(config.dataset or settings.train.dataset)
    batch_size = config.batch_size or settings.train.batch_size
    if not isinstance(batch_size, int):
        raise ConfigError(f"train.batch_size is {batch_size}: a scaling study needs a number; set --batch-size")
    trainer = _Trainer(config, output, None if config.on is None else load_site(config.on), batch_size)
    result = _open_result(config, output, data)
    seeds = [settings.train.seed + number for number in range(config.repeat)]
    planned = [(s, p, seed) for s in config.strategies for p in sorted(config.workers) for seed in seeds]
    for number, (strategy, workers, seed) in enumerate(planned):
        if any((r.strategy, r.workers, r.seed) == (strategy, workers, seed) and r.blocks for r in result.trainings):
            continue
        run = ScalingRun(strategy, workers, f"runs/{strategy}-{workers}-{seed}", seed, threads=_threads(config))
        result.trainings = [other for other in result.trainings if other.run != run.run]
        progress = functools.partial(ScalingProgress, number, len(planned), run)
        trainer.train(run, lambda seconds, state, now=progress: on_progress(now(seconds, state=state)))  # type: ignore[misc]
        result.trainings.append(run)
        if trainer.site is not None and run.blocks:
            result.conditions |= _site_conditions(Run(output / run.run))
        _save(result, config, output)
        on_progress(ScalingProgress(number + 1, len(planned), run, ended=True))
    if not any(run.blocks for run in result.trainings):
        raise WorkerError(f"no training succeeded: {result.trainings[0].message}")
    _save(result, config, output)
    return result


def _save(result: ScalingResult, config: ScaleConfig, output: Path) -> None:
    from clew.bench.scaling.page import write

    _add_forecasts(result, config)
    result.save(output / "scale.json")
    write(result, output / "scale.html")


def _add_forecasts(result: ScalingResult, config: ScaleConfig) -> None:
    for name in result.strategies:
        runs = [run for run in result.trainings if run.strategy == name]
        weak = config.weak or strategy_traits(name).asynchronous
        result.forecasts[name] = forecast(runs, config.predicted_sizes, weak=weak)
        result.expectations[name] = expect(runs, config.predicted_sizes, config.links, weak=weak)


def _open_result(config: ScaleConfig, output: Path, data: Dataset) -> ScalingResult:
    """Return the result so far, or a new one."""
    now, file = to_data(config), output / "scale.json"
    if file.exists():
        result = ScalingResult.load(file)
        differ = [key for key in now if key not in _MAY_CHANGE and result.config.get(key) != now[key]]
        if result.conditions["data"] != data.manifest.key:
            differ.append("the dataset's content")
        if differ:
            raise RunError(
                f"{output} holds a study with different {', '.join(differ)}; choose another folder with --output"
            )
        result.config = now
        return result
    interrupted = any((output / name).is_dir() for name in ("runs", "jobs"))
    if output.exists() and any(output.iterdir()) and not interrupted:
        raise RunError(f"{output} exists already; choose another folder with --output, or remove it")
    return ScalingResult(now, _conditions(config, data))


def _conditions(config: ScaleConfig, data: Dataset) -> dict[str, Any]:
    machine = capture()
    return {
        "data": data.manifest.key,
        "events": dict(data.splits),
        "where": config.on or "this machine",
        "cores": allowed_cores(),
        "threads": _threads(config),
        "load_before": round(psutil.getloadavg()[0], 2),
        "cpu": machine["cpu"],
        "memory_gb": machine["memory_gb"],
        "packages": machine["packages"],
        "clew": machine["clew"],
        "commit": machine["commit"],
        "when": time.strftime("%Y-%m-%d %H:%M"),
    }


def _site_conditions(run: Run) -> dict[str, Any]:
    """Return the conditions on the machine where a job ran."""
    machine = run.environment()
    return {"cores": machine["cores_allowed"], **{key: machine[key] for key in ("cpu", "memory_gb", "packages")}}


def _threads(config: ScaleConfig) -> int | None:
    if config.threads is not None or config.on is not None:
        return config.threads
    return max(1, allowed_cores() // max(config.workers))


@dataclass(frozen=True)
class _Trainer:
    """Starts the trainings of a study and measures them."""

    config: ScaleConfig
    output: Path
    site: Any
    batch_size: int

    def train(self, measured: ScalingRun, on_progress: Callable[[float, str], None]) -> None:
        """Run one training. A failure is part of the result."""
        run = Run((self.output / measured.run).absolute())
        jobs = self.output.absolute() / "jobs" / run.path.name
        for folder in (run.path, jobs):
            shutil.rmtree(folder, ignore_errors=True)
        chosen = load_settings(self.config.recipe, [*self.config.settings, *self._settings(measured)]).train
        measured.processes, measured.batch_size = chosen.processes, chosen.size
        measured.value_bytes, measured.exchange_interval = chosen.sent_value_bytes, chosen.exchange_interval
        launcher = self._launcher(measured)
        job, state = run_job(launcher, lambda: launcher.start(self._task(measured, run), folder=jobs), on_progress)
        measured.oversubscribed = self._oversubscribed(measured)
        end = run.end() if run.path.exists() else None
        if state != "finished":
            measured.message = str(end["message"]) if end else last_log_line(job) or state
            return
        try:
            measurement.read_measurement(measured, run)
        except RunError as error:
            measured.message = str(error)
        measured.oversubscribed = self._oversubscribed(measured)

    def _launcher(self, measured: ScalingRun) -> Launcher:
        if self.site is None:
            return local_launcher(measured.processes)
        return site_launcher(
            self.site, BatchRequest(name=f"scale-{measured.workers}", workers=measured.processes, cpus=measured.threads)
        )

    def _settings(self, measured: ScalingRun) -> list[str]:
        shared = not self.config.weak or strategy_traits(measured.strategy).asynchronous
        times = measured.workers if self.config.weak else 1
        values = {
            "workers": measured.workers,
            "strategy": measured.strategy,
            "batch_size": self.batch_size * (1 if shared else measured.workers),
            "epochs": self.config.epochs * times,
            "seed": measured.seed,
            "threads": measured.threads,
            "minutes": self.config.minutes,
            "early_stopping": None,
            "target": None,
            "trace": True,
        }
        return [f"train.{name}={json.dumps(value)}" for name, value in values.items()]

    def _task(self, measured: ScalingRun, run: Run) -> TrainTask:
        return TrainTask(
            recipe=self.config.recipe,
            dataset=None if self.config.dataset is None else str(Path(self.config.dataset).absolute()),
            output=str(run.path),
            settings=(*self.config.settings, *self._settings(measured)),
        )

    def _oversubscribed(self, measured: ScalingRun) -> bool:
        if self.site is not None:
            return False  # a scheduler gives each rank its own cores
        if measured.device not in ("", "cpu"):
            import torch

            return measured.workers > torch.accelerator.device_count()
        return measured.processes * (measured.threads or 1) > allowed_cores()
