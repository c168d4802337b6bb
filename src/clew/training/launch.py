"""Starts the processes of a training: this one, several of this machine, or those that a launcher has started.

Every process calls the entry point of its strategy (`clew.training.strategies.entry_point`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from clew.errors import ConfigError, InterruptError, LeaseError, StoppedError
from clew.jobs.local_workers import run_local
from clew.jobs.rank_info import RankInfo, open_store_at
from clew.runs import Run
from clew.runs.console_log import CONSOLE, console_stream, recorded_console
from clew.runs.environment import allowed_cores
from clew.runs.push_process import pushed
from clew.runs.records import end_facts
from clew.training.launch_context import LaunchContext, first_failure
from clew.training.optimizer import PRELOADED
from clew.training.training_start import TrainingStart


def run_training(
    make: Callable[[], Run], start: TrainingStart, context: LaunchContext, show_rest: Callable[[], None]
) -> Run:
    """Create the run on rank 0 and train it, in this process and in those that are needed.

    Args:
        make: Creates the folder of the run, or opens it again.
        start: The recipe and the settings.
        context: This process among those of a launcher.
        show_rest: Called after the training, before the records are closed: prints what is left to print.
    """
    if start.config.replicas is not None and context.store is not None:
        raise ConfigError(f"replicas are trained on one machine; call clew train without {context.place.launcher}")
    if start.lease is not None and context.place.rank == 0:
        start.lease.beat(now=True)
        if start.lease.lost:
            raise LeaseError(f"{start.lease.path}: this run was assigned to another process before it started")
    path = context.from_rank_zero("run", lambda: str(make().path))
    run = replace(Run.open(path), recipe=start.recipe)
    try:
        sends = context.place.rank == 0 and start.lease is None
        with (
            pushed(run=run) if sends else contextlib.nullcontext(),
            recorded_console(run, console_stream(context.place.rank)),
        ):
            try:
                _train_in_context(run, start, context)
            finally:
                show_rest()
    except BaseException:
        if context.place.rank == 0 and not start.resume and not run.streams():
            shutil.rmtree(run.path, ignore_errors=True)  # it was interrupted before any process recorded its start
        raise
    return run


def _train_in_context(run: Run, start: TrainingStart, context: LaunchContext) -> None:
    if start.config.replicas is not None:
        from clew.training.packs.replicas import train_replicas

        train_replicas(run, start)
        return
    if context.store is None:
        _train_locally(run, start)
        return
    try:
        _train_rank(run, start, context.place, context.store)
    except StoppedError:
        raise
    except Exception as error:
        first = first_failure(error, context.place, context.store)
        if context.place.rank == 0 and first is not error:
            _record_end(run, first)
        raise first from error


def _train_locally(run: Run, start: TrainingStart) -> None:
    """Train in this process, or in several processes of this machine."""
    run.meeting_file.unlink(missing_ok=True)
    processes = start.config.processes
    if processes == 1:
        _train_rank(run, start, RankInfo(0, 1, 0, 1), None)
    else:
        _start_processes(run, start, processes)
    run.meeting_file.unlink(missing_ok=True)


def _start_processes(run: Run, start: TrainingStart, processes: int) -> None:
    strategy = start.config.traits.implementation.partition(":")[0]
    modules = [*PRELOADED, "clew.training.loop", *filter(None, [strategy, "keras" if "keras" in sys.modules else ""])]
    try:
        run_local(_train_in_own_process, (run, start), processes, preload=modules, saves_on_interrupt=True)
    except (KeyboardInterrupt, InterruptError) as error:
        end = run.end()
        if end is None or end["status"] != "interrupted":  # rank 0 was killed, or had not received the signal yet
            _record_end(run, error)
        raise
    except StoppedError:
        raise
    except Exception as error:
        _record_end(run, error)
        raise


def _record_end(run: Run, error: BaseException) -> None:
    """End the records of rank 0 with the cause: rank 0 may have been stopped, or know only of a lost connection."""
    with run.writer("rank-0") as writer:
        writer.write("end", **end_facts(error))


def _train_in_own_process(run: Run, start: TrainingStart, rank: int, ranks: int) -> None:
    """Train one of several ranks, in its own process. The process that started it records in `console`."""
    with recorded_console(run, f"{CONSOLE}-{rank}"):
        store = open_store_at(run.meeting_file, rank, ranks)
        _train_rank(run, start, RankInfo(rank, ranks, rank, ranks), store)


def _train_rank(run: Run, start: TrainingStart, place: RankInfo, store: Any) -> None:
    import torch

    from clew.training import estimator_fit
    from clew.training.strategies import entry_point

    config = start.config
    torch.set_num_threads(config.threads or max(1, allowed_cores() // place.local_ranks))
    with _deterministic_algorithms() if config.deterministic else contextlib.nullcontext():
        train = estimator_fit.run_rank if start.recipe.has_estimator else entry_point(config)
        train(run, start, place, store)


@contextlib.contextmanager
def _deterministic_algorithms() -> Iterator[None]:
    """Allow only algorithms that give the same bits every time. torch raises an error for an operation without one."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs it
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
