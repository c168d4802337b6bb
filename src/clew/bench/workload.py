"""The particle-flow workload: fixed network, data and seed, run in copies, and what a node makes of it."""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

import clew
from clew import spec
from clew.bench import attempt as attempts
from clew.bench import hepscore
from clew.bench.attempt import Attempt, spread
from clew.bench.material import Material, code, material
from clew.bench.scale import end_job, here
from clew.config import Section, to_data
from clew.errors import WorkerError
from clew.files import sha256, write_text
from clew.launch.launcher import ENDS, Job, Launcher, Room, portion
from clew.ledger import Run
from clew.ledger.environment import capture
from clew.train.config import Count
from clew.version import __version__

KIND = "workload"
ACCURACY, PADDED = "accuracy", "accuracy_padded"
"""Metrics of the recipe: over elements that are there, and with padding counted as the published figure does."""
PUBLISHED = {"events": 1100, "epochs": 5, "batch_size": 16}
PUBLISHED_BAND = (0.955, 0.960)
"""Of the accuracy with padding counted, after the published configuration on the public Delphes files: 0.9576 to
0.9579 were published, give or take what seeds do."""
BANDS: dict[tuple[int, int, int], tuple[float, float]] = {}
"""Of the accuracy without padding on synthetic events, by events, epochs and batch size."""
FIXED = {
    "particleflow": (
        "generator.kind=parametric",
        "model.kind=graph",
        "train.optimizer.name=adam",
        "train.optimizer.lr=1e-4",
        "train.optimizer.lr_rule=none",
        "train.schedule.name=constant",
        "train.schedule.warmup=null",
        "train.clip=null",
    )
}
"""What a workload is, whatever the recipe's own defaults become: events that need no Pythia, the published network and
optimiser."""
_PAUSE = 0.2


class WorkloadConfig(Section):
    """What is run."""

    recipe: str = "particleflow"
    name: str = "particleflow"
    events: Count = 32
    epochs: Count = 2
    batch_size: Count = 4
    """For each device."""
    gpus: Annotated[int, Field(ge=0)] | None = None
    """Devices of each copy, a rank each; 0: processors alone; None: one where there is one."""
    copies: Count = 1
    """That run at the same time, on cores (and devices) of their own."""
    threads: Count | None = None
    """Of each copy; default: the cores there are, shared."""
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    seed: int = 0
    seeds: Count = 1
    """Trainings one after the other that differ in their seed, to see the spread."""
    deterministic: bool = False
    inference: bool = False
    batch_scan: tuple[Count, ...] = ()
    """Batch sizes to try besides."""
    data: tuple[str, ...] = ()
    """Files in the place of synthetic events."""
    target: Annotated[float, Field(gt=0, le=1)] | None = None
    """Accuracy (of elements that are there) whose time is told; default: the lower edge of the pass band."""
    settings: tuple[str, ...] = ()

    @property
    def given(self) -> tuple[str, ...]:
        """Settings for the recipe: what is fixed, then the user's own."""
        return (*FIXED.get(self.recipe, ()), *self.settings)

    @property
    def band(self) -> tuple[str, tuple[float, float]] | None:
        """Metric and range within which a sound run ends; None where none is known."""
        shape = (self.events, self.epochs, self.batch_size)
        if self.data:
            return (PADDED, PUBLISHED_BAND) if shape == tuple(PUBLISHED.values()) else None
        known = BANDS.get(shape) if not self.settings and self.recipe == "particleflow" else None
        return (ACCURACY, known) if known else None


@dataclass
class Result:
    """Everything that was measured; on disk after every epoch."""

    config: dict[str, Any]
    environment: dict[str, Any]
    hashes: dict[str, str | None]
    data: dict[str, Any]
    attempts: list[Attempt] = field(default_factory=list)
    scan: list[dict[str, Any]] = field(default_factory=list)
    """Batch size, devices, events/s, accuracy, and whether it fits."""
    inference: dict[str, Any] | None = None
    fits: dict[str, Any] | None = None
    """Where it ran out of memory: what was asked for, and the largest batch that fits."""
    bins: dict[str, Any] | None = None
    """How many elements change their bin with the number of threads."""
    power: str = ""
    """Where joules come from, or why there are none."""
    status: str = "running"
    kind: str = KIND
    format: int = 1

    @property
    def good(self) -> list[Attempt]:
        """Attempts with at least one whole epoch."""
        return [each for each in self.attempts if each.epochs and not each.message]

    @property
    def seeds(self) -> list[int]:
        """Those that were run, in order."""
        return list(dict.fromkeys(each.seed for each in self.good))

    def of(self, seed: int) -> list[Attempt]:
        """The copies of a seed."""
        return [each for each in self.good if each.seed == seed]

    @property
    def speeds(self) -> list[float]:
        """Events a second of all copies together, one a seed."""
        return [sum(each.events_per_second for each in self.of(seed)) for seed in self.seeds]

    def save(self, path: Path) -> None:
        """As JSON."""
        write_text(path, json.dumps({**asdict(self), "figures": figures(self)}, indent=1) + "\n")


