"""The particle-flow workload: fixed network, data and seed, run in copies, and what a node makes of it."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clew import settings
from clew.bench.measured_jobs import killed_with_parent, local_launcher, stop_job
from clew.bench.workload import hepscore
from clew.bench.workload import training_run as attempts
from clew.bench.workload.config import (
    ACCURACY,
    FIXED,
    WorkloadConfig,
    check_devices,
    devices_per_copy,
    threads_per_copy,
)
from clew.bench.workload.environment import data_facts, energy_source, environment, hashes
from clew.bench.workload.event_data import EventData, make_event_data
from clew.bench.workload.results import WorkloadResult, summary
from clew.bench.workload.training_run import WorkloadRun
from clew.core.config import to_data
from clew.errors import RunError, WorkerError
from clew.jobs.launchers.launcher import END_STATES, LaunchedJob, Launcher, Slot, core_share
from clew.jobs.task import TrainTask
from clew.runs import Run

_PAUSE = 0.2
Told = Callable[[str], None]


def run_workload(config: WorkloadConfig, output: Path, told: Told = lambda note: None) -> WorkloadResult:
    """Run the workload into `output`: `<name>_summary.json`, `report.json`, `report.html`, and the runs.

    A training that fails is part of the result; what was measured before stays.

    Raises:
        ConfigError, DataError: something given does not fit.
        RunError: the folder holds a result already.
        WorkerError: no epoch was finished, for another reason than memory.
    """
    check_devices(config)
    chosen = settings.load_settings(config.recipe, config.given)
    if (output / f"{config.name}{hepscore.SUFFIX}").exists():
        raise RunError(f"{output} holds a result already; name another folder with --output")
    found = make_event_data(
        chosen.recipe, events=config.events, seed=config.seed, data=config.data, output=output, told=told
    )
    result = WorkloadResult(
        to_data(config), environment(), hashes(config, found), data_facts(chosen, found), power=energy_source()
    )
    bench = WorkloadRunner(config, output, found, result, told)
    for number in range(config.seeds):
        if not bench.train(config.seed + number, config.batch_size) and result.attempts[-1].too_large:
            break
    if any(each.too_large for each in result.attempts):
        bench.find_fitting()
    if result.good:
        for count, size in itertools.product(
            _counts(devices_per_copy(config)) if config.batch_scan else (), config.batch_scan
        ):
            bench.scan(size, count)
        bench.ask()
    result.status = "finished" if result.good else "out of memory" if result.fits else "failed"
    bench.publish()
    if result.status == "failed":
        raise WorkerError(f"the workload failed: {result.attempts[-1].message}")
    return result


@dataclass
class WorkloadRunner:
    """A workload under way."""

    config: WorkloadConfig
    output: Path
    material: EventData
    result: WorkloadResult
    told: Told

    def train(self, seed: int, batch_size: int) -> bool:
        """All copies of one seed; whether all went well."""
        made = [WorkloadRun(seed, copy, f"runs/seed-{seed}-copy-{copy}") for copy in range(self.config.copies)]
        self.result.attempts += made
        self.run(made, batch_size, f"seed {seed}", publish=True)
        return all(not each.message for each in made)

    def scan(self, batch_size: int, count: int) -> None:
        """One more batch size and number of devices, with a training of its own where there was none."""
        made = self.result.of(self.config.seed)
        if (batch_size, count) != (self.config.batch_size, devices_per_copy(self.config)):
            made = [
                WorkloadRun(self.config.seed, copy, f"runs/batch-{batch_size}-devices-{count}-copy-{copy}")
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
        tried: list[dict[str, Any]] = []
        low, high = 0, self.config.batch_size
        while high - low > 1 and len(tried) < 8:
            size = max(1, (low + high) // 2)
            short = WorkloadRun(self.config.seed, 0, f"runs/fits-{size}")
            self.run([short], size, f"does a batch of {size} fit?", steps=2)
            fits = not short.message
            tried.append({"batch_size": size, "fits": fits})
            low, high = (size, high) if fits else (low, size)
            self.result.fits = self._fits(low, high, tried)
            self.publish()
        self.result.fits = self._fits(low, high, tried)

    def _fits(self, low: int, high: int, tried: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "asked": self.config.batch_size,
            "largest_that_fits": low or None,
            "smallest_that_does_not": high,
            "exact": high - low <= 1,
            "tried": list(tried),
        }

    def ask(self) -> None:
        """Inference, and how binning depends on threads, with the model that was trained."""
        from clew.bench.workload import inference_speed

        run = Run(self.output / self.result.good[0].run)
        if self.config.inference:
            self.told("inference")
            self.result.inference = inference_speed.inference(run, self.config)
        if self.config.deterministic:
            self.told("do one thread and all agree?")
            self.result.bins = inference_speed.agreement(run, self.config)

    def publish(self) -> None:
        """Everything known so far, on disk."""
        from clew.bench.workload.page import write

        hepscore.write_summary(self.output / f"{self.config.name}{hepscore.SUFFIX}", summary(self.result, self.config))
        self.result.save(self.output / "report.json")
        write(self.result, self.output / "report.html")

    def run(
        self,
        made: Sequence[WorkloadRun],
        batch_size: int,
        title: str,
        *,
        steps: int | None = None,
        publish: bool = False,
    ) -> None:
        """All of these at the same time, to their ends; with `publish` the result is written after every epoch."""
        launcher = local_launcher(max(1, devices_per_copy(self.config)))
        jobs: dict[int, LaunchedJob] = {}
        try:
            for each in made:
                jobs[each.copy] = launcher.start(
                    self._task(each, batch_size, steps), folder=self._folder(each), slot=self._room(each.copy)
                )
            with killed_with_parent(list(jobs.values())):
                self._watch(launcher, made, jobs, title, publish)
        except BaseException:
            for job in jobs.values():
                stop_job(launcher, job)
            raise

    def _watch(
        self, launcher: Launcher, made: Sequence[WorkloadRun], jobs: dict[int, LaunchedJob], title: str, publish: bool
    ) -> None:
        begun, seen, open_ = time.monotonic(), -1, set(jobs)
        while open_:
            for each in [each for each in made if each.copy in open_]:
                run, state = self._opened(each), launcher.state(jobs[each.copy])
                each.state = state
                attempts.read_run(each, run)
                if state in END_STATES:
                    attempts.record_end(each, run, state, jobs[each.copy])
                    open_.discard(each.copy)
            count = sum(len(each.epochs) for each in made)
            if count != seen and publish:
                self.publish()
            seen = count
            done = f"{min(len(each.epochs) for each in made)} of {self.config.epochs} epochs"
            self.told(f"{title}: {done}, {time.monotonic() - begun:.0f} s")
            if open_:
                time.sleep(_PAUSE)

    def _opened(self, each: WorkloadRun) -> Run:
        return Run((self.output / each.run).absolute())

    def _folder(self, each: WorkloadRun) -> Path:
        folder = self.output.absolute() / "jobs" / Path(each.run).name
        for left in (folder, self.output / each.run):
            shutil.rmtree(left, ignore_errors=True)
        return folder

    def _room(self, copy: int) -> Slot:
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        count = devices_per_copy(self.config)
        own = tuple(range(copy * count, (copy + 1) * count)) if count else ()
        return Slot(core_share(cores, copy, self.config.copies) if cores else (), own)

    def _task(self, each: WorkloadRun, batch_size: int, steps: int | None) -> TrainTask:
        config, count = self.config, max(1, devices_per_copy(self.config))
        values: dict[str, Any] = {
            "workers": count,
            "batch_size": batch_size * count,
            "epochs": config.epochs if steps is None else 1,
            "steps": steps,
            "seed": each.seed,
            "order": config.seed,
            "threads": max(1, threads_per_copy(config) // count),
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
        place = str(self.material.dataset.path.absolute())
        output = str(self._opened(each).path)
        return TrainTask(recipe=config.recipe, dataset=place, output=output, settings=tuple(sets))


def _counts(most: int) -> list[int]:
    """Numbers of devices to scan: doubling up to what a copy has."""
    return sorted({most, *(2**n for n in range(16) if 2**n < most)})
