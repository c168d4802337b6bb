"""Distributed training with your own training loop: clew connects the processes, loads batches and keeps the records.

Example:
    >>> import clew
    >>> session = clew.distributed.setup("runs/own-loop")  # alone, or one of the processes of torchrun, mpiexec or srun
    >>> session.rank, session.ranks
    (0, 1)
    >>> clew.distributed.log(loss=0.5)  # `clew runs` and the report show it
    >>> clew.distributed.close()
    >>> clew.Run.open("runs/own-loop").state
    'finished'

A Keras model keeps `compile` and `fit`: after `model = clew.distributed.wrap(model)`, `fit` divides each batch among
the ranks and records losses and metrics.

A loop of your own calls `wrap` twice: `model = clew.distributed.wrap(net.to(session.device))` averages gradients over
all ranks in `backward()`, and `batches = clew.distributed.wrap(clew.Dataset("dataset"), batch_size=64)` gives this
rank's share of each batch, with `for batch in batches(epoch)`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, overload

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from clew.core.files import atomic_path
from clew.data.dataset import Batch, Dataset
from clew.data.dataset.loader import Loader
from clew.data.dataset.sample_store import MemorySamples
from clew.data.dataset.sampler import Sampler
from clew.errors import RunError
from clew.jobs.rank_info import RankInfo, current_rank
from clew.jobs.script_ranks import RUN_VARIABLE
from clew.runs import Run
from clew.runs.console_log import console_stream, recorded_console
from clew.runs.environment import capture
from clew.runs.folder import next_run_path
from clew.runs.push_process import pushed
from clew.runs.records import SCHEMA, RecordWriter
from clew.runs.report import write_report
from clew.training.device import find_device
from clew.training.keras_fit import distribute_fit, is_keras_model
from clew.training.launch_context import LaunchContext

Model = TypeVar("Model", bound=nn.Module)
"""A Keras model with the torch backend is a torch module too."""


@dataclass
class DistributedSession:
    """This process among all processes of the run."""

    rank: int
    """Number of this process, from 0."""
    ranks: int
    """Number of processes."""
    device: torch.device
    """The device of this process."""
    run: Run
    writer: RecordWriter
    steps: int = 0
    epochs: int = 0
    samples: int = 0
    logged_at: float = 0.0
    load_seconds: float = 0.0
    """Time that it took to load the samples of all datasets."""
    waited: float = 0.0
    """Time spent waiting for batches since the last step was logged."""
    exit_stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False)
    """What ends with the session."""


_session: DistributedSession | None = None


def setup(output: str | Path | None = None, *, threads: int | None = None, **settings: Any) -> DistributedSession:
    """Connect to the other processes, if a launcher started several, and create a run that all of them write to.

    If a server and a token are known (`clew login`, or inside a job), the run is recorded there too. A job that is
    started again continues its run.

    Args:
        output: Folder of the run. Default: the next free one under `runs/`; inside a job, the job's own folder.
        threads: Number of CPU threads of torch.
        **settings: Values to save in the run's settings, for example `lr=0.01`.

    Returns:
        Rank, number of ranks, device and run of this process.

    Raises:
        RunError: The folder exists already, or this process has called `setup` before.
    """
    global _session
    if _session is not None:
        raise RunError("clew.distributed.setup was called already in this process")
    place = current_rank()
    device = find_device(place.local_rank)
    if threads is not None:
        torch.set_num_threads(threads)
    run = _open_run(place, Path(output) if output else None, device, settings)
    step = run.last("step", f"rank-{place.rank}") or {"step": 0, "epoch": 0, "samples": 0}
    writer = run.writer(f"rank-{place.rank}")
    writer.write("start", schema=SCHEMA, host=socket.gethostname(), pid=os.getpid(), rank=place.rank, ranks=place.ranks)
    _session = DistributedSession(place.rank, place.ranks, device, run, writer, logged_at=time.perf_counter())
    _session.steps, _session.epochs, _session.samples = step["step"], step["epoch"], step["samples"]
    if place.rank == 0:
        _session.exit_stack.enter_context(pushed(run=run))
    _session.exit_stack.enter_context(recorded_console(run, console_stream(place.rank)))
    atexit.register(close)
    return _session


def _open_run(place: RankInfo, output: Path | None, device: torch.device, settings: dict[str, Any]) -> Run:
    """Create the run on rank 0, or continue that of an earlier attempt of the same job; all ranks open it."""
    job_output = os.environ.get(RUN_VARIABLE)
    if output is None and job_output:
        output = Path(job_output)

    def make() -> Run:
        if job_output and output == Path(job_output) and Run(output).config_file.exists():
            return Run(output)
        folder = output or next_run_path(Path("runs"), "own")
        config = {"recipe": "", **settings, "train": {"workers": place.ranks}}
        return Run.create(folder, config=config, environment=capture())

    context = LaunchContext.join(output.parent if output else Path("runs"))
    run = Run.open(context.from_rank_zero("run", lambda: str(make().path)))
    if context.store is not None:
        backend = "gloo" if device.type == "cpu" else dist.get_default_backend_for_device(device)
        dist.init_process_group(backend, store=context.store, rank=place.rank, world_size=place.ranks)
    return run


@overload
def wrap(item: Model) -> Model: ...
@overload
def wrap(
    item: Dataset, *, batch_size: int, split: str = ..., columns: Sequence[str] | None = ..., seed: int = ...
) -> Callable[[int], Iterator[Batch]]: ...
def wrap(
    item: Any,
    *,
    batch_size: int = 64,
    split: str = "train",
    columns: Sequence[str] | None = None,
    seed: int = 0,
) -> Any | Callable[[int], Iterator[Batch]]:
    """Make a model or a dataset work with all ranks.

    Args:
        item: A torch model on the device of this process, a Keras model, or a dataset.
        batch_size: For a dataset: samples per batch, over all ranks together.
        split: For a dataset: the split to read.
        columns: For a dataset: the columns to read; None for all.
        seed: For a dataset: seed of the order of the samples.

    Returns:
        For a torch model: a model whose gradients are averaged over all ranks. For a Keras model: the same model, whose
        `fit` and `evaluate` divide each batch among all ranks. They need the same data on every rank, and `batch_size`
        counts the samples of all ranks. For a dataset: a function that returns the
        batches of this rank in an epoch. Every rank gets the same number of batches. If the share of a rank in the
        last batch is empty, it gets a batch that does not count (`batch.counts` is False).

    Raises:
        RunError: `setup` was not called before.
    """
    session = _current_session()
    if is_keras_model(item):
        return distribute_fit(item, session.rank, session.ranks, _record_fit)
    if isinstance(item, nn.Module):
        return DistributedDataParallel(item) if session.ranks > 1 else item
    sampler = Sampler(item.splits[split], batch_size, seed, session.rank, session.ranks)
    start = time.perf_counter()
    loader = Loader(MemorySamples(item.read(split, columns=columns)), sampler, columns, session.device)
    session.load_seconds += time.perf_counter() - start
    session.writer.write("load", seconds=session.load_seconds)
    session.logged_at = time.perf_counter()  # loading is not part of the first step

    def batches(epoch: int) -> Iterator[Batch]:
        session.epochs = epoch
        waited = loader.waited
        for portion in loader.epoch(epoch):
            session.waited, waited = session.waited + loader.waited - waited, loader.waited
            session.samples += portion.size
            yield portion.parts[0]

    return batches


def log(**values: float | torch.Tensor) -> None:
    """Record the losses of one step or, for names that start with `val_`, the metrics of a validation.

    A single process needs no `setup`: the first call creates the run.

    Args:
        **values: Numbers by name, for example `loss=loss` or `val_accuracy=0.9`.

    Raises:
        RunError: This process is one of several ranks, and `setup` was not called before.
    """
    session = _session_or_setup()
    now = time.perf_counter()
    seconds, session.logged_at = now - session.logged_at, now
    numbers = {name: float(v.detach() if isinstance(v, torch.Tensor) else v) for name, v in values.items()}
    metrics = {name.removeprefix("val_"): value for name, value in numbers.items() if name.startswith("val_")}
    losses = {name: value for name, value in numbers.items() if not name.startswith("val_")}
    facts = {"epoch": session.epochs, "step": session.steps}
    if losses:
        session.steps += 1
        facts["step"] = session.steps
        times = {"seconds": seconds, "wait": min(session.waited, seconds), "communicate": 0.0}
        session.waited = 0.0
        session.writer.write("step", **facts, samples=session.samples, loss=losses, **times)
    if metrics:
        session.writer.write("validation", **facts, metrics=metrics, seconds=0.0 if losses else seconds)


def _record_fit(epoch: int, batches: int, samples: int, values: Mapping[str, float]) -> None:
    """Record losses and metrics of a Keras model's `fit`; `batches` and `samples` count since the last call."""
    session = _current_session()
    session.epochs, session.samples = epoch, session.samples + samples
    session.steps += batches - 1  # `log` adds one
    log(**values)


