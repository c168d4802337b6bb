"""How fast a training is on how many workers: each size started by a launcher, here or at a site, and measured."""

from __future__ import annotations

import functools
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import psutil
from pydantic import Field, field_validator

from clew.bench.measured_jobs import last_log_line, local_launcher, run_job
from clew.bench.scaling import measurement
from clew.bench.scaling.forecast import Forecast, forecast
from clew.bench.scaling.measurement import ScalingRun
from clew.core.config import Section, to_data
from clew.core.files import write_text
from clew.data.dataset import Dataset
from clew.errors import ConfigError, RunError, WorkerError
from clew.jobs.launchers.launcher import Launcher
from clew.jobs.sites import BatchRequest, load_site, site_launcher
from clew.jobs.task import TrainTask
from clew.runs import Run
from clew.runs.environment import allowed_cores, capture
from clew.settings import load_settings
from clew.training.config import Count, Positive
from clew.training.strategy_table import STRATEGIES

KIND = "scale"
Strategy = Literal["allreduce", "sharded", "pipeline", "downpour", "easgd", "gem", "diloco", "backup"]
Size = Annotated[int, Field(ge=1)]
_MAY_GROW = ("workers", "repeat", "predict")
"""What may differ when a study is gone on with."""


class ScaleConfig(Section):
    """What is measured."""

    recipe: str
    dataset: str | None = None
    workers: Annotated[tuple[Size, ...], Field(min_length=1)] = (1, 2, 4)
    strategies: Annotated[tuple[Strategy, ...], Field(min_length=1)] = ("allreduce",)
    weak: bool = False
    """The work grows with the workers (a batch each, as many passes over the data); else it is shared."""
    epochs: Annotated[int, Field(ge=1)] = 3
    """The first is left out of speeds where there are several."""
    batch_size: Count | None = None
    """Of all workers together, in weak scaling of each; default: the recipe's."""
    repeat: Count = 1
    """Trainings of each size, with other seeds."""
    threads: Count | None = None
    """Of each worker, the same at every size; default here: the cores there are, shared by the largest size."""
    predict: tuple[Size, ...] = ()
    """Sizes to predict; default: powers of two up to 16 times the largest measured."""
    minutes: Positive = 10.0
    """The longest that a training may take."""
    on: str | None = None
    """A site; None: this machine."""
    settings: tuple[str, ...] = ()
    """For every training, as `train.precision=bf16`."""

    @field_validator("workers", "strategies", "predict")
    @classmethod
    def _once(cls, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(given))

    @property
    def wanted(self) -> list[int]:
        """Sizes to predict."""
        most = max(self.workers)
        return sorted(self.predict) or [2**n for n in range(24) if 2**n <= 16 * most]