Told = Callable[[str], None]


def run(config: WorkloadConfig, output: Path, told: Told = lambda note: None) -> Result:
    """Run the workload into `output`: `<name>_summary.json`, `report.json`, `report.html`, and the runs.

    A training that fails is part of the result; what was measured before stays.

    Raises:
        ConfigError, DataError: something given does not fit.
        WorkerError: no epoch was finished, for another reason than memory.
    """
    chosen = spec.load(config.recipe, config.given)
    found = material(chosen.recipe, events=config.events, seed=config.seed, data=config.data, output=output, told=told)
    result = Result(to_data(config), _environment(), _hashes(config, found), _data(chosen, found), power=_power())
    bench = Bench(config, output, found, result, told)
    for number in range(config.seeds):
        if not bench.train(config.seed + number, config.batch_size) and result.attempts[-1].too_large:
            break
    if any(each.too_large for each in result.attempts):
        bench.find_fitting()
    if result.good:
        for count, size in itertools.product(_counts(devices(config)) if config.batch_scan else (), config.batch_scan):
            bench.scan(size, count)
        bench.ask()
    result.status = "finished" if result.good else "out of memory" if result.fits else "failed"
    bench.publish()
    if result.status == "failed":
        raise WorkerError(f"the workload failed: {result.attempts[-1].message}")
    return result


