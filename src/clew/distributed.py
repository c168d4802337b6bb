"""For those who keep their own training loop: three calls give it all ranks, the loader and the ledger.

import clew

here = clew.distributed.setup("runs/mine")           # alone, or one of those torchrun, mpiexec or srun started
model = clew.distributed.wrap(net.to(here.device))   # gradients are averaged over ranks in backward()
batches = clew.distributed.wrap(clew.Dataset("dataset"), batch_size=64)   # this rank's share of each batch
for epoch in range(5):
    for batch in batches(epoch):
        ...
        clew.distributed.log(loss=loss)              # into the run's records; `clew runs` and the report show them
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from clew.data.dataset import Batch, Dataset
from clew.data.dataset.loader import Loader
from clew.data.dataset.sample_store import Memory
from clew.data.dataset.sampler import Sampler
from clew.errors import RunError
from clew.jobs.rank_info import RankInfo, current_rank
from clew.runs import Run
from clew.runs.environment import capture
from clew.runs.folder import next_run_path
from clew.runs.records import SCHEMA, RecordWriter
from clew.training.launch_context import LaunchContext
from clew.training.training_data import default_device


@dataclass
class DistributedRun:
    """This process among all of them."""

    rank: int
    ranks: int
    device: torch.device
    run: Run
    writer: RecordWriter
    steps: int = 0
    epochs: int = 0
    seen: int = 0
    since: float = 0.0


_here: DistributedRun | None = None


def setup(output: str | Path | None = None, *, threads: int | None = None, **settings: Any) -> DistributedRun:
    """Join the others, if a launcher started several, and begin a run that all of them write to.

    `output` is the run's folder (default: the next free one under `runs/`); `settings` are noted in its config.

    Raises:
        RunError: the folder is taken, or this process has set up already.
    """
    global _here
    if _here is not None:
        raise RunError("clew.distributed.setup was called already in this process")
    place = current_rank()
    device = default_device(place.local_rank)
    if threads is not None:
        torch.set_num_threads(threads)
    run = _joined(place, Path(output) if output else None, device, settings)
    writer = run.writer(f"rank-{place.rank}")
    writer.write("start", schema=SCHEMA, host=socket.gethostname(), pid=os.getpid(), rank=place.rank, ranks=place.ranks)
    _here = DistributedRun(place.rank, place.ranks, device, run, writer, since=time.perf_counter())
    atexit.register(close)
    return _here


def _joined(place: RankInfo, output: Path | None, device: torch.device, settings: dict[str, Any]) -> Run:
    def make() -> Run:
        folder = output or next_run_path(Path("runs"), "own")
        config = {"recipe": "", **settings, "train": {"workers": place.ranks}}
        return Run.create(folder, config=config, environment=capture())

    team = LaunchContext.gathered(output.parent if output else Path("runs"))
    run = Run.open(team.share("run", lambda: str(make().path)))
    if team.store is not None:
        backend = "gloo" if device.type == "cpu" else dist.get_default_backend_for_device(device)
        dist.init_process_group(backend, store=team.store, rank=place.rank, world_size=place.ranks)
    return run


@overload
def wrap(thing: nn.Module) -> nn.Module: ...
@overload
def wrap(
    thing: Dataset, *, batch_size: int, split: str = ..., columns: Sequence[str] | None = ..., seed: int = ...
) -> Callable[[int], Iterator[Batch]]: ...
def wrap(
    thing: Any,
    *,
    batch_size: int = 64,
    split: str = "train",
    columns: Sequence[str] | None = None,
    seed: int = 0,
) -> Any:
    """A model whose gradients are averaged over all ranks, or a dataset as this rank's share of every batch.

    `batch_size` is over all ranks; every rank gets equally many batches, and one whose share of a last batch is empty
    gets a batch that does not count (`batch.counts`).

    Raises:
        RunError: before `setup`.
    """
    here = _ready()
    if isinstance(thing, nn.Module):
        return DistributedDataParallel(thing) if here.ranks > 1 else thing
    sampler = Sampler(thing.splits[split], batch_size, seed, here.rank, here.ranks)
    loader = Loader(Memory(thing.read(split, columns=columns)), sampler, columns, here.device)

    def batches(epoch: int) -> Iterator[Batch]:
        here.epochs = epoch
        for portion in loader.epoch(epoch):
            here.seen += portion.size
            yield portion.parts[0]

    return batches


def log(**values: float | torch.Tensor) -> None:
    """One step's losses, or, with names that begin with `val_`, a validation's metrics.

    Raises:
        RunError: before `setup`.
    """
    here = _ready()
    now = time.perf_counter()
    seconds, here.since = now - here.since, now
    numbers = {name: float(torch.as_tensor(value).detach()) for name, value in values.items()}
    metrics = {name.removeprefix("val_"): value for name, value in numbers.items() if name.startswith("val_")}
    losses = {name: value for name, value in numbers.items() if not name.startswith("val_")}
    facts = {"epoch": here.epochs, "step": here.steps}
    if losses:
        here.steps += 1
        facts["step"] = here.steps
        here.writer.write("step", **facts, samples=here.seen, loss=losses, seconds=seconds, wait=0.0, communicate=0.0)
    if metrics:
        here.writer.write("validation", **facts, metrics=metrics, seconds=0.0 if losses else seconds)


def close() -> None:
    """End the run; done by itself when the process ends."""
    global _here
    if _here is None:
        return
    here, _here = _here, None
    error = getattr(sys, "last_value", None)  # what ended the script, if it did not end well
    here.writer.write("end", status="failed" if error else "finished", message=str(error or ""))
    here.writer.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def _ready() -> DistributedRun:
    if _here is None:
        raise RunError("call clew.distributed.setup() first")
    return _here