@dataclass
class ScalingResult:
    """All trainings of a study, and what follows from them."""

    config: dict[str, Any]
    conditions: dict[str, Any]
    trainings: list[ScalingRun] = field(default_factory=list)
    forecasts: dict[str, Forecast] = field(default_factory=dict)
    kind: str = KIND
    format: int = 1

    @property
    def weak(self) -> bool:
        """Whether the work grew with the workers."""
        return bool(self.config["weak"])

    @property
    def strategies(self) -> list[str]:
        """Those measured, in order."""
        return list(dict.fromkeys(each.strategy for each in self.trainings))

    def sizes(self, strategy: str) -> list[int]:
        """Of a strategy, those that were measured."""
        return sorted({each.workers for each in self.trainings if each.strategy == strategy and each.blocks})

    def of(self, strategy: str, workers: int) -> list[ScalingRun]:
        """The trainings of one kind that went well."""
        return [t for t in self.trainings if (t.strategy, t.workers) == (strategy, workers) and t.blocks]

    def speed(self, strategy: str, workers: int) -> float:
        """Events a second, the mean over trainings."""
        found = [each.events_per_second for each in self.of(strategy, workers)]
        return sum(found) / len(found)

    def speedup(self, strategy: str, workers: int) -> float:
        """Against the smallest size of the strategy, taken to be perfect."""
        least = self.sizes(strategy)[0]
        return least * self.speed(strategy, workers) / self.speed(strategy, least)

    def mean(self, strategy: str, workers: int, part: str, key: str) -> float | None:
        """Of `shares` or `loading`, over trainings."""
        found = [getattr(each, part)[key] for each in self.of(strategy, workers) if key in getattr(each, part)]
        return sum(found) / len(found) if found else None

    def filling(self, strategy: str, workers: int) -> float | None:
        """Seconds until all ranks had their samples in memory, the mean over trainings."""
        found = [each.filling for each in self.of(strategy, workers) if each.filling is not None]
        return sum(found) / len(found) if found else None

    def loss(self, strategy: str, workers: int) -> float | None:
        """Of the last validation, the mean over trainings."""
        found = [each.judged[-1][2] for each in self.of(strategy, workers) if each.judged]
        return sum(found) / len(found) if found else None

    def oversubscribed(self, strategy: str, workers: int) -> bool:
        """Whether a size had less than a core, or a device, for each rank."""
        return any(each.oversubscribed for each in self.of(strategy, workers))

    def rows(self) -> list[dict[str, Any]]:
        """Every size of every strategy as plain figures."""
        return [self._row(name, workers) for name in self.strategies for workers in self.sizes(name)]

    def _row(self, name: str, workers: int) -> dict[str, Any]:
        speedup = self.speedup(name, workers)
        return {
            "strategy": name,
            "workers": workers,
            "oversubscribed": self.oversubscribed(name, workers),
            "trainings": len(self.of(name, workers)),
            "events_per_second": round(self.speed(name, workers), 3),
            "each": [round(each.events_per_second, 3) for each in self.of(name, workers)],
            "speedup": round(speedup, 4),
            "efficiency": round(speedup / workers, 4),
            "filling_seconds": self.filling(name, workers),
            "loading_seconds_per_1000_events": self.mean(name, workers, "loading", "mean"),
            "loss": self.loss(name, workers),
            "shares": {part: self.mean(name, workers, "shares", part) for part in measurement.PARTS},
        }

    def save(self, path: Path) -> None:
        """As JSON."""
        write_text(path, json.dumps({**asdict(self), "sizes": self.rows()}, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> ScalingResult:
        """What `save` wrote.

        Raises:
            ConfigError: it is something else.
        """
        try:
            data = json.loads(path.read_text())
            if data["kind"] != KIND or data["format"] != 1:
                raise ValueError(f"kind {data['kind']}, format {data['format']}")
            trainings = [
                ScalingRun(**{**each, "blocks": list(map(tuple, each["blocks"]))}) for each in data["trainings"]
            ]
            forecasts = {name: Forecast(**each) for name, each in data["forecasts"].items()}
            return cls(data["config"], data["conditions"], trainings, forecasts)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: not a result of clew bench scale ({error})") from error


@dataclass(frozen=True)
class ScalingProgress:
    """How far a study is: trainings done, of all, and the one under way."""

    done: int
    total: int
    trained: ScalingRun
    spent: float = 0.0
    over: bool = False
    state: str = ""


Told = Callable[[ScalingProgress], None]


def measure_scaling(config: ScaleConfig, output: Path, told: Told = lambda progress: None) -> ScalingResult:
    """Train at every size, one after the other, into `output`: runs, and anew after every training `scale.json` and
    `scale.html`. What an interrupted study has measured is kept: the same call goes on, also with more sizes.

    Raises:
        ConfigError: settings do not fit.
        RunError: the folder holds something else, or a study of other settings.
        WorkerError: no training went well.
    """
    from clew.bench.scaling.page import write

    given = load_settings(config.recipe, config.settings)
    data = Dataset(config.dataset or given.train.dataset)
    size = config.batch_size or given.train.batch_size
    if not isinstance(size, int):
        raise ConfigError(f"train.batch_size is {size}: a study of sizes needs a number, give --batch-size")
    site = None if config.on is None else load_site(config.on)
    made = _taken_up(config, output, data)
    seeds = [given.train.seed + number for number in range(config.repeat)]
    wanted = [(s, p, seed) for s in config.strategies for p in sorted(config.workers) for seed in seeds]
    total = len(wanted)
    for number, (strategy, workers, seed) in enumerate(wanted):
        if any((t.strategy, t.workers, t.seed) == (strategy, workers, seed) and t.blocks for t in made.trainings):
            continue
        trained = ScalingRun(strategy, workers, f"runs/{strategy}-{workers}-{seed}", seed, threads=_threads(config))
        made.trainings = [t for t in made.trainings if t.run != trained.run]
        at = _Place(config, output, site, size)
        now = functools.partial(ScalingProgress, number, total, trained)
        at.train(trained, lambda spent, state, now=now: told(now(spent, state=state)))  # type: ignore[misc]
        made.trainings.append(trained)
        if site is not None and trained.blocks:
            made.conditions |= _there(Run(output / trained.run))
        _conclude(made, config)
        made.save(output / "scale.json")
        write(made, output / "scale.html")
        told(ScalingProgress(number + 1, total, trained, over=True))
    if not any(each.blocks for each in made.trainings):
        raise WorkerError(f"no training went well: {made.trainings[0].message}")
    _conclude(made, config)
    made.save(output / "scale.json")
    write(made, output / "scale.html")
    return made


def _conclude(made: ScalingResult, config: ScaleConfig) -> None:
    for name in made.strategies:
        own = [each for each in made.trainings if each.strategy == name]
        made.forecasts[name] = forecast(own, config.wanted, weak=config.weak or STRATEGIES[name].asynchronous)


def _taken_up(config: ScaleConfig, output: Path, data: Dataset) -> ScalingResult:
    """The study so far, or a new one."""
    now, file = to_data(config), output / "scale.json"
    if file.exists():
        known = ScalingResult.load(file)
        differ = [key for key in now if key not in _MAY_GROW and known.config.get(key) != now[key]]
        if known.conditions["data"] != data.manifest.key:
            differ.append("the dataset's content")
        if differ:
            raise RunError(f"{output} holds a study with other {', '.join(differ)}; name another folder with --output")
        known.config = now
        return known
    begun = any((output / name).is_dir() for name in ("runs", "jobs"))
    if output.exists() and any(output.iterdir()) and not begun:
        raise RunError(f"{output} exists already; name another folder with --output, or remove it")
    return ScalingResult(now, _conditions(config, data))


def _conditions(config: ScaleConfig, data: Dataset) -> dict[str, Any]:
    seen = capture()
    return {
        "data": data.manifest.key,
        "events": dict(data.splits),
        "where": config.on or "this machine",
        "cores": allowed_cores(),
        "threads": _threads(config),
        "load_before": round(psutil.getloadavg()[0], 2),
        "cpu": seen["cpu"],
        "memory_gb": seen["memory_gb"],
        "packages": seen["packages"],
        "clew": seen["clew"],
        "commit": seen["commit"],
        "when": time.strftime("%Y-%m-%d %H:%M"),
    }


def _there(run: Run) -> dict[str, Any]:
    """What jobs found where they ran."""
    seen = run.environment()
    return {"cores": seen["cores_allowed"], **{key: seen[key] for key in ("cpu", "memory_gb", "packages")}}


def _threads(config: ScaleConfig) -> int | None:
    if config.threads is not None or config.on is not None:
        return config.threads
    return max(1, allowed_cores() // max(config.workers))


@dataclass(frozen=True)
class _Place:
    """Where trainings are started, and how."""

    config: ScaleConfig
    output: Path
    site: Any
    batch_size: int

    def train(self, trained: ScalingRun, told: Callable[[float, str], None]) -> None:
        """Do one; its failure is part of the result."""
        run = Run((self.output / trained.run).absolute())
        jobs = self.output.absolute() / "jobs" / run.path.name
        for left in (run.path, jobs):
            shutil.rmtree(left, ignore_errors=True)
        chosen = load_settings(self.config.recipe, [*self.config.settings, *self._settings(trained)]).train
        trained.processes, trained.batch_size = chosen.processes, chosen.size
        launcher = self._launcher(trained)
        job, state = run_job(launcher, lambda: launcher.start(self._task(trained, run), folder=jobs), told)
        trained.oversubscribed = self._oversubscribed(trained)
        end = run.end() if run.path.exists() else None
        if state != "finished":
            trained.message = str(end["message"]) if end else last_log_line(job) or state
            return
        try:
            measurement.read_measurement(trained, run)
        except RunError as error:
            trained.message = str(error)
        trained.oversubscribed = self._oversubscribed(trained)

    def _launcher(self, trained: ScalingRun) -> Launcher:
        if self.site is None:
            return local_launcher(trained.processes)
        return site_launcher(
            self.site, BatchRequest(name=f"scale-{trained.workers}", workers=trained.processes, cpus=trained.threads)
        )

    def _settings(self, trained: ScalingRun) -> list[str]:
        shared = not self.config.weak or STRATEGIES[trained.strategy].asynchronous
        times = trained.workers if self.config.weak else 1
        values = {
            "workers": trained.workers,
            "strategy": trained.strategy,
            "batch_size": self.batch_size * (1 if shared else trained.workers),
            "epochs": self.config.epochs * times,
            "seed": trained.seed,
            "threads": trained.threads,
            "minutes": self.config.minutes,
            "early_stopping": None,
            "target": None,
            "trace": True,
        }
        return [f"train.{name}={json.dumps(value)}" for name, value in values.items()]

    def _task(self, trained: ScalingRun, run: Run) -> TrainTask:
        return TrainTask(
            recipe=self.config.recipe,
            dataset=None if self.config.dataset is None else str(Path(self.config.dataset).absolute()),
            output=str(run.path),
            settings=(*self.config.settings, *self._settings(trained)),
        )

    def _oversubscribed(self, trained: ScalingRun) -> bool:
        if self.site is not None:
            return False  # a scheduler gives each rank its own
        if trained.device not in ("", "cpu"):
            import torch

            return trained.workers > torch.accelerator.device_count()
        return trained.processes * (trained.threads or 1) > allowed_cores()
