"""Run a workload: a fixed network, fixed data and seeds, in one or more copies on a node."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clew import settings
from clew.bench.measured_jobs import killed_with_parent, local_launcher, stop_job
from clew.bench.workload import hepscore
from clew.bench.workload.config import (
    ACCURACY,
    FIXED,
    WorkloadConfig,
    check_devices,
    devices_per_copy,
    threads_per_copy,
)
from clew.bench.workload.environment import data_facts, energy_source, environment, hashes
from clew.bench.workload.event_data import EventData, EventRequest, make_event_data
from clew.bench.workload.hardware import ClockMeter
from clew.bench.workload.results import WorkloadResult, summary
from clew.bench.workload.training_run import WorkloadRun, read_run, record_end
from clew.core.config import to_data
from clew.errors import RunError, WorkerError
from clew.jobs.launchers.launcher import END_STATES, LaunchedJob, Launcher, Slot, core_share
from clew.jobs.task import TrainTask
from clew.runs import Run

_POLL_SECONDS = 0.2
_MOST_TRIES = 8
"""Largest number of short trainings that search for a batch size that fits."""
Notify = Callable[[str], None]
"""Called with a line of text about the progress."""


def run_workload(config: WorkloadConfig, output: Path, notify: Notify = lambda text: None) -> WorkloadResult:
    """Run the workload into `output`: `<name>_summary.json`, `report.json`, `report.html`, and the runs.

    A training that fails is part of the result. Earlier measurements are kept.

    Raises:
        ConfigError, DataError: The settings or the files are not valid.
        RunError: The folder holds a result already.
        WorkerError: No epoch was finished, for another reason than memory.
    """
    check_devices(config)
    recipe = settings.load_settings(config.recipe, config.recipe_settings).recipe
    if (output / f"{config.name}{hepscore.SUFFIX}").exists():
        raise RunError(f"{output} holds a result already; choose another folder with --output")
    data = make_event_data(
        recipe, EventRequest(config.events, config.seed, config.data, config.fixed_events), output, notify
    )
    result = WorkloadResult(
        to_data(config), environment(), hashes(config, data), data_facts(recipe, data), power=energy_source()
    )
    runner = WorkloadRunner(config, output, data, result, notify)
    for number in range(config.seeds):
        if not runner.train(config.seed + number, config.batch_size) and result.runs[-1].too_large:
            break
    if any(run.too_large for run in result.runs):
        runner.find_fitting()
    if result.successful:
        for count, size in itertools.product(
            _device_counts(devices_per_copy(config)) if config.batch_scan else (), config.batch_scan
        ):
            runner.scan(size, count)
        runner.measure_model()
    result.status = "finished" if result.successful else "out of memory" if result.fits else "failed"
    runner.publish()
    if result.status == "failed":
        raise WorkerError(f"the workload failed: {result.runs[-1].message}")
    return result


@dataclass
class WorkloadRunner:
    """A workload in progress."""

    config: WorkloadConfig
    output: Path
    data: EventData
    result: WorkloadResult
    notify: Notify
    clocks: ClockMeter = field(default_factory=ClockMeter)

    def train(self, seed: int, batch_size: int) -> bool:
        """Train all copies of one seed. Return whether all succeeded."""
        runs = [WorkloadRun(seed, copy, f"runs/seed-{seed}-copy-{copy}") for copy in range(self.config.copies)]
        self.result.runs += runs
        self.run(runs, batch_size, f"seed {seed}", publish=True)
        return all(not run.message for run in runs)

    def scan(self, batch_size: int, count: int) -> None:
        """Measure another batch size and number of devices."""
        runs = self.result.copies(self.config.seed)
        if (batch_size, count) != (self.config.batch_size, devices_per_copy(self.config)):
            runs = [
                WorkloadRun(self.config.seed, copy, f"runs/batch-{batch_size}-devices-{count}-copy-{copy}")
                for copy in range(self.config.copies)
            ]
            runner = replace(self, config=self.config.model_copy(update={"gpus": count}))
            runner.run(runs, batch_size, f"batch {batch_size}{f' on {count} devices' if count else ''}")
        successful = [run for run in runs if run.epochs and not run.message]
        self.result.scan.append(
            {
                "batch_size_per_device": batch_size,
                "devices": count,
                "events_per_second": sum(run.events_per_second for run in successful) or None,
                "accuracy": successful[0].last(ACCURACY) if successful else None,
                "fits": not any(run.too_large for run in runs),
                "message": next((run.message for run in runs if run.message), ""),
            }
        )
        self.publish()

    def find_fitting(self) -> None:
        """Find the largest batch that fits into memory, by bisection with short trainings."""
        tried: list[dict[str, Any]] = []
        low, high = 0, self.config.batch_size
        while high - low > 1 and len(tried) < _MOST_TRIES:
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
            "requested": self.config.batch_size,
            "largest_that_fits": low or None,
            "smallest_that_does_not": high,
            "exact": high - low <= 1,
            "tried": list(tried),
        }

    def measure_model(self) -> None:
        """Measure inference, and how outputs depend on the threads, with the trained model."""
        from clew.bench.workload import inference_speed

        run = Run(self.output / self.result.successful[0].run)
        if self.config.inference:
            self.notify("inference")
            self.result.inference = inference_speed.inference(run, self.config)
        if self.config.deterministic:
            self.notify("comparing one thread with all threads")
            self.result.agreement = inference_speed.agreement(run, self.config)

    def publish(self) -> None:
        """Write the summary, the report and the page with everything measured so far."""
        from clew.bench.workload.page import write

        hepscore.write_summary(self.output / f"{self.config.name}{hepscore.SUFFIX}", summary(self.result, self.config))
        self.result.save(self.output / "report.json")
        write(self.result, self.output / "report.html")

    def run(
        self,
        runs: Sequence[WorkloadRun],
        batch_size: int,
        title: str,
        *,
        steps: int | None = None,
        publish: bool = False,
    ) -> None:
        """Train these copies at the same time and wait until they end.

        Args:
            runs: The copies. Their measurements are filled in.
            batch_size: Events per batch and device.
            title: Name of the measurement, for progress messages.
            steps: Stop after this many steps.
            publish: Write the result after every epoch.
        """
        launcher = local_launcher(max(1, devices_per_copy(self.config)))
        jobs: dict[int, LaunchedJob] = {}
        try:
            for run in runs:
                jobs[run.copy] = launcher.start(
                    self._task(run, batch_size, steps), folder=self._job_folder(run), slot=self._slot(run.copy)
                )
            with killed_with_parent(list(jobs.values())):
                self._watch(launcher, runs, jobs, title, publish)
        except BaseException:
            for job in jobs.values():
                stop_job(launcher, job)
            raise

    def _watch(
        self,
        launcher: Launcher,
        runs: Sequence[WorkloadRun],
        jobs: dict[int, LaunchedJob],
        title: str,
        publish: bool,
    ) -> None:
        start, last_count, active = time.monotonic(), -1, set(jobs)
        while active:
            for run in [run for run in runs if run.copy in active]:
                opened, state = self._run_of(run), launcher.state(jobs[run.copy])
                run.state = state
                read_run(run, opened)
                if state in END_STATES:
                    record_end(run, opened, state, jobs[run.copy])
                    active.discard(run.copy)
            self.clocks.sample()
            self.result.clocks = self.clocks.summary()
            count = sum(len(run.epochs) for run in runs)
            if count != last_count and publish:
                self.publish()
            last_count = count
            done = f"{min(len(run.epochs) for run in runs)} of {self.config.epochs} epochs"
            self.notify(f"{title}: {done}, {time.monotonic() - start:.0f} s")
            if active:
                time.sleep(_POLL_SECONDS)

    def _run_of(self, run: WorkloadRun) -> Run:
        return Run((self.output / run.run).absolute())

    def _job_folder(self, run: WorkloadRun) -> Path:
        folder = self.output.absolute() / "jobs" / Path(run.run).name
        for path in (folder, self.output / run.run):
            shutil.rmtree(path, ignore_errors=True)
        return folder

    def _slot(self, copy: int) -> Slot:
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        count = devices_per_copy(self.config)
        devices = tuple(range(copy * count, (copy + 1) * count)) if count else ()
        return Slot(core_share(cores, copy, self.config.copies) if cores else (), devices)

    def _task(self, run: WorkloadRun, batch_size: int, steps: int | None) -> TrainTask:
        config, count = self.config, max(1, devices_per_copy(self.config))
        values: dict[str, Any] = {
            "workers": count,
            "batch_size": batch_size * count,
            "epochs": config.epochs if steps is None else 1,
            "steps": steps,
            "seed": run.seed,
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
        dataset = str(self.data.dataset.path.absolute())
        output = str(self._run_of(run).path)
        return TrainTask(recipe=config.recipe, dataset=dataset, output=output, settings=tuple(sets))


def _device_counts(largest: int) -> list[int]:
    """Return the numbers of devices to scan: powers of two up to those of a copy."""
    return sorted({largest, *(2**n for n in range(16) if 2**n < largest)})
