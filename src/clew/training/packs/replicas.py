"""An ensemble: models that differ in their seed alone, trained in packs on all cores or on the device."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import statistics
import time
from pathlib import Path
from typing import Any

from clew.core.background import repeated
from clew.data.dataset import Dataset
from clew.errors import RunError, StoppedError
from clew.jobs.lease import Lease
from clew.jobs.local_workers import run_local
from clew.recipe import Recipe
from clew.runs import RecordWriter, Run
from clew.runs.environment import allowed_cores
from clew.runs.records import SCHEMA
from clew.training.config import TrainConfig
from clew.training.packs import grouping, pack
from clew.training.packs.member import LOST, STOPPED, Lane
from clew.training.stop_signal import StopSignal
from clew.training.training_data import default_device

_ON_PROCESSOR, _ON_DEVICE = 16, 256
"""Models of a pack."""
_PRELOAD = ["torch._dynamo", "torch.distributed", "clew.training.packs.replicas"]
_TELL = 1.0
"""Seconds between two records of the whole."""


def settings_of(config: TrainConfig, number: int) -> TrainConfig:
    """Those of a member: seeds count up from the ensemble's, the order of the data is the same for all."""
    changed = {"seed": config.seed + number, "order": grouping.order_of(config), "replicas": None}
    return config.model_copy(update=changed)


def member(run: Run, number: int) -> Path:
    """The folder of a member."""
    return run.replicas_folder / f"replica-{number:03d}"


def train_replicas(run: Run, recipe: Recipe, config: TrainConfig, lease: Lease | None = None) -> None:
    """Train the members that have not ended yet, and write down mean and spread of every metric.

    Raises:
        StoppedError: it was told to stop; `clew train --resume` goes on.
        RunError: no member has learned anything.
    """
    assert config.replicas is not None
    device = default_device(0)
    processes = min(allowed_cores(), config.replicas) if device.type == "cpu" else 1
    if not recipe.location and type(recipe).__module__ == "__main__":
        processes = 1  # it cannot be found by others
    begun = time.process_time()
    with run.writer("rank-0") as writer:
        told = {"host": socket.gethostname(), "pid": os.getpid(), "rank": 0, "ranks": 1}
        writer.write("start", schema=SCHEMA, **told)
        try:
            _plan(run, recipe, config, writer, str(device))
            with _telling(run, writer):
                if processes == 1:
                    _work(run, recipe, config, 0, 1)
                else:
                    run_local(_work, (run, recipe, config), processes, preload=_PRELOAD)
            message = _summary(run, config, writer)
        except BaseException as error:
            status = {KeyboardInterrupt: "interrupted", StoppedError: "stopped"}.get(type(error), "failed")
            words = {"message": str(error) or type(error).__name__, "error": type(error).__name__}
            writer.write("end", status=status, **words, cpu=time.process_time() - begun)
            raise
        writer.write("end", status="finished", message=message, cpu=time.process_time() - begun)


def _plan(run: Run, recipe: Recipe, config: TrainConfig, writer: RecordWriter, device: str) -> None:
    assert config.replicas is not None
    dataset = Dataset(config.dataset)
    parameters = sum(each.numel() for each in recipe.model().parameters())
    steps = _steps(config, dataset)
    writer.write(
        "plan",
        epochs=config.epochs,
        steps=steps * config.replicas,
        samples=dataset.splits["train"],
        parameters=parameters,
        device=device,
        replicas=config.replicas,
    )


