"""Compare how long strategies take to the same quality, on virtual hosts with limited bandwidth."""

from __future__ import annotations

import itertools
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import psutil
from pydantic import Field, field_validator

from clew.bench.strategies import host_training
from clew.bench.strategies.hosts import Host, bits_per_second, hosts, measure_bandwidth, measure_round_trip
from clew.bench.strategies.page import write
from clew.bench.strategies.results import UNLIMITED, StrategyGoal, StrategyRun, StrategyStudy
from clew.core.config import Section
from clew.core.metric_direction import Direction, natural_direction
from clew.data.dataset import Dataset
from clew.errors import ConfigError, RunError, WorkerError
from clew.runs import Run
from clew.runs.async_workers import load_workers as workers_of
from clew.runs.async_workers import sum_workers
from clew.runs.summary import summarize
from clew.settings import load_settings
from clew.training.config import Count, Positive
from clew.training.strategy_table import strategy_traits
from clew.version import __version__

MARGIN, LONGER = 0.02, 3
"""Without a target: its distance from the value that the reference reached, as a share of it. And the number of epochs
of the other trainings divided by those of the reference."""
Strategy = Literal["allreduce", "diloco", "easgd", "gem", "downpour"]


class StrategyStudyConfig(Section):
    """The settings of a comparison of strategies."""

    recipe: str
    dataset: str | None = None
    strategies: tuple[Strategy, ...] = ("allreduce", "diloco", "easgd", "gem", "downpour")
    bandwidths: tuple[str, ...] = ("10Gbit", "1Gbit", "100Mbit")
    delay: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Seconds that a packet needs from one host to another, beyond those of this machine."""
    workers: Annotated[int, Field(ge=2, le=200)] = 2
    epochs: Count | None = None
    """Default: that of the recipe."""
    metric: str | None = None
    """Metric of the validation. Default: `train.best.metric` of the recipe."""
    target: float | None = None
    """Value to reach. Default: what allreduce reaches in these epochs without a bandwidth limit, minus 2%."""
    direction: Direction | None = None
    """Default: that of `train.best` for its metric; else what the name of the metric tells, or maximize."""
    repeat: Count = 1
    """Trainings per strategy and bandwidth, with `train.seed` and the seeds after it."""
    minutes: Positive = 10.0
    """Time limit per training."""
    settings: tuple[str, ...] = ()
    """Settings of every training, for example `train.batch_size=100`."""

    @field_validator("bandwidths", "strategies")
    @classmethod
    def _without_duplicates(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(values))

    @field_validator("bandwidths")
    @classmethod
    def _check_bandwidths(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for bandwidth in values:
            if bandwidth != UNLIMITED:
                bits_per_second(bandwidth)
        return values


@dataclass(frozen=True)
class StrategyProgress:
    """The progress of a study: trainings done, their total number, and the current one."""

    done: int
    total: int
    run: StrategyRun
    seconds: float = 0.0
    ended: bool = False


OnProgress = Callable[[StrategyProgress], None]


def compare_strategies(
    config: StrategyStudyConfig, output: Path, on_progress: OnProgress = lambda progress: None
) -> StrategyStudy:
    """Train with every strategy at every bandwidth, one after the other.

    `study.json` and `study.html` are written after every training. A training that fails is part of the result.

    Args:
        config: The settings.
        output: A new folder for the runs and the results.
        on_progress: Called several times per second.

    Raises:
        ConfigError: The settings are not valid, or virtual hosts cannot be created on this machine.
        RunError: The folder is not empty.
        WorkerError: The first training failed.
    """
    recipe = load_settings(config.recipe, config.settings)
    Dataset(config.dataset or recipe.train.dataset)
    goal = _make_goal(config, recipe.train)
    if output.exists() and any(output.iterdir()):
        raise RunError(f"{output} exists already; choose another folder with --output, or remove it")
    epochs = config.epochs or recipe.train.epochs
    study = StrategyStudy(goal, _conditions(config, recipe, epochs))
    seeds = [recipe.train.seed + number for number in range(config.repeat)]
    total = len(config.bandwidths) * len(config.strategies) * len(seeds) + (goal.value is None)
    trainer = _Trainer(config, output, total, on_progress)
    if goal.value is None:
        with hosts(config.workers + 1) as all:
            first = StrategyRun("allreduce", UNLIMITED, "runs/reference", seeds[0])
            study.reference = _check_first(trainer.train(all, first, goal, epochs))
        study.goal = with_value(goal, study.reference)
        read_run(study.reference, output, study.goal, config.workers)
    for bandwidth in config.bandwidths:
        limit = None if bandwidth == UNLIMITED else bandwidth
        with hosts(config.workers + 1, limit, delay=config.delay) as all:
            study.lines[bandwidth] = measure_bandwidth(all[0], all[1])
            study.conditions.setdefault("round_trip", {})[bandwidth] = measure_round_trip(all[0], all[1])
            for seed, strategy in itertools.product(seeds, config.strategies):
                trial = StrategyRun(strategy, bandwidth, f"runs/{strategy}-{bandwidth}-{seed}", seed)
                trainer.train(all, trial, study.goal, LONGER * epochs)
                study.trials.append(trial if study.trials or study.reference else _check_first(trial))
                study.conditions |= _model_size(Run(output / trial.run))
                study.save(output / "study.json")
                write(study, output / "study.html")
    return study


class _Trainer:
    """Runs the trainings of a study, one after the other."""

    def __init__(self, config: StrategyStudyConfig, output: Path, total: int, on_progress: OnProgress) -> None:
        self.config, self.output, self.total, self.on_progress = config, output, total, on_progress
        self.done = 0

    def train(self, all: list[Host], trial: StrategyRun, goal: StrategyGoal, epochs: int) -> StrategyRun:
        """Run one training. A failure is part of the result."""
        run = Run(self.output / trial.run)
        logs = self.output / "logs" / run.path.name
        logs.mkdir(parents=True)
        team = host_training.HostTeam(all, run, logs, threads=_threads(self.config), time_limit=self.time_limit)
        command = self._command(run, trial, goal, epochs)
        start = time.monotonic()
        try:
            for _ in team.train(command, asynchronous=strategy_traits(trial.strategy).asynchronous):
                read_run(trial, self.output, goal, self.config.workers)
                self.on_progress(StrategyProgress(self.done, self.total, trial, time.monotonic() - start))
        except WorkerError as error:
            trial.message = str(error)
        read_run(trial, self.output, goal, self.config.workers)
        self.done += 1
        self.on_progress(StrategyProgress(self.done, self.total, trial, time.monotonic() - start, ended=True))
        return trial

    @property
    def time_limit(self) -> float:
        """Seconds after which a training is stopped."""
        return 60 * self.config.minutes + 120

    def _command(self, run: Run, trial: StrategyRun, goal: StrategyGoal, epochs: int) -> list[str]:
        config, strategy = self.config, trial.strategy
        settings = [*config.settings, f"train.minutes={config.minutes}", f"train.threads={_threads(config)}"]
        target = json.dumps(asdict(goal) if goal.value is not None else None)
        settings += ["train.early_stopping=null", f"train.target={target}", f"train.seed={trial.seed}"]
        if strategy_traits(strategy).asynchronous:
            settings.append(f"train.asynchronous.wait_for={config.workers}")
        options = {"--epochs": epochs, "--strategy": strategy, "--output": run.path, "--dataset": config.dataset}
        arguments = [word for name, value in options.items() if value is not None for word in (name, str(value))]
        return ["train", config.recipe, *arguments, *(word for each in settings for word in ("--set", each))]


def _make_goal(config: StrategyStudyConfig, train: Any) -> StrategyGoal:
    metric = config.metric or train.best.metric
    if config.direction is not None:
        return StrategyGoal(metric, config.direction, config.target)
    direction = (train.best.direction if metric == train.best.metric else None) or natural_direction(metric)
    return StrategyGoal(metric, direction or "maximize", config.target)


def _check_first(trial: StrategyRun) -> StrategyRun:
    """Raise if the first training failed: the others would fail for the same reason."""
    if trial.message:
        raise WorkerError(f"{trial.strategy} at {trial.bandwidth}: {trial.message}")
    return trial


def _model_size(run: Run) -> dict[str, int]:
    plan = run.last("plan") or {}
    return {name: plan[name] for name in ("parameters", "samples") if name in plan}


def with_value(goal: StrategyGoal, reference: StrategyRun) -> StrategyGoal:
    """Return the goal with a value: 2% worse than the last value of the reference."""
    if not reference.curve:
        raise ConfigError(f"no validation of {reference.run} has a '{goal.metric}'; choose another with --metric")
    last = reference.curve[-1][1]
    less = last - MARGIN * abs(last) if goal.direction == "maximize" else last + MARGIN * abs(last)
    return StrategyGoal(goal.metric, goal.direction, float(f"{less:.4g}"))


def read_run(trial: StrategyRun, output: Path, goal: StrategyGoal, workers: int) -> None:
    """Fill in the measurements from the records of a run so far."""
    run = Run(output / trial.run)
    if not (run.records_folder / "rank-0.jsonl").exists():
        return
    records = list(run.records())
    joined = [r["time"] for r in records if r["kind"] == "note" and "joined" in r]
    planned = [r["time"] for r in records if r["kind"] == "plan"]
    start = max(joined[:workers]) if joined else planned[0] if planned else 0.0
    validations = [r for r in records if r["kind"] == "validation" and r["metrics"].get(goal.metric) is not None]
    trial.curve = [(round(r["time"] - start, 3), r["metrics"][goal.metric]) for r in validations]
    trial.best, trial.epochs = goal.best([value for _, value in trial.curve]), len(validations)
    first = next((index for index, (_, value) in enumerate(trial.curve) if goal.reached(value)), None)
    if first is not None:
        trial.seconds = trial.curve[first][0]
        trial.samples = next(
            (r["samples"] for r in records if r["kind"] == "step" and r["step"] >= validations[first]["step"]), None
        )
    if any(r["kind"] == "end" for r in records):
        summary, async_workers = summarize(run), workers_of(run)
        trial.samples_per_second = round(summary.times.samples_per_second, 1)
        shares = sum_workers(async_workers.workers).shares if async_workers else summary.times.shares
        trial.communicate = round(shares.get("communicate", 0.0), 4)


def _threads(config: StrategyStudyConfig) -> int:
    return max(1, (os.cpu_count() or 1) // config.workers)


def _conditions(config: StrategyStudyConfig, recipe: Any, epochs: int) -> dict[str, Any]:
    return {
        "recipe": config.recipe,
        "dataset": config.dataset or recipe.train.dataset,
        "settings": list(config.settings),
        "workers": config.workers,
        "repeat": config.repeat,
        "batch_size": recipe.train.batch_size,
        "epochs": epochs,
        "minutes": config.minutes,
        "delay": config.delay,
        "threads": _threads(config),
        "cores": os.cpu_count(),
        "load": round(psutil.getloadavg()[0], 2),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "clew": __version__,
        "when": time.strftime("%Y-%m-%d %H:%M"),
    }
