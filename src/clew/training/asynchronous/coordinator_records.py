"""What the coordinator writes: records, validations and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from clew.data.dataset.sampler import Sampler
from clew.recipe import Recipe
from clew.runs import RecordWriter, Run
from clew.training import checkpoint
from clew.training.asynchronous.flat_model import FlatModel
from clew.training.asynchronous.messaging.tcp import HEARTBEAT_TIMEOUT
from clew.training.asynchronous.validation_queue import PendingValidation, ValidationQueue
from clew.training.background_validation import ValidationResult
from clew.training.config import TrainConfig
from clew.training.early_stopping import ValidationTracker
from clew.training.schedule import Schedule

_STEP_RECORD_INTERVAL = 0.5
"""Seconds between two records of steps."""


class CoordinatorRecords:
    """The records, validations and checkpoints of one training."""

    def __init__(
        self, run: Run, recipe: Recipe, config: TrainConfig, writer: RecordWriter, model: nn.Module, sampler: Sampler
    ) -> None:
        self.run, self.recipe, self.config, self.writer, self.model = run, recipe, config, writer, model
        self.path, self.batches = run.path, sampler.steps
        self.heartbeat_timeout = HEARTBEAT_TIMEOUT if config.asynchronous.listen else 12 * HEARTBEAT_TIMEOUT
        """Seconds without a heartbeat after which a worker is lost. A launcher also watches the workers it started."""
        steps = sampler.steps()
        self.schedule = Schedule(config, config.steps or steps * config.epochs, steps)
        self.verdict = ValidationTracker(config, self.schedule)
        self.saver = checkpoint.CheckpointSaver(run, config.keep_checkpoints)
        self.validation = ValidationQueue(recipe, config)
        self._saved_model = recipe.model()
        self._saved_weights = FlatModel(self._saved_model)
        self.epochs = self.samples = 0
        """Epochs that are done, and samples trained on."""
        self.end_reason = ""
        """Why the training ends before its last epoch."""
        self.earlier_seconds, self._started = 0.0, time.monotonic()
        self._last_save, self._save_due = time.monotonic(), False
        self._last_record, self._recorded_step = time.perf_counter(), 0
        self._training = False
        """Whether a worker has trained since this process started."""
        self._losses: dict[str, list[float]] = {}
        """Total and weight of each loss since the last record."""
        self._wait = self._communicate = self._load = 0.0
        """Seconds that workers waited and communicated since the last record, and that the slowest took to load."""

    def rehearse(self, device: torch.device) -> None:
        """Evaluate a few samples, so that mistakes in recipe and settings show before the first step."""
        metrics = self.validation.rehearse(self.model, device)
        ValidationTracker(self.config, Schedule(self.config, 1, 1)).update(metrics)

    def write_plan(self, samples: int, parameters: int, device: str) -> None:
        """Write the record of what is planned."""
        steps = self.batches(0) * self.config.epochs
        steps = min(self.config.steps or steps, steps)
        fields = {"epochs": self.config.epochs, "steps": steps, "samples": samples, "parameters": parameters}
        self.writer.write("plan", **fields, device=device)

    def rate_factor(self, step: int) -> float:
        """Return the factor of the learning rate at a step."""
        return self.schedule.at(step)

    def add_report(self, report: Mapping[str, Any]) -> None:
        """Add the report of a worker to the next record."""
        if report["samples"] and not self._training:  # time before the first worker came is not training time
            self._last_record = max(self._last_record, time.perf_counter() - report["seconds"])
            self._training = True
        if report["load"] > self._load:
            self._load = report["load"]
            self.writer.write("load", seconds=self._load)
        self.samples += report["samples"]
        self._wait, self._communicate = self._wait + report["wait"], self._communicate + report["communicate"]
        for name, (total, weight) in report["losses"].items():
            sums = self._losses.setdefault(name, [0.0, 0.0])
            sums[0], sums[1] = sums[0] + total, sums[1] + weight

    def write_step(self, step: int, workers: int, *, now: bool = False) -> None:
        """Write a record of the steps since the last one, if it is time for one or `now`.

        The times for waiting and communicating are those of the average of `workers` workers.
        """
        seconds = time.perf_counter() - self._last_record
        early = seconds < _STEP_RECORD_INTERVAL and not now
        if step == self._recorded_step or early or not any(weight for _, weight in self._losses.values()):
            return
        count = max(1, workers)
        self.writer.write(
            "step",
            epoch=min(self.epochs, self.config.epochs - 1),
            step=step,
            samples=self.samples,
            loss={name: total / weight for name, (total, weight) in self._losses.items() if weight},
            lr=self.config.optimizer.lr * self.rate_factor(step),
            seconds=seconds,
            wait=min(self._wait / count, seconds),
            communicate=min(self._communicate / count, seconds),
        )
        self._last_record, self._recorded_step, self._losses = time.perf_counter(), step, {}
        self._wait = self._communicate = 0.0
        if self.config.minutes is not None and self._elapsed() > 60 * self.config.minutes:
            self.end_reason = self.end_reason or f"{self.config.minutes:g} minutes are over"

    def write_note(self, message: str, **fields: Any) -> None:
        """Write a note for readers of the records."""
        self.writer.write("note", message=message, **fields)

    def end_epoch(self, values: Tensor, step: int, summary: Mapping[str, Any]) -> None:
        """Write the records of an epoch that is done, and queue the validation of its weights."""
        position = {"epoch": self.epochs, "step": step}
        self.write_step(step, len(summary["workers"]), now=True)
        self.writer.write("workers", **position, **summary)
        self.validation.queue.append(PendingValidation(self.epochs, position, values))
        self.epochs, self._save_due = self.epochs + 1, True

    def add_metrics(self, worker: int, fields: Mapping[str, Any]) -> None:
        """Add the metrics that a worker computed, and write the validation if it is complete."""
        metrics = self.validation.add_metrics(worker, fields)
        if metrics is not None:
            self._finish_validation(metrics)

    def advance_validation(self) -> None:
        """Start and finish validations in a thread or a background process."""
        process = self.validation.process
        if process is None or not self.validation.pending:
            metrics = self.validation.advance_thread()
            if metrics is not None:
                self._finish_validation(metrics)
            return
        current = self.validation.queue[0]
        if current.unassigned is None:
            current.unassigned = []
            path = self.run.checkpoint(f"pending-{current.position['step']}")
            self.saver.save_and_notify(self._state_dict(current.values), path, current.position, process.submit)
        for done in process.results(wait=False):
            best = self._write_validation(done)
            path = self.run.checkpoint(f"pending-{done.facts['step']}")
            self.saver.promote(path, best=best, facts=done.facts)
            self.validation.queue.pop(0)

    def _finish_validation(self, metrics: dict[str, float]) -> None:
        done = self.validation.queue[0]
        seconds = time.perf_counter() - done.started
        best = self._write_validation(ValidationResult(done.position, metrics, seconds))
        self.saver.save_weights(self._state_dict(done.values), ("last", "best") if best else ("last",), done.position)
        self.validation.finish_first()

    def _write_validation(self, done: ValidationResult) -> bool:
        """Write the record of a validation; return whether it is the best so far."""
        self.writer.write("validation", **done.facts, metrics=done.metrics, seconds=done.seconds, background=True)
        best, reason = self.verdict.update(done.metrics)
        self.end_reason = self.end_reason or reason
        return best

    def _state_dict(self, values: Tensor) -> dict[str, Tensor]:
        self._saved_weights.load(values)
        return self._saved_model.state_dict()

    def save_due(self) -> bool:
        """Return whether it is time for a checkpoint: after an epoch, or after `checkpoint_minutes`."""
        return self._save_due or time.monotonic() - self._last_save > 60 * self.config.checkpoint_minutes

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Start to write a checkpoint."""
        self._last_save, self._save_due = time.monotonic(), False
        waiting = [
            [pending.position["epoch"], pending.position["step"], pending.values] for pending in self.validation.queue
        ]
        progress = {
            "place": [step, self.epochs, 0, self.samples],
            "spent": self._elapsed(),
            "over": self.end_reason,
            "verdict": self.verdict.state(),
            "waiting": waiting,
        }
        self.saver.save(step, {**state, **progress})

    def restore(self) -> dict[str, Any]:
        """Load the newest checkpoint, with its weights into the model, and return the rest of it."""
        state, path, damaged = checkpoint.load_state(self.run)
        checkpoint.load_into(self.model, state["model"], path)
        step, self.epochs, _, self.samples = state["place"]
        self.earlier_seconds, self.end_reason, self._recorded_step = state["spent"], state["over"], step
        self.verdict.restore(state["verdict"])
        self.validation.queue = [
            PendingValidation(epoch, {"epoch": epoch, "step": step}, values) for epoch, step, values in state["waiting"]
        ]
        fields = {"epoch": self.epochs, "step": step, "samples": self.samples, "file": path.name}
        self.writer.write("resume", **fields, damaged=[file.name for file in damaged])
        return state

    def write_checkpoints(self, *, wait: bool = False) -> None:
        """Write a record of each checkpoint that is on disk by now; with `wait`, of all that were started."""
        for path, fields in self.saver.finished(wait=wait):
            if not path.stem.startswith("pending"):
                self.writer.write("checkpoint", **fields, file=f"checkpoints/{path.name}")

    def finish(self, step: int, summary: Mapping[str, Any]) -> None:
        """Write the last records."""
        self.write_step(step, len(summary["workers"]), now=True)
        self.writer.write("workers", epoch=self.epochs, step=step, **summary)
        if self.config.steps == step:
            self.end_reason = self.end_reason or f"{step} steps are done"
        self.write_checkpoints(wait=True)
        self.close()

    def close(self) -> None:
        """End threads and processes."""
        self.saver.close()
        self.validation.close()

    def _elapsed(self) -> float:
        return self.earlier_seconds + time.monotonic() - self._started
