"""Units of samples dealt to ranks; their results come together on rank 0, in the order of the events."""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import Store

from clew.data.dataset.loader import ahead_of
from clew.errors import RecipeError, StoppedError
from clew.inference.model_runner import ModelRunner, SamplePortion
from clew.inference.result_link import ResultLink
from clew.inference.sample_sources import SampleSource
from clew.jobs.local_workers import run_local
from clew.jobs.rank_info import RankInfo, open_store_at
from clew.recipe import TYPED_IN, Recipe
from clew.runs import Run
from clew.runs.environment import allowed_cores
from clew.training import checkpoint
from clew.training.launch_context import LaunchContext, first_failure
from clew.training.training_data import default_device

ProgressCallback = Callable[[int, int | None], None]


class PortionWork(Protocol):
    """What is done with each portion, and with all results. Travels between processes."""

    @property
    def losses(self) -> bool:
        """Whether losses are wanted of the network."""

    def one(self, engine: ModelRunner, portion: SamplePortion) -> Any:
        """The result of a portion, which has samples."""

    def all(self, results: Iterator[Any]) -> Any:
        """What comes of the results, on rank 0; None stands for a unit without samples."""


@dataclass(frozen=True)
class InferenceTask:
    """A model, samples, and what is to be done with them."""

    run: Run
    recipe: Recipe
    weights: str
    samples: SampleSource
    size: int
    """Samples a batch."""
    work: PortionWork

    def engine(self, device: torch.device) -> ModelRunner:
        """The model with its weights.

        Raises:
            RunError: they are missing, damaged or of another model.
        """
        model = self.recipe.model()
        checkpoint.load(model, self.run.checkpoint(self.weights))
        return ModelRunner(self.recipe, model, device, self.size, self.work.losses)


def run_task(task: InferenceTask, *, workers: int, progress: ProgressCallback | None = None) -> Any:
    """Do a task on as many ranks as asked for, or as a launcher started; every one of those gets what came of it.

    Raises:
        UserError: something needed is missing or does not fit.
        WorkerError: a process died.
    """
    if task.work.losses and task.recipe.columns is not None:
        task.samples.check(task.recipe.columns)
    team = LaunchContext.gathered(task.run.path.parent)
    workers = team.size(workers)
    told = progress or (lambda done, total: None)
    if team.store is not None:
        try:
            return _rank(task, team.here, team.store, told)
        except Exception as error:
            raise first_failure(error, team.here, team.store) from error
    if workers == 1:
        return _rank(task, RankInfo(), None, told)
    if not task.recipe.location and type(task.recipe).__module__ == "__main__":
        raise RecipeError(f"recipe {type(task.recipe).__name__} was typed in; {TYPED_IN}")
    task.engine(torch.device("cpu"))  # what is wrong with the weights is told sooner here
    return _in_processes(task, workers, told)


def _rank(task: InferenceTask, place: RankInfo, store: Store | None, told: ProgressCallback) -> Any:
    link = ResultLink(place, store)
    engine = task.engine(default_device(place.local_rank))
    with contextlib.closing(unit_results(task, engine, place)) as own:
        results = link.collected(own)
        if place.rank:
            return link.share(list(results))  # there are none: they were sent
        made = task.work.all(_counted(results, told, task.samples.total))
    return link.share(made)


def unit_results(
    task: InferenceTask, engine: ModelRunner, place: RankInfo
) -> Generator[tuple[int, int, Any], None, None]:
    """Of every unit of this rank its number, its samples and the result; on rank 0 also, empty, the units of others.

    The next units are read in a thread while the device works.
    """
    portions = _portions(task, engine, place)
    with contextlib.closing(ahead_of(portions, task.samples.ahead) if task.samples.ahead else portions) as ready:
        for number, portion in ready:
            if portion is None:
                yield number, 0, None
            else:
                yield number, len(portion.samples), task.work.one(engine, portion)


def _portions(
    task: InferenceTask, engine: ModelRunner, place: RankInfo
) -> Generator[tuple[int, SamplePortion | None], None, None]:
    for number, load in enumerate(task.samples.units(task.size, place.ranks)):
        if number % place.ranks == place.rank:
            samples = load()
            yield number, engine.portion(samples) if len(samples) else None
        elif place.rank == 0:
            yield number, None


def _counted(results: Iterator[tuple[int, Any]], told: ProgressCallback, total: int | None) -> Iterator[Any]:
    done = 0
    for count, result in results:
        done += count
        if count:
            yield result
            told(done, total)


def _in_processes(task: InferenceTask, workers: int, told: ProgressCallback) -> Any:
    """On ranks of this machine. Rank 0 tells this process how far it is, and what came of it."""
    here, there = multiprocessing.Pipe(duplex=False)
    heard: list[Any] = []
    listener = threading.Thread(target=_listen, args=(here, told, heard), daemon=True)
    with tempfile.TemporaryDirectory() as folder:
        listener.start()
        try:
            preload = ["torch.distributed", "clew.inference.parallel_inference"]
            run_local(_enter, (task, there, str(Path(folder) / "meeting")), workers, preload=preload)
        finally:
            there.close()
            listener.join()
            here.close()
    if not heard:
        raise StoppedError("the workers were told to stop")
    return heard[0]


def _listen(pipe: Any, told: ProgressCallback, heard: list[Any]) -> None:
    with contextlib.suppress(EOFError):
        while True:
            kind, *words = pipe.recv()
            if kind == "progress":
                told(*words)
            else:
                heard.append(words[0])


def _enter(task: InferenceTask, pipe: Any, meeting: str, rank: int, ranks: int) -> None:
    torch.set_num_threads(max(1, allowed_cores() // ranks))
    store = open_store_at(Path(meeting), rank, ranks)
    made = _rank(
        task, RankInfo(rank, ranks, rank, ranks), store, lambda done, total: pipe.send(("progress", done, total))
    )
    if rank == 0:
        pipe.send(("made", made))
    pipe.close()
