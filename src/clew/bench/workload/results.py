"""The result of a workload: all measurements, the key figures, and the summary in the format of HEPscore."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from clew.bench.results import BenchResult
from clew.bench.workload import hepscore
from clew.bench.workload.config import ACCURACY, KIND, PADDED, WorkloadConfig, devices_per_copy, threads_per_copy
from clew.bench.workload.environment import containment, device_names
from clew.bench.workload.training_run import WorkloadRun, spread
from clew.runs.environment import capture
from clew.version import __version__


@dataclass
class WorkloadResult(BenchResult):
    """Everything that was measured. It is saved after every epoch."""

    kind: ClassVar[str] = KIND

    config: dict[str, Any]
    environment: dict[str, Any]
    hashes: dict[str, str | None]
    data: dict[str, Any]
    runs: list[WorkloadRun] = field(default_factory=list)
    scan: list[dict[str, Any]] = field(default_factory=list)
    """Batch size, devices, events/s, accuracy, and whether it fits."""
    inference: dict[str, Any] | None = None
    fits: dict[str, Any] | None = None
    """After running out of memory: the requested batch size, and the largest one that fits."""
    agreement: dict[str, Any] | None = None
    """How outputs depend on the device or the number of threads (see `inference_speed.agreement`)."""
    power: str = ""
    """How the energy was measured, or why it was not."""
    clocks: dict[str, Any] = field(default_factory=dict)
    """Clocks of processor and GPUs during the trainings (see `hardware.ClockMeter`)."""
    status: str = "running"

    @property
    def successful(self) -> list[WorkloadRun]:
        """The runs with at least one complete epoch."""
        return [run for run in self.runs if run.epochs and not run.message]

    @property
    def seeds(self) -> list[int]:
        """The seeds of successful runs, in order."""
        return list(dict.fromkeys(run.seed for run in self.successful))

    def copies(self, seed: int) -> list[WorkloadRun]:
        """Return the successful copies of a seed."""
        return [run for run in self.successful if run.seed == seed]

    @property
    def speeds(self) -> list[float]:
        """Events per second of all copies together, one value per seed."""
        return [sum(run.events_per_second for run in self.copies(seed)) for seed in self.seeds]

    def derived(self) -> dict[str, Any]:
        return {"figures": key_figures(self)}


def key_figures(result: WorkloadResult) -> dict[str, Any]:
    """Return the figures that a reader looks for first."""
    config = WorkloadConfig(**result.config)
    band, runs = config.band, result.successful
    target = config.target or (band[1][0] if band and band[0] == ACCURACY else None)
    firsts = [result.copies(seed)[0] for seed in result.seeds]  # copies of a seed have the same weights
    accuracy = {
        name: spread([value for run in firsts if (value := run.last(name)) is not None]) for name in (ACCURACY, PADDED)
    }
    measured = accuracy[band[0]] if band else None
    mean = measured["mean"] if measured else None
    joules = [run.joules_per_event for run in runs if run.joules_per_event is not None]
    return {
        "events_per_second": _median(result.speeds),
        "epoch_seconds": [[epoch.seconds for epoch in run.epochs] for run in runs],
        "first_epoch_left_out": any(len(run.epochs) > 1 for run in runs),
        "accuracy": accuracy,
        "band": None if band is None else {"metric": band[0], "low": band[1][0], "high": band[1][1]},
        "passed": None if band is None or mean is None else band[1][0] <= mean <= band[1][1],
        "target": target,
        "seconds_to_target": None if target is None or not runs else runs[0].seconds_to(ACCURACY, target),
        "joules_per_event": sum(joules) / len(joules) if joules else None,
        "peak_memory_bytes": _peak(run.memory for run in runs),
        "peak_device_memory_bytes": _peak(run.device_memory for run in runs),
        "peak_device_tensors_bytes": _peak(run.device_tensors for run in runs),
        "data_wait_share": _median([run.wait_share for run in runs]),
        "padding_share": result.data.get("padding_share"),
        "comparable_with_published_accuracy": config.comparable is None,
        "comparable": comparability_note(config),
    }


def comparability_note(config: WorkloadConfig) -> str:
    """Return a sentence on what can be compared with the published result."""
    if config.comparable is None:
        return (
            "Accuracy with padding counted: comparable with the published 0.9576 to 0.9579, if these files are the "
            "public ones, which clew cannot check. Accuracy without padding: not published."
        )
    return f"Accuracy: not comparable with the published one ({config.comparable})."


def fit_message(fits: dict[str, Any]) -> str:
    """Return a phrase on which batch size fits."""
    largest, too_large = fits["largest_that_fits"], fits["smallest_that_does_not"]
    if largest is None:
        return "not even 1 fits" if fits["exact"] else f"{too_large} does not fit either"
    return f"the largest that fits is {largest}" if fits["exact"] else f"{largest} fits, {too_large} does not"


def _peak(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value), default=None)


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def summary(result: WorkloadResult, config: WorkloadConfig) -> dict[str, Any]:
    """Return the summary in the format of hep-workloads."""
    runs, copies = result.successful, result.copies(result.seeds[0]) if result.seeds else []
    scores, stats = (
        {"training": round(_median(result.speeds) or 0.0, 4)},
        {"training": hepscore.score_stats([run.events_per_second for run in copies])},
    )
    if result.inference:
        value = round(result.inference["events_per_second"], 4)
        scores["inference"], stats["inference"] = value, hepscore.score_stats([value])
    threads = threads_per_copy(config)
    return {
        "run_info": {
            "copies": config.copies,
            "threads_per_copy": threads,
            "events_per_thread": max(1, math.ceil(config.events / threads)),
            "events_per_copy": config.events,
            "devices_per_copy": devices_per_copy(config),
            "precision": config.precision,
            "seed": config.seed,
        },
        "report": {
            "wl-scores": scores,
            "wl-stats": stats,
            "log": _log_message(result),
            "training": _training(runs[0], config) | {"throughput_per_seed": _rounded(result.speeds)} if runs else {},
        },
        "app": {
            "version": f"clew {__version__}",
            "description": "Training of the graph network for particle flow, events/s; the first epoch is left out",
            "bmk_checksum": result.hashes["code"],
            "bmkdata_checksum": result.hashes.get("fixed_events") or result.hashes["data"],
            "containment": containment(),
            "container_digest": result.hashes["container"] or "",
            "devices": device_names(config),
        },
    }


def _log_message(result: WorkloadResult) -> str:
    if result.fits is not None:
        return f"out of memory at batch {result.fits['requested']}; {fit_message(result.fits)}"
    failed = next((run.message for run in result.runs if run.message), "")
    if failed:
        return f"failed: {failed}"
    if not result.successful:
        return "no epoch is finished yet"
    config = WorkloadConfig(**result.config)
    done, total = sum(len(run.epochs) for run in result.successful), config.epochs * config.copies * config.seeds
    return f"unfinished: {done} of {total} epochs" if result.status == "running" and done < total else "ok"


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 4) for value in values]


def _training(first: WorkloadRun, config: WorkloadConfig) -> dict[str, Any]:
    """Return the figures of the published workload, under its names."""
    count, epochs = max(1, devices_per_copy(config)), first.epochs
    total = config.batch_size * count
    mean = sum(epoch.seconds for epoch in first.measured_epochs) / len(first.measured_epochs)
    return {
        "mean_throughput": round(first.events_per_second, 4),
        "mean_epoch_time": round(mean, 4),
        "num_epochs": len(epochs),
        "epoch_times": _rounded([epoch.seconds for epoch in epochs]),
        "train_time": round(sum(epoch.seconds for epoch in epochs), 4),
        "GPU": device_names(config)[0] if devices_per_copy(config) else "",
        "CPU": capture()["cpu"],
        "train_set_size": epochs[0].events,
        "batch_size_per_device": config.batch_size,
        "batch_size_total": total,
        "steps_per_epoch": math.ceil(epochs[0].events / total),
        "events_per_epoch": epochs[0].events,
        "throughput_per_epoch": _rounded([epoch.speed for epoch in epochs]),
        "first_epoch_left_out": len(epochs) > 1,
    }
