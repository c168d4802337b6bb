"""What a workload measured: all of it, the figures to look at first, and the summary that HEPscore reads."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clew.bench.workload import hepscore
from clew.bench.workload.config import ACCURACY, KIND, PADDED, WorkloadConfig, devices_per_copy, threads_per_copy
from clew.bench.workload.environment import containment, device_names
from clew.bench.workload.training_run import WorkloadRun, spread
from clew.core.files import write_text
from clew.runs.environment import capture
from clew.version import __version__


@dataclass
class WorkloadResult:
    """Everything that was measured; on disk after every epoch."""

    config: dict[str, Any]
    environment: dict[str, Any]
    hashes: dict[str, str | None]
    data: dict[str, Any]
    attempts: list[WorkloadRun] = field(default_factory=list)
    scan: list[dict[str, Any]] = field(default_factory=list)
    """Batch size, devices, events/s, accuracy, and whether it fits."""
    inference: dict[str, Any] | None = None
    fits: dict[str, Any] | None = None
    """Where it ran out of memory: what was asked for, and the largest batch that fits."""
    bins: dict[str, Any] | None = None
    """How many elements change their bin with the device or the number of threads."""
    power: str = ""
    """Where joules come from, or why there are none."""
    status: str = "running"
    kind: str = KIND
    format: int = 1

    @property
    def good(self) -> list[WorkloadRun]:
        """Attempts with at least one whole epoch."""
        return [each for each in self.attempts if each.epochs and not each.message]

    @property
    def seeds(self) -> list[int]:
        """Those that were run, in order."""
        return list(dict.fromkeys(each.seed for each in self.good))

    def of(self, seed: int) -> list[WorkloadRun]:
        """The copies of a seed."""
        return [each for each in self.good if each.seed == seed]

    @property
    def speeds(self) -> list[float]:
        """Events a second of all copies together, one a seed."""
        return [sum(each.events_per_second for each in self.of(seed)) for seed in self.seeds]

    def save(self, path: Path) -> None:
        """As JSON."""
        write_text(path, json.dumps({**asdict(self), "figures": key_figures(self)}, indent=1) + "\n")


def key_figures(result: WorkloadResult) -> dict[str, Any]:
    """What a reader looks for first."""
    config = WorkloadConfig(**result.config)
    band, good = config.band, result.good
    target = config.target or (band[1][0] if band and band[0] == ACCURACY else None)
    firsts = [result.of(seed)[0] for seed in result.seeds]  # copies of a seed have the same weights
    accuracy = {name: spread([v for a in firsts if (v := a.last(name)) is not None]) for name in (ACCURACY, PADDED)}
    told = accuracy[band[0]] if band else None
    judged = told["mean"] if told else None
    joules = [each.joules_per_event for each in good if each.joules_per_event is not None]
    return {
        "events_per_second": _middle(result.speeds),
        "epoch_seconds": [[epoch.seconds for epoch in each.epochs] for each in good],
        "first_epoch_left_out": any(len(each.epochs) > 1 for each in good),
        "accuracy": accuracy,
        "band": None if band is None else {"metric": band[0], "low": band[1][0], "high": band[1][1]},
        "passed": None if band is None or judged is None else band[1][0] <= judged <= band[1][1],
        "target": target,
        "seconds_to_target": None if target is None or not good else good[0].reached(ACCURACY, target),
        "joules_per_event": sum(joules) / len(joules) if joules else None,
        "peak_memory_bytes": max((each.memory for each in good if each.memory), default=None),
        "peak_device_memory_bytes": max((each.device_memory for each in good if each.device_memory), default=None),
        "peak_device_tensors_bytes": max((each.device_tensors for each in good if each.device_tensors), default=None),
        "data_wait_share": _middle([each.wait_share for each in good]),
        "padding_share": result.data.get("padding_share"),
        "comparable_with_published_accuracy": config.comparable is None,
        "comparable": comparability_note(config),
    }


def comparability_note(config: WorkloadConfig) -> str:
    """What of this result may be laid beside the published one, in words."""
    if config.comparable is None:
        return (
            "Accuracy with padding counted: comparable with the published 0.9576 to 0.9579, if these files are the "
            "public ones, which clew cannot check. Without padding: nothing was published."
        )
    return f"Accuracy: not comparable with the published one ({config.comparable})."


def fit_message(fits: dict[str, Any]) -> str:
    """Which batch does, in words."""
    best, least = fits["largest_that_fits"], fits["smallest_that_does_not"]
    if best is None:
        return "not even 1 fits" if fits["exact"] else f"nor does {least} fit"
    return f"the largest that fits is {best}" if fits["exact"] else f"{best} fits, {least} does not"


def _middle(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def summary(result: WorkloadResult, config: WorkloadConfig) -> dict[str, Any]:
    """What hep-workloads write."""
    good, each_copy = result.good, [a.events_per_second for a in (result.of(result.seeds[0]) if result.seeds else [])]
    scores, stats = {"training": round(_middle(result.speeds) or 0.0, 4)}, {"training": hepscore.score_stats(each_copy)}
    if result.inference:
        value = round(result.inference["events_per_second"], 4)
        scores["inference"], stats["inference"] = value, hepscore.score_stats([value])
    team = threads_per_copy(config)
    return {
        "run_info": {
            "copies": config.copies,
            "threads_per_copy": team,
            "events_per_thread": max(1, math.ceil(config.events / team)),
            "events_per_copy": config.events,
            "devices_per_copy": devices_per_copy(config),
            "precision": config.precision,
            "seed": config.seed,
        },
        "report": {
            "wl-scores": scores,
            "wl-stats": stats,
            "log": _log(result),
            "training": _training(good[0], config) | {"throughput_per_seed": _rounded(result.speeds)} if good else {},
        },
        "app": {
            "version": f"clew {__version__}",
            "description": "Training of the graph network for particle flow, events/s; the first epoch is left out",
            "bmk_checksum": result.hashes["code"],
            "bmkdata_checksum": result.hashes["data"],
            "containment": containment(),
            "devices": device_names(config),
        },
    }


def _log(result: WorkloadResult) -> str:
    if result.fits is not None:
        return f"out of memory at batch {result.fits['asked']}; {fit_message(result.fits)}"
    failed = next((each.message for each in result.attempts if each.message), "")
    if failed:
        return f"failed: {failed}"
    if not result.good:
        return "no epoch is finished yet"
    done, wanted = sum(len(each.epochs) for each in result.good), _wanted(result)
    return f"unfinished: {done} of {wanted} epochs" if result.status == "running" and done < wanted else "ok"


def _wanted(result: WorkloadResult) -> int:
    """Epochs of all copies and seeds together."""
    config = WorkloadConfig(**result.config)
    return config.epochs * config.copies * config.seeds


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 4) for value in values]


def _training(first: WorkloadRun, config: WorkloadConfig) -> dict[str, Any]:
    """The figures of the published workload, by its names."""
    count, epochs = max(1, devices_per_copy(config)), first.epochs
    total = config.batch_size * count
    mean = sum(epoch.seconds for epoch in first.counted) / len(first.counted)
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
