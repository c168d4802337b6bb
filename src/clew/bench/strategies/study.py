"""How long strategies take to the same quality, on hosts whose lines are as slow as wanted."""

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
from clew.bench.strategies.hosts import Host, bits_per_second, hosts, measure_bandwidth
from clew.bench.strategies.page import write
from clew.bench.strategies.results import UNLIMITED, StrategyGoal, StrategyRun, StrategyStudy
from clew.core.config import Section
from clew.data.dataset import Dataset
from clew.errors import ConfigError, RunError, WorkerError
from clew.runs import Run
from clew.runs.async_workers import load_workers as workers_of
from clew.runs.async_workers import sum_workers
from clew.runs.summary import summarize
from clew.settings import load_settings
from clew.training.config import Count, Direction, Positive
from clew.training.strategy_table import STRATEGIES
from clew.version import __version__

MARGIN, LONGER = 0.02, 3
"""Where no target is given, how far below what the reference reached it is (a share of that); and how many times the
reference's epochs others may take."""
Strategy = Literal["allreduce", "diloco", "easgd", "gem", "downpour"]


class StrategyStudyConfig(Section):
    """What is compared."""

    recipe: str
    dataset: str | None = None
    strategies: tuple[Strategy, ...] = ("allreduce", "diloco", "easgd", "gem", "downpour")
    bandwidths: tuple[str, ...] = ("10Gbit", "1Gbit", "100Mbit")
    workers: Annotated[int, Field(ge=2, le=200)] = 2
    epochs: Count | None = None
    """Default: the recipe's."""
    metric: str | None = None
    """Of the validation. Default: the recipe's `train.best.metric`."""
    target: float | None = None
    """Default: what allreduce reaches in these epochs without a limit, less a fiftieth."""
    direction: Direction | None = None
    """Default: that of `train.best` for its metric and for the loss minimize; maximize for others."""
    repeat: Count = 1
    """Trainings of each kind, with `train.seed` and those after it."""
    minutes: Positive = 10.0
    """The longest that a training may take."""
    settings: tuple[str, ...] = ()
    """For every training, as `train.batch_size=100`."""

    @field_validator("bandwidths", "strategies")
    @classmethod
    def _once(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(given))

    @field_validator("bandwidths")
    @classmethod
    def _rates(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for bandwidth in given:
            if bandwidth != UNLIMITED:
                bits_per_second(bandwidth)
        return given


@dataclass(frozen=True)
class StrategyProgress:
    """How far a study is: trainings done, of all, and what is under way."""

    done: int
    total: int
    trial: StrategyRun
    spent: float = 0.0
    over: bool = False


Told = Callable[[StrategyProgress], None]


def compare_strategies(config: StrategyStudyConfig, output: Path, told: Told = lambda progress: None) -> StrategyStudy:
    """Train with every strategy at every bandwidth, one after the other, into `output`.

    `output` gets the runs and, anew after every training, `study.json` and `study.html`. A training that fails is
    noted and the others go on.

    Raises:
        ConfigError: settings do not fit, or there cannot be hosts on this machine.
        RunError: the folder is taken.
        WorkerError: the first training failed.
    """
    recipe = load_settings(config.recipe, config.settings)
    Dataset(config.dataset or recipe.train.dataset)
    goal = _goal(config, recipe.train)
    if output.exists() and any(output.iterdir()):
        raise RunError(f"{output} exists already; name another folder with --output, or remove it")
    epochs = config.epochs or recipe.train.epochs
    made = StrategyStudy(goal, _conditions(config, recipe, epochs))
    seeds = [recipe.train.seed + number for number in range(config.repeat)]
    total = len(config.bandwidths) * len(config.strategies) * len(seeds) + (goal.value is None)
    steps = _Steps(config, output, total, told)
    if goal.value is None:
        with hosts(config.workers + 1) as all:
            first = StrategyRun("allreduce", UNLIMITED, "runs/reference", seeds[0])
            made.reference = _sound(steps.train(all, first, goal, epochs))
        made.goal = _set(goal, made.reference)
        _read(made.reference, output, made.goal, config.workers)
    for bandwidth in config.bandwidths:
        with hosts(config.workers + 1, None if bandwidth == UNLIMITED else bandwidth) as all:
            made.lines[bandwidth] = measure_bandwidth(all[0], all[1])
            for seed, strategy in itertools.product(seeds, config.strategies):
                trial = StrategyRun(strategy, bandwidth, f"runs/{strategy}-{bandwidth}-{seed}", seed)
                steps.train(all, trial, made.goal, LONGER * epochs)
                made.trials.append(trial if made.trials or made.reference else _sound(trial))
                made.conditions |= _size(Run(output / trial.run))
                made.save(output / "study.json")
                write(made, output / "study.html")
    return made


class _Steps:
    """The trainings of a study, one after the other."""

    def __init__(self, config: StrategyStudyConfig, output: Path, total: int, told: Told) -> None:
        self.config, self.output, self.total, self.told = config, output, total, told
        self.done = 0

    def train(self, all: list[Host], trial: StrategyRun, goal: StrategyGoal, epochs: int) -> StrategyRun:
        """Do one; its failure is part of the result."""
        run = Run(self.output / trial.run)
        logs = self.output / "logs" / run.path.name
        logs.mkdir(parents=True)
        team = host_training.HostTeam(all, run, logs, threads=_threads(self.config), patience=self.patience)
        command = self._command(run, trial, goal, epochs)
        begun = time.monotonic()
        try:
            for _ in team.train(command, asynchronous=STRATEGIES[trial.strategy].asynchronous):
                _read(trial, self.output, goal, self.config.workers)
                self.told(StrategyProgress(self.done, self.total, trial, time.monotonic() - begun))
        except WorkerError as error:
            trial.message = str(error)
        _read(trial, self.output, goal, self.config.workers)
        self.done += 1
        self.told(StrategyProgress(self.done, self.total, trial, time.monotonic() - begun, over=True))
        return trial

    @property
    def patience(self) -> float:
        """Seconds after which a training that goes on and on is given up."""
        return 60 * self.config.minutes + 120

    def _command(self, run: Run, trial: StrategyRun, goal: StrategyGoal, epochs: int) -> list[str]:
        config, strategy = self.config, trial.strategy
        settings = [*config.settings, f"train.minutes={config.minutes}", f"train.threads={_threads(config)}"]
        target = json.dumps(asdict(goal) if goal.value is not None else None)
        settings += ["train.early_stopping=null", f"train.target={target}", f"train.seed={trial.seed}"]
        if STRATEGIES[strategy].asynchronous:
            settings.append(f"train.asynchronous.wait_for={config.workers}")
        options = {"--epochs": epochs, "--strategy": strategy, "--output": run.path, "--dataset": config.dataset}
        given = [word for name, value in options.items() if value is not None for word in (name, str(value))]
        return ["train", config.recipe, *given, *(word for each in settings for word in ("--set", each))]


def _goal(config: StrategyStudyConfig, train: Any) -> StrategyGoal:
    metric = config.metric or train.best.metric
    if config.direction is not None:
        return StrategyGoal(metric, config.direction, config.target)
    usual = "minimize" if metric == "loss" else "maximize"
    return StrategyGoal(metric, train.best.direction if metric == train.best.metric else usual, config.target)


def _sound(trial: StrategyRun) -> StrategyRun:
    """The first training: what it fails of, the others would."""
    if trial.message:
        raise WorkerError(f"{trial.strategy} at {trial.bandwidth}: {trial.message}")
    return trial


def _size(run: Run) -> dict[str, int]:
    plan = run.last("plan") or {}
    return {name: plan[name] for name in ("parameters", "samples") if name in plan}


def _set(goal: StrategyGoal, reference: StrategyRun) -> StrategyGoal:
    """The goal with a value: a little less than the reference's last."""
    if not reference.curve:
        raise ConfigError(f"no validation of {reference.run} has a '{goal.metric}'; choose another with --metric")
    last = reference.curve[-1][1]
    less = last - MARGIN * abs(last) if goal.direction == "maximize" else last + MARGIN * abs(last)
    return StrategyGoal(goal.metric, goal.direction, float(f"{less:.4g}"))


def _read(trial: StrategyRun, output: Path, goal: StrategyGoal, workers: int) -> None:
    """Fill in what a run's records say so far."""
    run = Run(output / trial.run)
    if not (run.records_folder / "rank-0.jsonl").exists():
        return
    records = list(run.records())
    joined = [r["time"] for r in records if r["kind"] == "note" and "joined" in r]
    planned = [r["time"] for r in records if r["kind"] == "plan"]
    begun = max(joined[:workers]) if joined else planned[0] if planned else 0.0
    judged = [r for r in records if r["kind"] == "validation" and r["metrics"].get(goal.metric) is not None]
    trial.curve = [(round(r["time"] - begun, 3), r["metrics"][goal.metric]) for r in judged]
    trial.best, trial.epochs = goal.best([value for _, value in trial.curve]), len(judged)
    first = next((place for place, (_, value) in enumerate(trial.curve) if goal.reached(value)), None)
    if first is not None:
        trial.seconds = trial.curve[first][0]
        trial.samples = next(
            (r["samples"] for r in records if r["kind"] == "step" and r["step"] >= judged[first]["step"]), None
        )
    if any(r["kind"] == "end" for r in records):
        summary, found = summarize(run), workers_of(run)
        trial.samples_per_second = round(summary.samples_per_second, 1)
        shares = sum_workers(found.workers).shares if found else summary.shares
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
        "threads": _threads(config),
        "cores": os.cpu_count(),
        "load": round(psutil.getloadavg()[0], 2),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "clew": __version__,
        "when": time.strftime("%Y-%m-%d %H:%M"),
    }
