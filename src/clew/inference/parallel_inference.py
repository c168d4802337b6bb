"""Distributes units of samples over ranks, and collects the results on rank 0 in the order of the events."""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import Store

from clew.data.dataset.loader import prefetch
from clew.errors import RecipeError, StoppedError
from clew.inference.model_runner import ModelRunner, SamplePortion
from clew.inference.result_link import ResultLink
from clew.inference.sample_sources import SampleSource
from clew.jobs.local_workers import run_local
from clew.jobs.rank_info import RankInfo, open_store_at
from clew.recipe import TYPED_IN, Recipe
from clew.recipe_errors import recipe_errors
from clew.runs import Run
from clew.runs.environment import allowed_cores
from clew.training import checkpoint
from clew.training.device import device_or_default
from clew.training.launch_context import LaunchContext, first_failure
from clew.training.metric_workers import MetricWorkers, metric_worker_limit
from clew.training.validation import build_model

ProgressCallback = Callable[[int, int | None], None]
_DEFERRED = 64
"""Largest number of units whose results other processes may still compute."""


class PortionWork(Protocol):
    """What is done with each portion, and with all results. It is sent between processes."""

    @property
    def losses(self) -> bool:
        """Whether the losses are needed."""

    def one(self, engine: ModelRunner, portion: SamplePortion) -> Any:
        """Return the result of a portion, which has at least one sample, or a `Deferred` of it."""

    def all(self, results: Iterator[Any]) -> Any:
        """Return the result of the task from the results of all portions. It is called on rank 0."""


@dataclass(frozen=True)
class Deferred:
    """The result of a portion that other processes still compute."""

    wait: Callable[[], Any]
    """Waits for the result and returns it."""


@dataclass(frozen=True)
class InferenceTask:
    """A model, samples, and what to do with them."""

    run: Run
    recipe: Recipe
    weights: str
    samples: SampleSource
    size: int
    """Samples per batch."""
    work: PortionWork
    device: str = "auto"
    """The setting `train.device` of the run. It is used if the device exists here."""
    metric_workers: int | None = None
    """The setting `train.metric_workers` of the run."""

    def engine(self, device: torch.device) -> ModelRunner:
        """Load the model with its weights.

        Raises:
            RunError: The weights are missing, damaged or of another model.
        """
        model = build_model(self.recipe)
        checkpoint.load(model, self.run.checkpoint(self.weights))
        return ModelRunner(self.recipe, model, device, self.size, self.work.losses)


def run_task(task: InferenceTask, *, workers: int, progress: ProgressCallback | None = None) -> Any:
    """Run a task on several ranks, and return its result on every rank.

    Args:
        task: The task.
        workers: Number of processes. Under a launcher, its processes are used.
        progress: Called with the number of samples done and, if known, of all samples.

    Raises:
        UserError: Something that is needed is missing or does not fit.
        WorkerError: A process died.
    """
    if task.work.losses and task.recipe.columns is not None:
        task.samples.check(task.recipe.columns)
    context = LaunchContext.join(task.run.path.parent)
    workers = context.worker_count(workers)
    report = progress or (lambda done, total: None)
    if context.store is not None:
        try:
            return run_rank(task, context.place, context.store, report)
        except Exception as error:
            raise first_failure(error, context.place, context.store) from error
    if workers == 1:
        return run_rank(task, RankInfo(), None, report)
    if not task.recipe.location and type(task.recipe).__module__ == "__main__":
        raise RecipeError(f"recipe {type(task.recipe).__name__} was typed in; {TYPED_IN}")
    task.engine(torch.device("cpu"))  # report a problem with the weights before processes start
    return _in_processes(task, workers, report)


