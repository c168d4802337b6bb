"""What every process of a training does around its loop: open its records, watch for stop signals, record its end.

The synchronous loop (`clew.training.loop`), the asynchronous processes (`clew.training.asynchronous.roles`) and
`clew.training.packs.pack` for a single member use it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from clew.errors import LeaseError
from clew.jobs.lease import Lease
from clew.jobs.rank_info import RankInfo
from clew.jobs.worker_process import job_cpu_seconds
from clew.recipe_errors import recipe_errors
from clew.runs import RecordWriter, Run
from clew.runs.record_forwarding import listeners
from clew.runs.records import SCHEMA, end_facts
from clew.training.config import TrainConfig
from clew.training.stop_signal import StopSignal
from clew.training.system_monitor import SystemMonitor


@dataclass
class RankSession:
    """A process of a training, with its records open."""

    writer: RecordWriter
    stop: StopSignal
    end_reason: str = ""
    """Why the training ended before its last epoch. The loop sets it."""


@contextlib.contextmanager
def open_session(run: Run, config: TrainConfig, place: RankInfo, lease: Lease | None) -> Iterator[RankSession]:
    """Write the first and the last record of a rank around the block.

    Rank 0 renews the lease, and forwards records to the programs in `train.writers`.

    Args:
        run: The folder of the run.
        config: The settings.
        place: The rank of this process.
        lease: The lease under which the run was assigned to this process, if any.

    Raises:
        Whatever ends the block, after the end has been recorded.
    """
    limit = config.time_limit_minutes
    with run.writer(f"rank-{place.rank}") as writer, contextlib.ExitStack() as stack:
        for listener in listeners(config.writers, run) if place.rank == 0 else ():
            stack.callback(listener.close)
            writer.listeners.append(listener.see)
        facts = {"host": socket.gethostname(), "pid": os.getpid(), "rank": place.rank, "ranks": place.ranks}
        writer.write("start", schema=SCHEMA, **facts)
        try:
            with (
                recipe_errors(),
                StopSignal(None if limit is None else 60 * limit, lease if place.rank == 0 else None) as stop,
            ):
                session = RankSession(writer, stop)
                yield session
        except LeaseError:
            raise  # the records belong to another process now
        except BaseException as error:
            writer.write("end", **end_facts(error), cpu=job_cpu_seconds())
            raise
        writer.write("end", status="finished", message=session.end_reason, cpu=job_cpu_seconds())


def system_monitor(
    run: Run, config: TrainConfig, place: RankInfo, device: torch.device
) -> contextlib.AbstractContextManager[Any]:
    """Measure processor, memory and power during the block, if `train.monitor_seconds` is set."""
    if config.monitor_seconds is None:
        return contextlib.nullcontext()
    number = None if device.type == "cpu" else device.index
    return SystemMonitor(run, place.rank, first=place.local_rank == 0, device=number, period=config.monitor_seconds)
