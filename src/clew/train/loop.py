"""The one training loop. Every rank of every strategy runs it; `run_rank` is where a rank begins."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from clew import tally
from clew.dataset import Dataset
from clew.dataset.batch import Batch, to_batch
from clew.dataset.sampler import Sampler
from clew.errors import ClewError, ConfigError, RecipeError, StoppedError
from clew.ledger import Run, Writer
from clew.ledger.records import SCHEMA
from clew.recipe import Recipe
from clew.table import WEIGHT
from clew.train import checkpoint, judge
from clew.train.config import TrainConfig
from clew.train.engine import Engine, schedule
from clew.train.stop import Stop
from clew.train.strategies import Strategy, make

_SAVE, _STOP = 1, 1000
"""Signals between ranks: the sum over all of them is heard, and a thousand ranks save before they stop by mistake."""


class NotFiniteError(ClewError):
    """The loss became NaN or infinite."""


@dataclass
class _Meter:
    """What happened since the last record: the losses, and where the time went."""

    begun: float
    communicated: float
    sums: list[Tensor] = field(default_factory=list)
    wait: float = 0.0


def run_rank(run: Run, recipe: Recipe, config: TrainConfig, rank: int, ranks: int, *, resume: bool = False) -> None:
    """Train as one of `ranks`, from the first batch (or, resuming, from the newest state) to the last record.

    Raises whatever stops it, after writing the end down.
    """
    limit = config.time_limit_minutes
    with run.writer(f"rank-{rank}") as writer:
        writer.write("start", schema=SCHEMA, host=socket.gethostname(), pid=os.getpid(), rank=rank, ranks=ranks)
        try:
            with Stop(None if limit is None else 60 * limit) as stop:
                strategy = make(config.strategy, rank=rank, ranks=ranks, meeting=str(run.meeting_file))
                loop = _Loop(run, recipe, config, strategy, writer, stop)
                if resume:
                    loop.restore()
                loop.train()
                strategy.close()
        except BaseException as error:
            status = {KeyboardInterrupt: "interrupted", StoppedError: "stopped"}.get(type(error), "failed")
            writer.write("end", status=status, message=str(error) or type(error).__name__)
            raise
        writer.write("end", status="finished", message="")


class _Loop:
    """A training that is under way."""

    def __init__(
        self, run: Run, recipe: Recipe, config: TrainConfig, strategy: Strategy, writer: Writer, stop: Stop
    ) -> None:
        self.run, self.recipe, self.config, self.strategy, self.writer = run, recipe, config, strategy, writer
        self.stop = stop
        torch.manual_seed(config.seed)
        self.device = best_device(strategy.rank)
        dataset = Dataset(config.dataset)
        self.samples = dataset.read("train", columns=training_columns(recipe, dataset))
        self.held_out = dataset.read("val")
        self.model = recipe.model().to(self.device)
        strategy.start(self.model)
        torch.manual_seed(config.seed * 1_000_003 + strategy.rank + 1)  # dropout differs from rank to rank
        self.engine = Engine(recipe, self.model, config, strategy)
        self.sampler = self._sampler(len(self.samples), shuffle=True)
        self.meter = self._fresh_meter()
        self.step = self.epoch = 0
        self.saved = time.monotonic()
        self.best: float | None = None

    def train(self) -> None:
        """All epochs: learn, validate, keep."""
        steps = self.sampler.steps * self.config.epochs
        self.writer.write(
            "plan",
            epochs=self.config.epochs,
            steps=steps,
            samples=len(self.samples),
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            device=str(self.device),
        )
        for epoch in range(self.epoch, self.config.epochs):
            self.meter = self._fresh_meter()
            for batch in self._batches(epoch):
                self.engine.rate(schedule(self.config.schedule, self.step, steps))
                self.strategy.signal = self._signal()
                self.meter.sums.append(self.engine.step(batch))
                self.step += 1
                if self.step % self.config.log_every == 0 or self.step % self.sampler.steps == 0:
                    self._record(epoch)
                    self.meter = self._fresh_meter()
                if self.strategy.heard and self.step % self.sampler.steps:
                    self._save(epoch)
            self._validate(epoch)
            self._save(epoch + 1)

    def restore(self) -> None:
        """Go on from the newest state that can be read: weights, optimisers, random numbers, place in the data."""
        state, path, damaged = checkpoint.load_state(self.run)
        checkpoint.fill(self.model, state["model"], path)
        for name, optimizer in self.engine.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.step, self.epoch, self.best = state["step"], state["epoch"], state["best"]
        if self.strategy.rank < len(state["random"]):
            torch.set_rng_state(state["random"][self.strategy.rank])
        self.writer.write(
            "resume", epoch=self.epoch, step=self.step, file=path.name, damaged=[each.name for each in damaged]
        )

    def _signal(self) -> int:
        """What this rank wants after the coming step."""
        if self.stop.wanted:
            return _STOP
        late = time.monotonic() - self.saved > 60 * self.config.checkpoint_minutes
        return _SAVE if late and self.strategy.rank == 0 else 0

    def _save(self, epoch: int) -> None:
        """Write a state to go on from; then stop, if any rank was told to.

        Raises:
            StoppedError: the training ends here, for now.
        """
        random = self.strategy.gather(torch.get_rng_state())
        if self.strategy.rank == 0:
            state = {
                "model": self.model.state_dict(),
                "optimizers": {name: each.state_dict() for name, each in self.engine.optimizers.items()},
                "random": random,
                "step": self.step,
                "epoch": epoch,
                "best": self.best,
            }
            path = checkpoint.save_state(self.run, self.step, state, keep=self.config.keep_checkpoints)
            self.writer.write("checkpoint", epoch=epoch, step=self.step, file=f"checkpoints/{path.name}")
        self.saved = time.monotonic()
        if self.strategy.heard >= _STOP and epoch < self.config.epochs:
            raise StoppedError(f"stopped at step {self.step}; go on with: clew train --resume {self.run.path}")

    def _sampler(self, samples: int, *, shuffle: bool) -> Sampler:
        rank, ranks = self.strategy.rank, self.strategy.ranks
        return Sampler(samples, self.config.batch_size, self.config.seed, rank, ranks, shuffle)

    def _fresh_meter(self) -> _Meter:
        return _Meter(time.perf_counter(), self.strategy.waited)

    def _batches(self, epoch: int) -> Iterator[Batch]:
        for indices in self.sampler.epoch(epoch, self.step - epoch * self.sampler.steps):
            begun = time.perf_counter()
            # a rank whose share of a last, small batch is empty makes the same calls on samples that do not count
            batch = to_batch(self.samples.take(indices if len(indices) else [0, -1]), self.recipe.columns)
            batch.counts = len(indices) > 0
            batch = batch.to(self.device)
            self.meter.wait += time.perf_counter() - begun
            yield batch

    def _record(self, epoch: int) -> None:
        meter = self.meter
        totals = torch.stack(meter.sums).sum(dim=0).tolist()
        if not all(weight for _, weight in totals):
            return  # batches without a single term of the loss have no mean
        mean = {name: total / weight for name, (total, weight) in zip(self.engine.parameters, totals, strict=True)}
        if not np.isfinite(list(mean.values())).all():
            raise NotFiniteError(f"the loss is {mean} at step {self.step}; lower train.optimizer.lr or set train.clip")
        within = (self.step - epoch * self.sampler.steps) * self.config.batch_size
        self.writer.write(
            "step",
            epoch=epoch,
            step=self.step,
            samples=epoch * len(self.samples) + min(within, len(self.samples)),
            loss=mean,
            seconds=time.perf_counter() - meter.begun,
            wait=meter.wait,
            communicate=self.strategy.waited - meter.communicated,
        )

    def _validate(self, epoch: int) -> None:
        begun = time.perf_counter()
        self.strategy.start(self.model)  # ranks gathered statistics of their own (batch norm); rank 0's are saved
        parts = [
            judge.judge(self.recipe, self.model, self.held_out.take(indices), self.device)
            for indices in self._sampler(len(self.held_out), shuffle=False).epoch(epoch)
            if len(indices)
        ]
        metrics = tally.values(self.strategy.add(tally.add(parts)))
        seconds = time.perf_counter() - begun
        self.writer.write("validation", epoch=epoch, step=self.step, metrics=metrics, seconds=seconds)
        if self.strategy.rank == 0:
            self._keep(epoch, metrics)

    def _keep(self, epoch: int, metrics: dict[str, float]) -> None:
        """Save the weights as last, and as best if they are."""
        rule = self.config.best
        if rule.metric not in metrics:
            raise ConfigError(f"train.best.metric '{rule.metric}' is not among {', '.join(metrics)}")
        score = metrics[rule.metric] * (1 if rule.direction == "maximize" else -1)
        better = self.best is None or np.isnan(self.best) or score > self.best
        self.best = score if better else self.best
        for name in ("last", "best") if better else ("last",):
            path = self.run.checkpoint(name)
            checkpoint.save(self.model, path, facts={"epoch": epoch, "step": self.step})
            self.writer.write("checkpoint", epoch=epoch, step=self.step, file=f"checkpoints/{path.name}")


def training_columns(recipe: Recipe, dataset: Dataset) -> list[str] | None:
    """What to read for training: the recipe's columns, and the weights where there are any.

    Raises:
        RecipeError: a column points at items of which none would be read, so its numbers would mean nothing.
    """
    if recipe.columns is None:
        return None
    for name in recipe.columns:
        target = dataset.schema[name].index_of if name in dataset.schema else ""
        if target and not dataset.same_items(target) & set(recipe.columns):
            raise RecipeError(f"Recipe.columns has '{name}', which points at '{target}': add '{target}' to it")
    return [*recipe.columns, *([WEIGHT] if WEIGHT in dataset.schema else [])]


def best_device(rank: int) -> torch.device:
    """The accelerator torch finds, of whatever make, dealt out by rank; or the CPU."""
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    found = torch.accelerator.current_accelerator()
    assert found is not None
    return torch.device(found.type, rank % torch.accelerator.device_count())