def run_rank(task: InferenceTask, place: RankInfo, store: Store | None, report: ProgressCallback) -> Any:
    """Compute the part of one rank. Every rank returns the whole result."""
    link = ResultLink(place, store)
    engine = task.engine(device_or_default(place.local_rank, task.device))
    limit = metric_worker_limit(task.metric_workers, engine.device, place.local_ranks)
    with (
        contextlib.closing(MetricWorkers(task.recipe, limit)) as engine.metric_workers,
        contextlib.closing(unit_results(task, engine, place)) as own_results,
    ):
        results = link.collect(own_results)
        if place.rank:
            return link.share(list(results))  # the list is empty: the results were sent to rank 0
        result = task.work.all(_report_progress(results, report, task.samples.total))
    return link.share(result)


def unit_results(
    task: InferenceTask, engine: ModelRunner, place: RankInfo
) -> Generator[tuple[int, int, Any], None, None]:
    """Yield number, sample count and result of every unit of this rank. Rank 0 also yields empty units of other ranks.

    The next units are read in a thread while the device computes. Up to `_DEFERRED` units may wait for other processes.
    """
    portions = _portions(task, engine, place)
    started: deque[tuple[int, int, Any]] = deque()
    describe = f"samples of {task.samples.title}"
    with contextlib.closing(prefetch(portions, task.samples.ahead) if task.samples.ahead else portions) as ready:
        for number, portion in ready:
            if portion is None:
                started.append((number, 0, None))
            else:
                with recipe_errors(describe):
                    started.append((number, len(portion.samples), task.work.one(engine, portion)))
            while started and (len(started) > _DEFERRED or not isinstance(started[0][2], Deferred)):
                yield _finished(*started.popleft(), describe)
        while started:
            yield _finished(*started.popleft(), describe)


def _finished(number: int, count: int, result: Any, describe: str) -> tuple[int, int, Any]:
    """Return number, sample count and result of a unit, after waiting for the result if necessary."""
    with recipe_errors(describe):
        return number, count, result.wait() if isinstance(result, Deferred) else result


def _portions(
    task: InferenceTask, engine: ModelRunner, place: RankInfo
) -> Generator[tuple[int, SamplePortion | None], None, None]:
    for number, load in enumerate(task.samples.units(task.size, place.ranks)):
        if number % place.ranks == place.rank:
            samples = load()
            yield number, engine.portion(samples) if len(samples) else None
        elif place.rank == 0:
            yield number, None


def _report_progress(results: Iterator[tuple[int, Any]], report: ProgressCallback, total: int | None) -> Iterator[Any]:
    done = 0
    for count, result in results:
        done += count
        if count:
            yield result
            report(done, total)


def _in_processes(task: InferenceTask, workers: int, report: ProgressCallback) -> Any:
    """Run the task in processes of this machine. Rank 0 sends its progress and its result to this process."""
    reader, sender = multiprocessing.Pipe(duplex=False)
    received: list[Any] = []
    listener = threading.Thread(target=_listen, args=(reader, report, received), daemon=True)
    with tempfile.TemporaryDirectory() as folder:
        listener.start()
        try:
            preload = ["torch.distributed", "clew.inference.parallel_inference"]
            run_local(_enter, (task, sender, str(Path(folder) / "meeting")), workers, preload=preload)
        finally:
            sender.close()
            listener.join()
            reader.close()
    if not received:
        raise StoppedError("the workers were stopped")
    return received[0]


def _listen(pipe: Any, report: ProgressCallback, received: list[Any]) -> None:
    with contextlib.suppress(EOFError):
        while True:
            kind, *values = pipe.recv()
            if kind == "progress":
                report(*values)
            else:
                received.append(values[0])


def _enter(task: InferenceTask, pipe: Any, meeting: str, rank: int, ranks: int) -> None:
    torch.set_num_threads(max(1, allowed_cores() // ranks))
    store = open_store_at(Path(meeting), rank, ranks)
    result = run_rank(
        task, RankInfo(rank, ranks, rank, ranks), store, lambda done, total: pipe.send(("progress", done, total))
    )
    if rank == 0:
        pipe.send(("result", result))
    pipe.close()
