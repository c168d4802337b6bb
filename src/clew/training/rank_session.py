"""What every rank of every training does around its loop: begin its records, hear who stops it, write down its end."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from clew.errors import LeaseError, StoppedError
from clew.jobs.lease import Lease
from clew.jobs.rank_info import RankInfo
from clew.jobs.worker_process import job_cpu_seconds
from clew.runs import RecordWriter, Run
from clew.runs.record_forwarding import listeners
from clew.runs.records import SCHEMA
from clew.training.config import TrainConfig
from clew.training.stop_signal import StopSignal
from clew.training.system_monitor import SystemMonitor


@dataclass
class RankSession:
    """A process of a training, on record."""

    writer: RecordWriter
    stop: StopSignal
    over: str = ""
    """Why the training ended before its last epoch; to be filled in."""


@contextlib.contextmanager
def open_session(run: Run, config: TrainConfig, place: RankInfo, lease: Lease | None) -> Iterator[RankSession]:
    """A rank from its first record to its last. Rank 0 heeds `lease`, and tells the writers of the settings.

    Raises whatever stops it, after writing the end down.
    """
    limit = config.time_limit_minutes
    with run.writer(f"rank-{place.rank}") as writer, contextlib.ExitStack() as stack:
        for each in listeners(config.writers, run) if place.rank == 0 else ():
            stack.callback(each.close)
            writer.listeners.append(each.see)
        facts = {"host": socket.gethostname(), "pid": os.getpid(), "rank": place.rank, "ranks": place.ranks}
        writer.write("start", schema=SCHEMA, **facts)
        try:
            with StopSignal(None if limit is None else 60 * limit, lease if place.rank == 0 else None) as stop:
                rank = RankSession(writer, stop)
                yield rank
        except LeaseError:
            raise  # the records are another's now
        except BaseException as error:
            status = {KeyboardInterrupt: "interrupted", StoppedError: "stopped"}.get(type(error), "failed")
            told = {"message": str(error) or type(error).__name__, "error": type(error).__name__}
            writer.write("end", status=status, **told, cpu=job_cpu_seconds())
            raise
        writer.write("end", status="finished", message=rank.over, cpu=job_cpu_seconds())


def system_monitor(
    run: Run, config: TrainConfig, place: RankInfo, device: torch.device
) -> contextlib.AbstractContextManager[Any]:
    """Measure what the machine does meanwhile, where the settings say so."""
    if config.monitor_seconds is None:
        return contextlib.nullcontext()
    number = None if device.type == "cpu" else device.index
    return SystemMonitor(run, place.rank, first=place.local_rank == 0, device=number, period=config.monitor_seconds)
