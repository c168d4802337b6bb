"""How training scales on the cores of one machine: one measurement per call, with all ranks on one thread each."""

from __future__ import annotations

import json
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from _contest import peak_of_children
from _ddp_ranks import rank_of_torch
from numpy.typing import NDArray

import clew
from clew import Dataset, Run
from clew.bench.scaling.measurement import PARTS, time_shares
from clew.data.prepare.generate import generate
from clew.jobs.local_workers import run_local
from clew.recipe import Recipe
from clew.runs import timeline
from clew.runs.async_workers import load_workers, sum_workers
from clew.settings import load_settings
from clew.training.api import resume
from clew.training.config import TrainConfig
from clew.training.training_data import make_sampler

PER_RANK = {"tracking": 32, "particleflow": 4, "lartpc": 4}
"""Events per rank. An event of particle flow costs a core seconds."""
SETTINGS = {"tracking": (), "particleflow": ("generator.kind=parametric",), "lartpc": ()}
STEPS = {"particleflow": 3}
"""Steps of a task whose steps take seconds; others train for a time."""
PRELOAD = ["torch._dynamo", "torch.distributed", "clew.training.loop"]


@dataclass(frozen=True)
class TrainingPoint:
    """A task, the size of the global batch (`own`: that of the recipe; `per rank`), and a number of ranks."""

    task: str
    mode: str
    ranks: int
    bucket: str | None = None
    """The column by which events of similar size go into one batch."""

    @property
    def batch(self) -> int:
        """Events of a global batch."""
        if self.mode == "own":
            return int(load_settings(self.task, SETTINGS[self.task]).train.size)
        return PER_RANK[self.task] * self.ranks

    def __str__(self) -> str:
        return f"{self.task}, {self.mode}, {self.ranks}{', bucketed' if self.bucket else ''}"

    def config(self, **values: Any) -> TrainConfig:
        """Return the settings of its training."""
        fixed = {"epochs": 100_000, "monitor_seconds": None, "device": "cpu", "threads": 1, "batch_size": self.batch}
        wanted = {**fixed, "workers": self.ranks, "loading.bucket": self.bucket, **values}
        pairs = [f"train.{name}={json.dumps(value)}" for name, value in wanted.items()]
        return load_settings(self.task, (*SETTINGS[self.task], *pairs)).train


def small_dataset(task: str, folder: Path, most: int, raw: list[str]) -> Dataset:
    """Return a dataset of raw files, or of synthetic events: two batches of the largest size."""
    settings = load_settings(task, SETTINGS[task])
    options: dict[str, Any] = {"split": {"train": 0.98, "val": 0.02}, "input": raw}
    if not raw:
        for split, events in {"train": max(int(2.2 * PER_RANK[task] * most), 40), "val": 2}.items():
            generate(settings.recipe, events, events, folder / split)
        options = {"input": {split: [str(folder / split)] for split in ("train", "val")}}
    return clew.prepare(settings.recipe, output=str(folder / "dataset"), cache=str(folder / "cache"), **options)


def ranks(point: TrainingPoint, data: Dataset, folder: Path, seconds: float, *, compared: bool) -> dict[str, Any]:
    """Train with all-reduce for some seconds, and with torch's DistributedDataParallel if `compared`."""
    output = folder / str(point).replace(", ", "-").replace(" ", "-")
    limits = {"steps": STEPS[point.task]} if point.task in STEPS else {"minutes": seconds / 60}
    config, start = point.config(log_every=1, **limits), time.perf_counter()
    with peak_of_children(every=1.0, unshared=True) as memory:
        run = clew.train(_recipe(point.task), data, config=config, output=output)
    total = time.perf_counter() - start
    sizes = BatchCosts(_recipe(point.task), config, data)
    speed, shares, steps = _full_steps(run, sizes)
    result = {"task": point.task, "mode": point.mode, "ranks": point.ranks, "batch": point.batch, "steps": steps}
    result |= {"bucket": point.bucket, "bound": round(sizes.bound(steps, point.ranks), 4)}
    result |= {"events_per_second": round(speed, 3), "shares": {part: round(shares[part], 4) for part in PARTS}}
    result |= {"start_seconds": round(total - seconds_of(run), 2), "memory_mb": round(memory[0])}
    if compared and point.batch >= point.ranks and not point.bucket:
        torch_folder = output.with_name(output.name + "-torch")
        torch_folder.mkdir()
        count = min(max(steps, 3), 60)
        arguments = (point.task, str(data.path), point.batch, count, torch_folder)
        run_local(rank_of_torch, arguments, point.ranks, preload=PRELOAD)
        events = float(np.mean([sizes.events(step) for step in range(1, count)]))
        result["torch_events_per_second"] = round(events / float((torch_folder / "seconds").read_text()), 3)
    return result


def _recipe(task: str) -> Recipe:
    return load_settings(task, SETTINGS[task]).recipe


