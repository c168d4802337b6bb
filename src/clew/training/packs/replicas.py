"""Ensembles: models that differ only in their seed, trained in packs on all cores or on the device."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clew.core.background import run_repeatedly
from clew.data.dataset import Dataset
from clew.errors import InterruptError, LeaseError, RunError, StoppedError
from clew.jobs.local_workers import run_local
from clew.recipe import Recipe
from clew.recipe_errors import recipe_errors
from clew.runs import RecordWriter, Run
from clew.runs.environment import allowed_cores
from clew.runs.records import SCHEMA, end_facts
from clew.training.config import TrainConfig
from clew.training.device import find_device
from clew.training.optimizer import PRELOADED
from clew.training.packs import grouping, pack
from clew.training.packs.member import LOST, STOPPED, PackMember
from clew.training.stop_signal import StopSignal
from clew.training.training_start import TrainingStart
from clew.training.validation import build_model

_CPU_PACK_SIZE, _DEVICE_PACK_SIZE = 16, 256
"""Members of a pack."""
_PRELOAD = [*PRELOADED, "clew.training.packs.replicas"]
_PROGRESS_INTERVAL = 1.0
"""Seconds between two records of the progress of the ensemble."""


def replica_config(config: TrainConfig, number: int) -> TrainConfig:
    """Return the settings of one replica: its seed is the ensemble's plus `number`; the order of the data is shared."""
    changes = {"seed": config.seed + number, "order": grouping.order_seed(config), "replicas": None}
    return config.model_copy(update=changes)


def replica_folder(run: Run, number: int) -> Path:
    """Return the folder of one replica."""
    return run.replicas_folder / f"replica-{number:03d}"


def train_replicas(run: Run, start: TrainingStart) -> None:
    """Train the replicas that have not ended yet, and record the mean and the spread of every metric.

    Args:
        run: The folder of the ensemble.
        start: The recipe, the settings and the lease. All processes renew the lease, and stop if it asks for that.

    Raises:
        StoppedError: The training was stopped; `clew train --resume` continues it.
        LeaseError: The ensemble was assigned to another process.
        RunError: No replica could be trained.
    """
    recipe, config = start.recipe, start.config
    assert config.replicas is not None
    device = find_device(0, config.device)
    processes = min(allowed_cores(), config.replicas) if device.type == "cpu" else 1
    if not recipe.location and type(recipe).__module__ == "__main__":
        processes = 1  # other processes cannot import it
    cpu_start = time.process_time()
    with run.writer("rank-0") as writer:
        process = {"host": socket.gethostname(), "pid": os.getpid(), "rank": 0, "ranks": 1}
        writer.write("start", schema=SCHEMA, **process)
        try:
            _write_plan(recipe, config, writer, str(device))
            with recipe_errors(), _record_progress(run, writer):
                if processes == 1:
                    _train_share(run, start, 0, 1)
                else:
                    run_local(_train_share, (run, start), processes, preload=_PRELOAD, saves_on_interrupt=True)
            message = _write_summary(run, config, writer)
        except LeaseError:
            raise  # the records belong to another process now
        except BaseException as error:
            writer.write("end", **end_facts(error), cpu=time.process_time() - cpu_start)
            raise
        writer.write("end", status="finished", message=message, cpu=time.process_time() - cpu_start)


def _write_plan(recipe: Recipe, config: TrainConfig, writer: RecordWriter, device: str) -> None:
    assert config.replicas is not None
    dataset = Dataset(config.dataset)
    parameters = sum(parameter.numel() for parameter in build_model(recipe).parameters())
    writer.write(
        "plan",
        epochs=config.epochs,
        steps=_steps_per_replica(config, dataset) * config.replicas,
        samples=dataset.splits["train"],
        parameters=parameters,
        device=device,
        replicas=config.replicas,
    )