def artefact(path: str | Path, name: str | None = None) -> Path:
    """Keep a file with the run: a model, a plot, a table. Inside a job, or after `clew login`, the server gets it too.

    Args:
        path: The file. It is copied.
        name: Its name in the run. Default: the file's own name.

    Returns:
        The copy in the run's folder.

    Raises:
        RunError: There is no such file, or the name is not that of a file.
    """
    source = Path(path)
    chosen = name or source.name
    if not source.is_file():
        raise RunError(f"artefact {source}: no such file")
    if not chosen or Path(chosen).name != chosen or chosen.startswith("."):
        raise RunError(f"artefact name '{chosen}': give a file name without folders that does not begin with a dot")
    copy = _session_or_setup().run.artefacts / chosen
    with atomic_path(copy) as temporary:
        shutil.copyfile(source, temporary)
    return copy


def close(*, stopped: bool = False) -> None:
    """End the run and write its report. It is called automatically when the process ends.

    Args:
        stopped: Whether the training stopped early and continues later. A job that then exits with code 75 returns to
            the queue (`clew submit --requeue`).
    """
    global _session
    if _session is None:
        return
    session, _session = _session, None
    error = getattr(sys, "last_value", None)  # the exception that ended the script, if there was one
    status = "stopped" if stopped else "failed" if error else "finished"
    session.writer.write("end", status=status, message=str(error or ""))
    session.writer.close()
    if session.rank == 0:
        write_report(session.run)
    session.exit_stack.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def _session_or_setup() -> DistributedSession:
    if _session is None and current_rank().ranks == 1:
        return setup()
    return _current_session()


def _current_session() -> DistributedSession:
    if _session is None:
        raise RunError("call clew.distributed.setup() on every rank first")
    return _session