class BatchCosts:
    """The costs of the events of each step, by the recipe's own model of the time (`Recipe.sample_costs`).

    Speeds count events of mean cost: a few events cost a hundred times the mean, and runs of different lengths see
    different ones.
    """

    def __init__(self, recipe: Recipe, config: TrainConfig, data: Dataset) -> None:
        sets = data.manifest.item_sets
        lengths = {name: data.lengths("train", sets[name]) for name in recipe.columns or () if name in sets}
        self.costs = np.asarray(recipe.sample_costs(lengths), dtype=np.float64)
        self.sampler = make_sampler(config, data)
        self._epochs: dict[int, list[Any]] = {}

    def of(self, step: int) -> NDArray[np.float64]:
        """Return the costs of the events of a step, counted from 0."""
        epoch, place = divmod(step, self.sampler.steps())
        if epoch not in self._epochs:
            self._epochs[epoch] = self.sampler.batches(epoch)
        costs: NDArray[np.float64] = self.costs[self._epochs[epoch][place]]
        return costs

    def events(self, step: int) -> float:
        """Return the number of events of mean cost that cost as much as the batch of a step."""
        return float(self.of(step).sum() / self.costs.mean())

    def bound(self, steps: int, ranks: int) -> float:
        """Return the largest efficiency that any division of whole events among ranks can have."""
        batches = [self.of(step) for step in range(1, steps + 1)]
        needed = sum(max(each.max(), each.sum() / ranks) for each in batches)
        return float(sum(each.sum() for each in batches) / ranks / needed)


def _full_steps(run: Run, sizes: BatchCosts) -> tuple[float, dict[str, float], int]:
    """Return the speed and the shares of all steps on full batches but the first, and their number."""
    records = list(run.records("rank-0", "step"))
    full = [place for place in range(1, len(records)) if len(sizes.of(place)) == sizes.sampler.batch_size]
    seconds = sum(records[place]["seconds"] for place in full)
    spans = {rank: each[np.isin(each["step"], full)] for rank, each in timeline.traces(run).items()}
    return sum(sizes.events(place) for place in full) / seconds, time_shares(spans), len(full)


def seconds_of(run: Run) -> float:
    """Return the seconds of all recorded steps."""
    return float(sum(record["seconds"] for record in run.records(run.main_stream, "step")))


def copies(task: str, count: int, data: Dataset, folder: Path, seconds: float) -> dict[str, Any]:
    """Train independently in some processes at once: what the cores can do if nobody waits for anybody.

    Cores that all work are slower than one alone (clock rate, memory, caches): no strategy does better. Only steps
    are counted during which all processes trained.
    """
    outputs = [folder / f"copies-{count}" / str(place) for place in range(count)]
    outputs[0].parent.mkdir()
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        work = [pool.submit(_copy, task, str(data.path), output, seconds) for output in outputs]
        steps = [each.result() for each in work]
    start, end = max(each[0][0] for each in steps), min(each[-1][0] for each in steps)
    speeds = []
    for each in steps:
        inside = [step for step in each[1:] if start < step[0] <= end]
        speeds.append(sum(events for _, _, events in inside) / sum(spent for _, spent, _ in inside))
    return {"task": task, "copies": count, "events_per_second": round(sum(speeds), 3), "seconds": round(end - start, 2)}


def _copy(task: str, path: str, output: Path, seconds: float) -> list[tuple[float, float, float]]:
    """Train alone. Return the time of the end, the seconds, and the events of mean cost of each step."""
    point, data = TrainingPoint(task, "per rank", 1), Dataset(path)
    config = point.config(log_every=1, minutes=seconds / 60)
    run = clew.train(_recipe(task), data, config=config, output=output)
    sizes = BatchCosts(_recipe(task), config, data)
    records = run.records(run.main_stream, "step")
    return [(each["time"], each["seconds"], sizes.events(place)) for place, each in enumerate(records)]


def masters(rule: str, workers: int, data: Dataset, folder: Path, seconds: float) -> dict[str, Any]:
    """Train with one master for twice some seconds. The speed is that of the second half."""
    output = folder / f"{rule}-{workers}"
    point = TrainingPoint("tracking", "own", workers)
    config = point.config(strategy=rule, log_every=workers, minutes=2 * seconds / 60)
    run = clew.train(_recipe("tracking"), data, config=config, output=output)
    records = list(run.records(run.main_stream, "step"))
    middle = records[len(records) // 2]
    done, taken = (records[-1][key] - middle[key] for key in ("samples", "time"))
    totals = load_workers(run)
    shares = sum_workers(totals.workers).shares if totals else {}
    result = {"rule": rule, "workers": workers, "events_per_second": round(done / taken, 2), "shares": shares}
    losses = [record["loss"]["loss"] for record in records[-max(1, len(records) // 10) :]]
    return {**result, "samples": records[-1]["samples"], "loss": float(np.mean(losses))}


def started_and_resumed(ranks_: int, data: Dataset, folder: Path) -> dict[str, Any]:
    """Train an epoch with more ranks than cores, then resume for one more."""
    start, output = time.perf_counter(), folder / f"many-{ranks_}"
    point, recipe = TrainingPoint("tracking", "own", ranks_), _recipe("tracking")
    with peak_of_children(every=1.0, unshared=True) as memory:
        clew.train(recipe, data, config=point.config(batch_size=4 * ranks_, epochs=1), output=output)
        first = time.perf_counter() - start
        run = resume(output, epochs=2)
    step = (run.last("step") or {})["step"]
    seconds = round(time.perf_counter() - start - first, 2)
    return {"ranks": ranks_, "seconds": round(first, 2), "resume_seconds": seconds, "steps": step, "mb": memory[0]}