@dataclass
class Bench:
    """A workload under way."""

    config: WorkloadConfig
    output: Path
    material: Material
    result: Result
    told: Told

    def train(self, seed: int, batch_size: int) -> bool:
        """All copies of one seed; whether all went well."""
        made = [Attempt(seed, copy, f"runs/seed-{seed}-copy-{copy}") for copy in range(self.config.copies)]
        self.result.attempts += made
        self.run(made, batch_size, f"seed {seed}", publish=True)
        return all(not each.message for each in made)

    def scan(self, batch_size: int, count: int) -> None:
        """One more batch size and number of devices, with a training of its own."""
        made = [
            Attempt(self.config.seed, copy, f"runs/batch-{batch_size}-devices-{count}-copy-{copy}")
            for copy in range(self.config.copies)
        ]
        own = replace(self, config=self.config.model_copy(update={"gpus": count}))
        own.run(made, batch_size, f"batch {batch_size}{f' on {count} devices' if count else ''}")
        good = [each for each in made if each.epochs and not each.message]
        self.result.scan.append(
            {
                "batch_size_per_device": batch_size,
                "devices": count,
                "events_per_second": sum(each.events_per_second for each in good) or None,
                "accuracy": good[0].last(ACCURACY) if good else None,
                "fits": not any(each.too_large for each in made),
                "message": next((each.message for each in made if each.message), ""),
            }
        )
        self.publish()

    def find_fitting(self) -> None:
        """Out of memory is a result: the largest batch that fits, by halving and then closing in."""
        asked = self.config.batch_size
        tried: list[dict[str, Any]] = []
        low, high = 0, asked
        while high - low > 1 and len(tried) < 8:
            size = max(1, (low + high) // 2)
            short = Attempt(self.config.seed, 0, f"runs/fits-{size}")
            self.run([short], size, f"does a batch of {size} fit?", steps=2)
            fits = not short.message
            tried.append({"batch_size": size, "fits": fits})
            low, high = (size, high) if fits else (low, size)
        largest = low or None
        self.result.fits = {"asked": asked, "largest_that_fits": largest, "exact": high - low <= 1, "tried": tried}

    def ask(self) -> None:
        """Inference, and how binning depends on threads, with the model that was trained."""
        from clew.bench import asking

        run = Run(self.output / self.result.good[0].run)
        if self.config.inference:
            self.told("inference")
            self.result.inference = asking.inference(run, self.config)
        if self.config.deterministic:
            self.told("bins against threads")
            self.result.bins = asking.flips(run, self.config)

    def publish(self) -> None:
        """Everything known so far, on disk."""
        from clew.bench.workload_page import write

        hepscore.write(self.output / f"{self.config.name}{hepscore.SUFFIX}", summary(self.result, self.config))
        self.result.save(self.output / "report.json")
        write(self.result, self.output / "report.html")

    def run(
        self, made: Sequence[Attempt], batch_size: int, title: str, *, steps: int | None = None, publish: bool = False
    ) -> None:
        """All of these at the same time, to their ends; with `publish` the result is written after every epoch."""
        launcher = here(max(1, devices(self.config)))
        jobs: dict[int, Job] = {}
        try:
            for each in made:
                jobs[each.copy] = launcher.start(
                    self._command(each, batch_size, steps), folder=self._folder(each), room=self._room(each.copy)
                )
            self._watch(launcher, made, jobs, title, publish)
        except BaseException:
            for job in jobs.values():
                end_job(launcher, job)
            raise

    def _watch(
        self, launcher: Launcher, made: Sequence[Attempt], jobs: dict[int, Job], title: str, publish: bool
    ) -> None:
        begun, seen, open_ = time.monotonic(), -1, set(jobs)
        while open_:
            for each in [each for each in made if each.copy in open_]:
                run, state = self._opened(each), launcher.state(jobs[each.copy])
                each.state = state
                attempts.read(each, run)
                if state in ENDS:
                    attempts.ended(each, run, state, jobs[each.copy])
                    open_.discard(each.copy)
            count = sum(len(each.epochs) for each in made)
            if count != seen and publish:
                self.publish()
            seen = count
            done = f"{min(len(each.epochs) for each in made)} of {self.config.epochs} epochs"
            self.told(f"{title}: {done}, {time.monotonic() - begun:.0f} s")
            if open_:
                time.sleep(_PAUSE)

    def _opened(self, each: Attempt) -> Run:
        return Run((self.output / each.run).absolute())

    def _folder(self, each: Attempt) -> Path:
        folder = self.output.absolute() / "jobs" / Path(each.run).name
        for left in (folder, self.output / each.run):
            shutil.rmtree(left, ignore_errors=True)
        return folder

    def _room(self, copy: int) -> Room:
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        count = devices(self.config)
        own = tuple(range(copy * count, (copy + 1) * count)) if count else ()
        return Room(portion(cores, copy, self.config.copies) if cores else (), own)

    def _command(self, each: Attempt, batch_size: int, steps: int | None) -> list[str]:
        config, count = self.config, max(1, devices(self.config))
        values: dict[str, Any] = {
            "workers": count,
            "batch_size": batch_size * count,
            "epochs": config.epochs if steps is None else 1,
            "steps": steps,
            "seed": each.seed,
            "order": config.seed,
            "threads": max(1, threads(config) // count),
            "precision": config.precision,
            "deterministic": config.deterministic,
            "monitor_seconds": 0.5,
            "log_every": 1 if config.deterministic else None,
            "keep_checkpoints": 1,
            "early_stopping": None,
            "target": None,
        }
        sets = [
            *FIXED.get(config.recipe, ()),
            *(f"train.{n}={json.dumps(v)}" for n, v in values.items()),
            *config.settings,
        ]
        words = [word for one in sets for word in ("--set", one)]
        place = str(self.material.dataset.path.absolute())
        return ["train", config.recipe, "--dataset", place, "--output", str(self._opened(each).path), *words]


def _counts(most: int) -> list[int]:
    """Numbers of devices to scan: doubling up to what a copy has."""
    return sorted({most, *(2**n for n in range(16) if 2**n < most)})


def devices(config: WorkloadConfig) -> int:
    """Of each copy."""
    import torch

    there = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    return min(1, there) if config.gpus is None else config.gpus


def threads(config: WorkloadConfig) -> int:
    """Of each copy."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return config.threads or max(1, cores // config.copies)


def figures(result: Result) -> dict[str, Any]:
    """What a reader looks for first."""
    config = WorkloadConfig(**result.config)
    band, good = config.band, result.good
    target = config.target or (band[1][0] if band and band[0] == ACCURACY else None)
    accuracy = {name: spread([v for each in good if (v := each.last(name)) is not None]) for name in (ACCURACY, PADDED)}
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
        "data_wait_share": _middle([each.wait_share for each in good]),
        "padding_share": result.data.get("padding_share"),
        "comparable_with_published_accuracy": bool(config.data) and _is_published(config),
    }


def _is_published(config: WorkloadConfig) -> bool:
    return all(getattr(config, name) == value for name, value in PUBLISHED.items())


def _middle(values: list[float]) -> float | None:
    import statistics

    return statistics.median(values) if values else None


def summary(result: Result, config: WorkloadConfig) -> dict[str, Any]:
    """What hep-workloads write."""
    good, each_copy = result.good, [a.events_per_second for a in (result.of(result.seeds[0]) if result.seeds else [])]
    scores, stats = {"training": round(_middle(result.speeds) or 0.0, 4)}, {"training": hepscore.stats(each_copy)}
    if result.inference:
        value = round(result.inference["events_per_second"], 4)
        scores["inference"], stats["inference"] = value, hepscore.stats([value])
    team = threads(config)
    return {
        "run_info": {
            "copies": config.copies,
            "threads_per_copy": team,
            "events_per_thread": max(1, math.ceil(config.events / team)),
            "events_per_copy": config.events,
            "devices_per_copy": devices(config),
            "seed": config.seed,
        },
        "report": {
            "wl-scores": scores,
            "wl-stats": stats,
            "log": _log(result),
            "training": _training(good[0], config) if good else {},
        },
        "app": {
            "version": f"clew {__version__}",
            "description": "Training of the graph network for particle flow, events/s; the first epoch is left out",
            "bmk_checksum": result.hashes["code"],
            "bmkdata_checksum": result.hashes["data"],
            "containment": containment(),
            "devices": _named_devices(config),
        },
    }


def _log(result: Result) -> str:
    if result.fits is not None:
        best = result.fits["largest_that_fits"]
        return f"out of memory at batch {result.fits['asked']}; {f'{best} fits' if best else 'not even 1 fits'}"
    failed = next((each.message for each in result.attempts if each.message), "")
    if failed:
        return f"failed: {failed}"
    return "ok" if result.good else "no epoch is finished yet"


def _training(first: Attempt, config: WorkloadConfig) -> dict[str, Any]:
    """The figures of the published workload, by its names."""
    count, epochs = max(1, devices(config)), first.epochs
    total = config.batch_size * count
    mean = sum(epoch.seconds for epoch in first.counted) / len(first.counted)
    return {
        "mean_throughput": round(first.events_per_second, 4),
        "mean_epoch_time": round(mean, 4),
        "num_epochs": len(epochs),
        "epoch_times": [round(epoch.seconds, 4) for epoch in epochs],
        "train_time": round(sum(epoch.seconds for epoch in epochs), 4),
        "GPU": _named_devices(config)[0] if devices(config) else "",
        "CPU": capture()["cpu"],
        "train_set_size": epochs[0].events,
        "batch_size_per_device": config.batch_size,
        "batch_size_total": total,
        "steps_per_epoch": math.ceil(epochs[0].events / total),
        "events_per_epoch": epochs[0].events,
        "throughput_per_epoch": [round(epoch.speed, 4) for epoch in epochs],
        "first_epoch_left_out": len(epochs) > 1,
    }


def _named_devices(config: WorkloadConfig) -> list[str]:
    import torch

    if not devices(config):
        return [f"cpu: {capture()['cpu']}"]
    if not torch.cuda.is_available():
        return [str(torch.accelerator.current_accelerator())] * devices(config)
    return [torch.cuda.get_device_name(number) for number in range(devices(config))]


def containment() -> str:
    """What this process runs in."""
    if os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER"):
        return "singularity"
    return "docker" if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists() else "none"


def _container_hash() -> str | None:
    image = Path(os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER") or "")
    return sha256(image) if image.is_file() else os.environ.get("CLEW_IMAGE_DIGEST")


def _hashes(config: WorkloadConfig, found: Material) -> dict[str, str | None]:
    import hashlib

    told = json.dumps(spec.load(config.recipe, config.given).data | {"workload": to_data(config)}, sort_keys=True)
    return {
        "data": found.checksum,
        "config": hashlib.sha256(told.encode()).hexdigest(),
        "code": code(Path(clew.__file__).parent),
        "container": _container_hash(),
    }


def _data(chosen: Any, found: Material) -> dict[str, Any]:
    from clew.bench import asking

    facts = {"synthetic": found.synthetic, "events": dict(found.dataset.splits), "checksum": found.checksum}
    return {**facts, **asking.padding(chosen.recipe, found.dataset)}


def _power() -> str:
    from clew.train.monitor import _Device, _Package

    meters = ["processor (RAPL)"] * bool(list(_Package.all())) + ["device (NVML)"] * bool(list(_Device.find(0)))
    return f"{' and '.join(meters)}, sampled twice a second" if meters else "this machine does not tell its energy"


def _environment() -> dict[str, Any]:
    import torch

    return {
        **capture(),
        "machine": platform.machine(),
        "torch_build": torch.__version__,
        "threads_there": os.cpu_count(),
    }