def _steps(config: TrainConfig, dataset: Dataset) -> int:
    """Steps of one member, as far as settings tell."""
    size = config.batch_size if isinstance(config.batch_size, int) else 1
    whole = -(-dataset.splits["train"] // size) * config.epochs
    return min(whole, config.steps or whole)


def _work(run: Run, recipe: Recipe, config: TrainConfig, rank: int, ranks: int) -> None:
    """One of several processes: its share of the members, pack by pack."""
    assert config.replicas is not None
    size = _ON_PROCESSOR if default_device(0).type == "cpu" else _ON_DEVICE
    numbers = range(rank, config.replicas, ranks)
    stopped: list[Lane] = []

    def ended(lane: Lane) -> None:
        if lane.code in (STOPPED, LOST):
            stopped.append(lane)

    with StopSignal(None) as stop:
        for first in range(0, len(numbers), size):
            lanes = [lane for n in numbers[first : first + size] if (lane := _lane(run, recipe, config, n)) is not None]
            if stop.wanted or stopped:
                break
            if lanes:
                pack.train_pack(lanes, ended, threads=config.threads or max(1, allowed_cores() // ranks))
    if stop.wanted or stopped:
        told = stopped[0].message.partition(";")[0] if stopped else "stopped between packs"
        raise StoppedError(f"{told}; go on with: clew train --resume {run.path}")


def _lane(run: Run, recipe: Recipe, config: TrainConfig, number: int) -> Lane | None:
    """A member that has not ended yet; one begun without a state to go on from begins anew."""
    path, own = member(run, number), settings_of(config, number)
    if (path / "config.yaml").exists():
        found = Run.open(path)
        if found.state in ("finished", "failed"):
            return None
        if found.states():
            return pack.lane(found, recipe, own)
    if path.exists():
        shutil.rmtree(path)
    return pack.lane(pack.create(path, recipe, own), recipe, own)


def _telling(run: Run, writer: RecordWriter) -> contextlib.AbstractContextManager[None]:
    """Now and then, a record of how far all members together are."""
    before = time.perf_counter()

    def tell() -> None:
        nonlocal before
        newest = [step for each in run.replicas() if (step := each.last("step")) is not None]
        if newest:
            now = time.perf_counter()
            writer.write("step", **_together(newest), seconds=now - before, wait=0.0, communicate=0.0)
            before = now

    return repeated(tell, every=_TELL, name="ensemble")


def _together(newest: list[dict[str, Any]]) -> dict[str, Any]:
    names = newest[0]["loss"]
    losses = {name: [each["loss"][name] for each in newest if each["loss"].get(name) is not None] for name in names}
    return {
        "epoch": min(each["epoch"] for each in newest),
        "step": sum(each["step"] for each in newest),
        "samples": sum(each["samples"] for each in newest),
        "loss": {name: statistics.fmean(values) for name, values in losses.items() if values},
    }


def spread(run: Run) -> dict[str, tuple[float, float, int]]:
    """Of every metric at the best validation of each member: mean, standard deviation, and of how many members."""
    found: dict[str, list[float]] = {}
    for each in run.replicas():
        if each.state != "finished":
            continue
        kept = [r for r in each.records(kind="checkpoint") if r["file"].endswith("best.safetensors")]
        validations = [r for r in each.history() if r["kind"] == "validation"]
        chosen = next((r for r in validations if kept and r["step"] == kept[-1]["step"]), None)
        for name, value in (chosen["metrics"] if chosen else {}).items():
            if value is not None:
                found.setdefault(name, []).append(value)
    return {
        name: (statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values))
        for name, values in found.items()
    }


def _summary(run: Run, config: TrainConfig, writer: RecordWriter) -> str:
    """The last record but one: mean and spread. What to say of members that failed.

    Raises:
        RunError: all did.
    """
    found, members = spread(run), run.replicas()
    failed = [each for each in members if each.state == "failed"]
    if not found:
        told = str((failed[0].end() or {}).get("message")) if failed else "none was validated"
        raise RunError(f"no member of the ensemble has learned anything: {told}")
    writer.write(
        "validation",
        epoch=config.epochs - 1,
        step=max((step["step"] for each in members if (step := each.last("step"))), default=0),
        metrics={name: mean for name, (mean, _, _) in found.items()},
        spread={name: own for name, (_, own, _) in found.items()},
        members=len(members) - len(failed),
        seconds=0.0,
    )
    if not failed:
        return ""
    return f"{len(failed)} of {len(members)} members failed: {(failed[0].end() or {}).get('message')}"