def _steps_per_replica(config: TrainConfig, dataset: Dataset) -> int:
    """Return the steps of one replica, as far as the settings determine them."""
    size = config.batch_size if isinstance(config.batch_size, int) else 1
    steps = -(-dataset.splits["train"] // size) * config.epochs
    return min(steps, config.steps or steps)


def _train_share(run: Run, start: TrainingStart, rank: int, ranks: int) -> None:
    """Train the share of one process, pack by pack."""
    config = start.config
    assert config.replicas is not None
    size = _CPU_PACK_SIZE if find_device(0, config.device).type == "cpu" else _DEVICE_PACK_SIZE
    threads = config.threads or max(1, allowed_cores() // ranks)
    numbers = range(rank, config.replicas, ranks)
    stopped: list[PackMember] = []

    def on_end(member: PackMember) -> None:
        if member.code in (STOPPED, LOST):
            stopped.append(member)

    with StopSignal(None, start.lease) as stop:
        stop.can_save = True
        for first in range(0, len(numbers), size):
            replicas = [_load_replica(run, start, number) for number in numbers[first : first + size]]
            members = [member for member in replicas if member is not None]
            if stop.requested or stopped:
                break
            if members:
                pack.train_pack(members, on_end, threads=threads)
    if any(member.code == LOST for member in stopped):
        raise LeaseError(f"{run.path} was assigned to another process")
    if stop.requested or stopped:
        reason = stopped[0].message.partition(";")[0] if stopped else "stopped between packs"
        kind = InterruptError if stop.interrupted or "(Ctrl-C)" in reason else StoppedError
        raise kind(f"{reason}; resume with: clew train --resume {run.path}")


def _load_replica(run: Run, start: TrainingStart, number: int) -> PackMember | None:
    """Return a replica, or None if it has ended. One that was started but has no checkpoint starts again."""
    recipe, lease = start.recipe, start.lease
    path, member_config = replica_folder(run, number), replica_config(start.config, number)
    if (path / "config.yaml").exists():
        replica = Run.open(path)
        if replica.state in ("finished", "failed"):
            return None
        if replica.states():
            return pack.load_member(replica, recipe, member_config, lease)
    if path.exists():
        shutil.rmtree(path)
    return pack.load_member(pack.create_run(path, recipe, member_config), recipe, member_config, lease)


def _record_progress(run: Run, writer: RecordWriter) -> contextlib.AbstractContextManager[None]:
    """Write a record of the progress of all replicas once per second."""
    previous = time.perf_counter()

    def write_progress() -> None:
        nonlocal previous
        newest = [step for replica in run.replicas() if (step := replica.last("step")) is not None]
        if newest:
            now = time.perf_counter()
            writer.write("step", **_combined_step(newest), seconds=now - previous, wait=0.0, communicate=0.0)
            previous = now

    return run_repeatedly(write_progress, every=_PROGRESS_INTERVAL, name="ensemble")


def _combined_step(newest: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one record from the newest record of each replica."""
    names = newest[0]["loss"]
    losses = {name: [step["loss"][name] for step in newest if step["loss"].get(name) is not None] for name in names}
    return {
        "epoch": min(step["epoch"] for step in newest),
        "step": sum(step["step"] for step in newest),
        "samples": sum(step["samples"] for step in newest),
        "loss": {name: statistics.fmean(values) for name, values in losses.items() if values},
    }


def metric_spread(run: Run) -> dict[str, tuple[float, float, int]]:
    """Return mean, standard deviation and number of replicas for every metric, at the best validation of each."""
    values_by_name: dict[str, list[float]] = {}
    for replica in run.replicas():
        if replica.state != "finished":
            continue
        saved = [r for r in replica.records(kind="checkpoint") if r["file"].endswith("best.safetensors")]
        validations = [r for r in replica.history() if r["kind"] == "validation"]
        best = next((r for r in validations if saved and r["step"] == saved[-1]["step"]), None)
        for name, value in (best["metrics"] if best else {}).items():
            if value is not None:
                values_by_name.setdefault(name, []).append(value)
    return {
        name: (statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values))
        for name, values in values_by_name.items()
    }


def _write_summary(run: Run, config: TrainConfig, writer: RecordWriter) -> str:
    """Write the mean and the spread of every metric; return a message about replicas that failed, or ''.

    Raises:
        RunError: All replicas failed.
    """
    spreads, replicas = metric_spread(run), run.replicas()
    failed = [replica for replica in replicas if replica.state == "failed"]
    if not spreads:
        reason = str((failed[0].end() or {}).get("message")) if failed else "none was validated"
        raise RunError(f"no member of the ensemble could be trained: {reason}")
    writer.write(
        "validation",
        epoch=config.epochs - 1,
        step=max((step["step"] for replica in replicas if (step := replica.last("step"))), default=0),
        metrics={name: mean for name, (mean, _, _) in spreads.items()},
        spread={name: deviation for name, (_, deviation, _) in spreads.items()},
        members=len(replicas) - len(failed),
        seconds=0.0,
    )
    if not failed:
        return ""
    return f"{len(failed)} of {len(replicas)} members failed: {(failed[0].end() or {}).get('message')}"
