"""Two ranks: clew's all-reduce against torch's DistributedDataParallel, over the loopback."""

from __future__ import annotations

import itertools
import json
import multiprocessing
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _contest import Times, alternate, seconds
from _tasks import FlatTask, GraphTask, Task, fresh
from torch._C._distributed_c10d import FileStore
from torch.nn.parallel import DistributedDataParallel

from clew import Batch, Dataset, Recipe
from clew.data.dataset.batch import to_batch
from clew.data.dataset.sampler import Sampler
from clew.training.config import TrainConfig
from clew.training.engine import Engine, as_loss
from clew.training.strategies.allreduce import AllReduce

CPU = torch.device("cpu")


def steps_of_clew(recipe: Recipe, strategy: AllReduce, batches: Sequence[Batch], size: int) -> Callable[[], None]:
    """Everything the loop does in a step but loading and recording; batches of `size` over both ranks."""
    model = strategy.distribute(fresh(recipe)[0])
    engine = Engine(recipe, model, TrainConfig(workers=2), strategy, CPU)

    def block() -> None:
        for batch in batches:
            strategy.command, strategy.stop_requested, strategy.batch_samples = 0, False, size
            engine.step([batch])
            strategy.received_signals()

    return block


def steps_of_torch(recipe: Recipe, batches: Sequence[Batch]) -> Callable[[], None]:
    """The same with DistributedDataParallel."""
    plain, optimizer = fresh(recipe)
    model = DistributedDataParallel(plain)

    def block() -> None:
        for batch in batches:
            total, weight = as_loss(recipe.loss(recipe.forward(model, batch), batch), batch)
            (total / weight).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return block


def in_step(work: Callable[[], None]) -> float:
    """Seconds of a block that all ranks start together."""
    dist.barrier()
    return seconds(work)


def rank_work(task: Task, folder: Path, rounds: int, rank: int) -> None:
    """One rank of two: clew's step and DDP's in turns, in one process group."""
    torch.set_num_threads(1)
    recipe = task.recipe
    strategy = AllReduce(rank=rank, ranks=2, store=FileStore(str(folder / "meet"), 2), device=CPU)
    shares = Sampler(task.dataset.splits["train"], task.size, 0, rank, 2).epoch(0)
    table = task.dataset.read("train", columns=list(recipe.columns or ()))
    chosen = itertools.islice(shares, task.steps)
    batches = [to_batch(table.take(numbers), recipe.columns) for numbers in chosen]
    works = {
        "DDP": steps_of_torch(recipe, batches),
        "DDP again": steps_of_torch(recipe, batches),
        "clew": steps_of_clew(recipe, strategy, batches, task.size),
    }
    times = alternate({name: partial(in_step, work) for name, work in works.items()}, rounds)
    if rank == 0:
        (folder / "times.json").write_text(json.dumps(times))
    strategy.close()


def enter_rank(kind: type[FlatTask | GraphTask], parts: tuple[Any, ...], *place: Any) -> None:
    """The process of a rank; the task is created again, because its recipe cannot be pickled."""
    recipe, config, path, *sizes = parts
    rank_work(kind(Dataset(path), recipe(config), *sizes), *place)


def two_ranks(task: FlatTask | GraphTask, folder: Path, rounds: int) -> Times:
    """The times of rank 0 for DDP, DDP again, and clew."""
    folder.mkdir()
    context = multiprocessing.get_context("spawn")
    parts = (type(task.recipe), task.recipe.config, task.dataset.path, task.size, task.steps)
    ranks = [
        context.Process(target=enter_rank, args=(type(task), parts, folder, rounds, rank), daemon=True)
        for rank in range(2)
    ]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    times: Times = json.loads((folder / "times.json").read_text())
    return times
