"""What the coordinator keeps besides the weights: records, validations, checkpoints."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clew.data.dataset import Dataset
from clew.data.dataset.sample_store import Disk, Memory, Store
from clew.data.dataset.sampler import Sampler
from clew.errors import WorkerError
from clew.metrics import Metric, add_metrics, metric_from_data, metric_values
from clew.recipe import Recipe
from clew.runs import RecordWriter, Run
from clew.training import checkpoint, validation
from clew.training.asynchronous.flat_model import Vector
from clew.training.asynchronous.messaging.tcp import SILENCE
from clew.training.background_validation import BackgroundValidator, ValidationResult
from clew.training.config import TrainConfig
from clew.training.control import Schedule, ValidationTracker

_PERIOD = 0.5
"""Seconds between two records."""


@dataclass
class Judging:
    """The validation of a moment's weights."""

    number: int
    facts: dict[str, int]
    values: Tensor
    begun: float = field(default_factory=time.perf_counter)
    parts: list[tuple[int, int]] | None = None
    """Batches that nobody judges yet; None before the first asks."""
    given: dict[int, tuple[int, int]] = field(default_factory=dict)
    found: list[Mapping[str, Metric]] = field(default_factory=list)


class Book:
    """Of one training."""

    def __init__(
        self, run: Run, recipe: Recipe, config: TrainConfig, writer: RecordWriter, model: nn.Module, sampler: Sampler
    ) -> None:
        self.run, self.recipe, self.config, self.writer, self.model = run, recipe, config, writer, model
        self.path, self.batches = run.path, sampler.steps
        self.silence = SILENCE if config.central.listen else 12 * SILENCE
        """Seconds without a sign of life after which a worker is given up; a fixed team has its launcher to tell."""
        steps = sampler.steps()
        self.schedule = Schedule(config, config.steps or steps * config.epochs, steps)
        self.verdict = ValidationTracker(config, self.schedule)
        self.saver = checkpoint.CheckpointSaver(run, config.keep_checkpoints)
        dataset = Dataset(config.dataset)
        memory = config.loading.keep == "memory"
        self.held_out: Store = Memory(dataset.read("val")) if memory else Disk(dataset, "val", None)
        self._spare = recipe.model()
        self._vector = Vector(self._spare)
        self._kinds: dict[str, Metric] = {}
        self._validator = BackgroundValidator(recipe, config) if config.validation == "background" else None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="validate") if config.validation == "thread" else None
        self._under_way: Future[dict[str, float]] | None = None
        self._queue: list[Judging] = []
        self.epochs = self.seen = 0
        """Epochs that are over, samples seen."""
        self.over = ""
        """Why the training ends before its last epoch."""
        self.spent, self._begun = 0.0, time.monotonic()
        self._saved, self._due = time.monotonic(), False
        self._recorded, self._step = time.perf_counter(), 0
        self._sums: dict[str, list[float]] = {}
        self._waited = self._talked = 0.0

    def rehearse(self, device: torch.device) -> None:
        """A few held-out samples through everything, to find what does not fit before the first step."""
        few = self.held_out.read(np.arange(min(4, len(self.held_out))))
        self._kinds = validation.check_batch(self.recipe, self.model, few, device)
        ValidationTracker(self.config, Schedule(self.config, 1, 1)).see(metric_values(self._kinds))

    def plan(self, samples: int, parameters: int, device: str) -> None:
        """Write down what is ahead."""
        steps = self.batches(0) * self.config.epochs
        steps = min(self.config.steps or steps, steps)
        facts = {"epochs": self.config.epochs, "steps": steps, "samples": samples, "parameters": parameters}
        self.writer.write("plan", **facts, device=device)

    def rate(self, step: int) -> float:
        """The factor of the learning rate."""
        return self.schedule.at(step)

    def add(self, facts: Mapping[str, Any]) -> None:
        """A worker's report."""
        if facts["samples"] and not self._sums:  # time in which nobody was there to learn is no time of training
            self._recorded = max(self._recorded, time.perf_counter() - facts["seconds"])
        self.seen += facts["samples"]
        self._waited, self._talked = self._waited + facts["wait"], self._talked + facts["communicate"]
        for name, (total, weight) in facts["losses"].items():
            mine = self._sums.setdefault(name, [0.0, 0.0])
            mine[0], mine[1] = mine[0] + total, mine[1] + weight

    def record(self, step: int, members: Iterable[int], *, now: bool = False) -> None:
        """Write a record if it is time for one; times are those of the average worker."""
        seconds = time.perf_counter() - self._recorded
        if step == self._step or (seconds < _PERIOD and not now) or not any(w for _, w in self._sums.values()):
            return
        count = max(1, len(list(members)))
        self.writer.write(
            "step",
            epoch=min(self.epochs, self.config.epochs - 1),
            step=step,
            samples=self.seen,
            loss={name: total / weight for name, (total, weight) in self._sums.items() if weight},
            lr=self.config.optimizer.lr * self.rate(step),
            seconds=seconds,
            wait=min(self._waited / count, seconds),
            communicate=min(self._talked / count, seconds),
        )
        self._recorded, self._step, self._sums = time.perf_counter(), step, {}
        self._waited = self._talked = 0.0
        if self.config.minutes is not None and self._elapsed() > 60 * self.config.minutes:
            self.over = self.over or f"{self.config.minutes:g} minutes are over"

    def note(self, message: str, **facts: Any) -> None:
        """Something a reader of the records should know."""
        self.writer.write("note", message=message, **facts)

    def failed(self, peer: int, why: str, *, last: bool) -> None:
        """A worker could not go on.

        Raises:
            WorkerError: nobody can take its place.
        """
        if last:
            raise WorkerError(f"worker {peer}: {why}")

    @property
    def busy(self) -> bool:
        """Whether a validation is still to come."""
        return bool(self._queue)

    def epoch_over(self, values: Tensor, step: int, facts: Mapping[str, Any]) -> None:
        """An epoch is done with these weights: they are to be judged."""
        told = {"epoch": self.epochs, "step": step}
        self.record(step, facts["workers"], now=True)
        self.writer.write("workers", **told, **facts)
        self._queue.append(Judging(self.epochs, told, values))
        self.epochs, self._due = self.epochs + 1, True

    def snapshot(self, number: int) -> Tensor | None:
        """The weights that are being judged."""
        return next((each.values for each in self._queue if each.number == number), None)

    def part_for(self, peer: int, workers: int) -> list[int] | None:
        """Held-out batches for a worker to judge: their validation's number, the first, and where they stop."""
        if self.config.validation != "shared" or not self._queue or peer in self._queue[0].given:
            return None
        now = self._queue[0]
        if now.parts is None:
            count = -(-len(self.held_out) // self.config.size)
            edges = [count * place // workers for place in range(workers + 1)]
            now.parts = [(a, b) for a, b in itertools.pairwise(edges) if a < b]
        if not now.parts:
            return None
        now.given[peer] = now.parts.pop(0)
        return [now.number, *now.given[peer]]

    def judged(self, facts: Mapping[str, Any], peer: int) -> None:
        """The tallies of a part."""
        now = self._queue[0] if self._queue else None
        if now is None or now.number != facts["number"] or now.given.pop(peer, None) is None:
            return
        now.found.append({name: metric_from_data(data, self._kinds[name]) for name, data in facts["found"].items()})
        if not now.parts and not now.given:
            self._seen(now, metric_values(add_metrics(now.found)))

    def left(self, peer: int) -> None:
        """A worker is gone: what it should have judged is somebody else's."""
        for each in self._queue:
            part = each.given.pop(peer, None)
            if part is not None and each.parts is not None:
                each.parts.append(part)

    def advance(self) -> None:
        """Begin and end validations in a thread or a spare process."""
        if not self._queue or self.config.validation == "shared":
            return
        now = self._queue[0]
        if self._validator is not None:
            if now.parts is None:
                now.parts = []
                path = self.run.checkpoint(f"pending-{now.facts['step']}")
                self.saver.lend(self._weights(now.values), path, now.facts, self._validator.submit)
            for done in self._validator.results(wait=False):
                best = self._written(done, background=True)
                self.saver.promote(self.run.checkpoint(f"pending-{done.facts['step']}"), best=best, facts=done.facts)
                self._queue.pop(0)
        elif self._pool is not None:
            if self._under_way is None:
                self._under_way = self._pool.submit(self._judge, now.values)
            elif self._under_way.done():
                found, self._under_way = self._under_way.result(), None
                self._seen(now, found)

    def _judge(self, values: Tensor) -> dict[str, float]:
        model = self.recipe.model()
        Vector(model).fill(values)
        batches = Sampler(len(self.held_out), self.config.size, shuffle=False).batches(0)
        return metric_values(
            validation.evaluate_batches(self.recipe, model, self.held_out, batches, torch.device("cpu"))
        )

    def _seen(self, now: Judging, metrics: dict[str, float]) -> None:
        best = self._written(ValidationResult(now.facts, metrics, time.perf_counter() - now.begun), background=True)
        self.saver.keep(self._weights(now.values), ("last", "best") if best else ("last",), now.facts)
        self._queue.pop(0)
        if self._queue:
            self._queue[0].begun = time.perf_counter()

    def _written(self, done: ValidationResult, **more: Any) -> bool:
        self.writer.write("validation", **done.facts, metrics=done.metrics, seconds=done.seconds, **more)
        best, over = self.verdict.see(done.metrics)
        self.over = self.over or over
        return best

    def _weights(self, values: Tensor) -> dict[str, Tensor]:
        self._vector.fill(values)
        return self._spare.state_dict()

    def save_due(self) -> bool:
        """Whether it is time for a state to go on from."""
        late = time.monotonic() - self._saved > 60 * self.config.checkpoint_minutes
        return self._due or late

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Begin to write a state."""
        self._saved, self._due = time.monotonic(), False
        waiting = [[each.facts["epoch"], each.facts["step"], each.values] for each in self._queue]
        more = {
            "place": [step, self.epochs, 0, self.seen],
            "spent": self._elapsed(),
            "over": self.over,
            "verdict": self.verdict.state(),
            "waiting": waiting,
        }
        self.saver.save(step, {**state, **more})

    def restore(self) -> dict[str, Any]:
        """Put the newest state back, weights included; the rest of it is for the caller."""
        state, path, damaged = checkpoint.load_state(self.run)
        checkpoint.load_into(self.model, state["model"], path)
        step, self.epochs, _, self.seen = state["place"]
        self.spent, self.over, self._step = state["spent"], state["over"], step
        self.verdict.restore(state["verdict"])
        self._queue = [Judging(e, {"epoch": e, "step": s}, values) for e, s, values in state["waiting"]]
        facts = {"epoch": self.epochs, "step": step, "file": path.name}
        self.writer.write("resume", **facts, damaged=[each.name for each in damaged])
        return state

    def listen(self, *, wait: bool = False) -> None:
        """Write down which checkpoints are on disk."""
        for path, facts in self.saver.finished(wait=wait):
            if not path.stem.startswith("pending"):
                self.writer.write("checkpoint", **facts, file=f"checkpoints/{path.name}")

    def close(self, step: int, facts: Mapping[str, Any], members: Iterable[int]) -> None:
        """Nothing comes any more."""
        self.record(step, facts["workers"], now=True)
        self.writer.write("workers", epoch=self.epochs, step=step, **facts)
        if self.config.steps == step:
            self.over = self.over or f"{step} steps are done"
        self.listen(wait=True)
        self.end()

    def end(self) -> None:
        """Let threads and processes end."""
        self.saver.close()
        if self._validator is not None:
            self._validator.close()
        if self._pool is not None:
            self._pool.shutdown()

    def _elapsed(self) -> float:
        return self.spent + time.monotonic() - self._begun
