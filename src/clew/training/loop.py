"""The one training loop. Every rank of every strategy runs it; `run_rank` is where a rank begins."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch

from clew.data.dataset import Dataset
from clew.data.dataset.sample_store import Disk, Memory, Store
from clew.data.dataset.sampler import Sampler
from clew.errors import LeaseError, StoppedError
from clew.jobs.lease import Lease
from clew.jobs.rank_info import RankInfo
from clew.metrics import metric_values
from clew.recipe import Recipe
from clew.runs import RecordWriter, Run
from clew.training import batch_size_search, checkpoint, validation
from clew.training.background_validation import BackgroundValidator, ValidationResult
from clew.training.config import TrainConfig
from clew.training.control import Schedule, ValidationTracker
from clew.training.engine import Engine
from clew.training.rank_session import open_session, system_monitor
from clew.training.step_statistics import StepStatistics, save_bad_batch
from clew.training.stop_signal import StopSignal
from clew.training.strategies import Strategy, make_strategy
from clew.training.timeline_writer import CHECKPOINT, LOAD, READ, VALIDATE, TimelineWriter
from clew.training.training_data import default_device, make_loader, training_columns

T = TypeVar("T")

_SAVE, _FINISH, _LEAVE = 1, 2, 3
"""Orders of rank 0."""
_LISTEN = 10
"""Steps between two times at which ranks on devices hear each other."""
_SILENCE = 0.5
"""Seconds between two records."""


def run_rank(
    run: Run,
    recipe: Recipe,
    config: TrainConfig,
    place: RankInfo,
    *,
    store: Any = None,
    resume: bool = False,
    lease: Lease | None = None,
) -> None:
    """Train as one of several ranks that meet in `store`, from the first batch (or, resuming, from the newest state)
    to the last record. Rank 0 gives a sign of life to `lease`, and all ranks stop at the same step if that says so.

    Raises whatever stops it, after writing the end down.
    """
    with open_session(run, config, place, lease) as rank:
        device = default_device(place.local_rank)
        strategy = make_strategy(config, rank=place.rank, ranks=place.ranks, store=store, device=device)
        config = _sized(run, recipe, config, strategy, rank.writer, device)
        with (
            contextlib.closing(_Loop(run, recipe, config, strategy, rank.writer, rank.stop, device)) as loop,
            system_monitor(run, config, place, device),
        ):
            loop.rehearse()
            if resume:
                loop.restore()
            loop.train()
        strategy.close()
        rank.over = loop.over


def _sized(
    run: Run, recipe: Recipe, config: TrainConfig, strategy: Strategy, writer: RecordWriter, device: torch.device
) -> TrainConfig:
    """The settings with a batch size in them; rank 0 finds one where none was given."""
    if isinstance(config.batch_size, int):
        return config
    found = None
    if strategy.rank == 0:
        dataset = Dataset(config.dataset)
        found = batch_size_search.find_batch_size(recipe, config, dataset, training_columns(recipe, dataset), device)
    found = strategy.gather(found)[0]
    size = min(found["chosen"] * strategy.share[1], Dataset(config.dataset).splits["train"])
    writer.write("batch_size", **{**found, "chosen": size})
    if strategy.rank == 0:
        run.save_settings(batch_size=size)
    return config.model_copy(update={"batch_size": size})


class _Loop:
    """A training that is under way."""

    def __init__(
        self,
        run: Run,
        recipe: Recipe,
        config: TrainConfig,
        strategy: Strategy,
        writer: RecordWriter,
        stop: StopSignal,
        device: torch.device,
    ) -> None:
        self.run, self.recipe, self.config, self.strategy, self.writer = run, recipe, config, strategy, writer
        self.stop, self.device = stop, device
        dataset, begun = Dataset(config.dataset), time.perf_counter()
        self.loader = make_loader(recipe, config, dataset, strategy, device)
        self.filling = time.perf_counter() - begun
        """Seconds that it took to have this rank's samples where they are kept."""
        self.held_out: Store = (
            Memory(dataset.read("val")) if config.loading.keep == "memory" else Disk(dataset, "val", None)
        )
        torch.manual_seed(config.seed)
        model = recipe.model().to(device)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.model = strategy.place(model)
        if config.compile:
            self.model.compile()
        torch.manual_seed(config.seed * 1_000_003 + strategy.rank + 1)  # dropout differs from rank to rank
        behind = strategy.behind()
        self.trace = TimelineWriter(
            run.trace_folder / f"rank-{strategy.rank}.trace" if config.trace else None, behind=behind
        )
        self.loader.on_wait = lambda begun, ended: self.trace.add(LOAD, begun, ended)
        self.loader.on_read = lambda begun, ended: self.trace.add(READ, begun, ended)
        self.engine = Engine(recipe, self.model, config, strategy, device, self.trace)
        self.steps = self.loader.sampler.steps()
        self.schedule = Schedule(config, config.steps or self.steps * config.epochs, self.steps)
        self.verdict = ValidationTracker(config, self.schedule)
        self.saver = checkpoint.CheckpointSaver(run, config.keep_checkpoints)
        self.validator: BackgroundValidator | None = None
        if config.validation == "background" and strategy.rank == 0:
            self.validator = BackgroundValidator(recipe, config)
        self.pending: list[dict[str, int]] = []
        """Which weights are being validated beside the training."""
        self.step = self.epoch = self.place = self.seen = 0
        """Steps done, epochs done, batches done of the one under way, samples seen."""
        self.spent, self.begun = 0.0, time.monotonic()
        self.saved = time.monotonic()
        self.over = ""
        """Why the training ends before its last epoch."""

    def train(self) -> None:
        """All epochs: learn, validate, keep."""
        self.writer.write(
            "plan",
            epochs=self.config.epochs,
            steps=min(self.config.steps or 1 << 62, self.steps * self.config.epochs),
            samples=len(self.loader.store),
            parameters=self.parameters,
            device=str(self.device),
            filling=self.filling,
        )
        while self.epoch < self.config.epochs and not self.over:
            if not self._learn():
                self.epoch, self.place = self.epoch + 1, 0
            with self.trace.span(VALIDATE):
                self._validate()
            self._save()
            self.trace.flush()
        if self.pending:
            self._collect()
            self._written(wait=True)

    def rehearse(self) -> None:
        """A few held-out samples through everything: what does not fit is found before the first step.

        Raises:
            RecipeError: the model does not take the data.
            ConfigError: a metric that settings name is not there.
        """
        few = self.held_out.read(np.arange(min(4, len(self.held_out))))
        metrics = metric_values(validation.check_batch(self.recipe, self.model, few, self.device))
        ValidationTracker(self.config, Schedule(self.config, 1, 1)).see(metrics)

    def restore(self) -> None:
        """Go on from the newest state that can be read: weights, optimisers, random numbers, place in the data."""
        state, path, damaged = checkpoint.load_state(self.run)
        checkpoint.check_same_model(self.strategy.weights(self.model), state["model"], path)
        self.strategy.fill(self.model, state["model"])
        for name, optimizer in self.engine.optimizers.items():
            self.strategy.fill_optimizer(optimizer, state["optimizers"][name])
        if self.engine.scaler is not None:
            self.engine.scaler.load_state_dict(state["scaler"])
        if self.engine.average is not None:
            with self.engine.average.swapped():
                self.strategy.fill(self.model, state["average"])
        self.step, self.epoch, self.place, self.seen = state["place"]
        self.spent, self.over = state["spent"], state["over"]
        self.verdict.restore(state["verdict"])
        self.pending = state["pending"]
        if self.validator is not None:
            for facts in self.pending:
                kept = self.run.checkpoint(f"pending-{facts['step']}")
                self.validator.submit(kept if kept.exists() else self.run.checkpoint("last"), facts)
        if len(state["ranks"]) == self.strategy.ranks:
            self._restore_own(state["ranks"][self.strategy.rank])
        self.writer.write(
            "resume", epoch=self.epoch, step=self.step, file=path.name, damaged=[each.name for each in damaged]
        )

    def close(self) -> None:
        """Let what is being written end."""
        self.loader.close()
        self.saver.close()
        self.trace.close()
        if self.validator is not None:
            self.validator.close()

    def _learn(self) -> bool:
        """The rest of an epoch; whether it was broken off."""
        meter = self._fresh_meter()
        steps = self.loader.sampler.steps(self.epoch)
        with contextlib.closing(self.loader.epoch(self.epoch, self.place)) as portions:
            for portion in portions:
                self.trace.begin_step(self.step)
                self.engine.rate(self.schedule.at(self.step))
                self.stop.beat()
                self.strategy.order, self.strategy.alarm = self._order(), self.stop.wanted
                self.strategy.size = portion.size
                meter.add(self.engine.step(portion.parts), portion)
                self.step, self.place, self.seen = self.step + 1, self.place + 1, self.seen + portion.size
                enough = self.step == self.config.steps
                if self.place == steps or enough or self._due(meter):
                    self._record(meter)
                    meter = self._fresh_meter()
                # reading what the others said makes a device wait: there, only now and then
                if self.device.type == "cpu" or self.step % _LISTEN == 0:
                    order, alarm = self.strategy.heard()
                    if order == _LEAVE:
                        raise LeaseError(f"{self.run.path} was handed to another at step {self.step}; this one leaves")
                    if order == _FINISH:
                        self.over = f"{self.config.minutes:g} minutes are over"
                    elif (order or alarm) and self.place < steps and not enough:
                        self._save(stop=alarm)
                if enough or self.over:
                    self.over = self.over or f"{self.step} steps are done"
                    return self.place < steps
        return False

    def _due(self, meter: StepStatistics) -> bool:
        """Whether it is time for a record."""
        every = self.config.log_every
        return meter.age > _SILENCE if every is None else self.step % every == 0

    def _order(self) -> int:
        """What rank 0 wants all to do after the coming step."""
        if self.stop.lost:
            return _LEAVE
        if self.config.minutes is not None and self._elapsed() > 60 * self.config.minutes:
            return _FINISH
        return _SAVE if time.monotonic() - self.saved > 60 * self.config.checkpoint_minutes else 0

    def _elapsed(self) -> float:
        return self.spent + time.monotonic() - self.begun

    def _validate(self) -> None:
        """Judge the weights of this moment, here and now or beside what comes next."""
        self.strategy.agree(self.model)
        facts = {"epoch": self.epoch - 1 + bool(self.place), "step": self.step}
        average = self.engine.average
        with average.swapped() if average else contextlib.nullcontext():
            if self.config.validation == "background":
                self._collect()  # one at a time: the epoch before must have been judged by now
                self._hand_over(self.strategy.weights(self.model), facts)
                return
            begun = time.perf_counter()
            metrics = self._judged()
            best = self._seen(ValidationResult(facts, metrics, time.perf_counter() - begun))
            weights = self.strategy.weights(self.model)
            if self.strategy.rank == 0:
                self._written(wait=True)
                self.saver.keep(weights, ("last", "best") if best else ("last",), facts)

    def _judged(self) -> dict[str, float]:
        rank, ranks = self.strategy.share
        size = -(-self.config.size // self.config.accumulate)  # what fits into memory when learning
        shares = Sampler(len(self.held_out), size, 0, rank, ranks, shuffle=False)
        found = validation.evaluate_batches(
            self.recipe, self.model, self.held_out, self._beating(shares.epoch(0)), self.device
        )
        return metric_values(self.strategy.add(found))

    def _beating(self, batches: Iterable[T]) -> Iterator[T]:
        """Validation may take longer than a lease."""
        for each in batches:
            self.stop.beat()
            yield each

    def _seen(self, done: ValidationResult, **more: Any) -> bool:
        """Write a validation down; whether its weights are the best so far."""
        loading = dict(self.loader.store.facts)
        self.writer.write(
            "validation", **done.facts, metrics=done.metrics, seconds=done.seconds, loading=loading, **more
        )
        best, over = self.verdict.see(done.metrics)
        self.over = self.over or over
        return best

    def _hand_over(self, weights: dict[str, Any], facts: dict[str, int]) -> None:
        """Have these weights judged by the spare process, once they are on disk."""
        self.pending.append(facts)
        if self.validator is not None:
            self._written(wait=True)
            self.saver.lend(weights, self.run.checkpoint(f"pending-{facts['step']}"), facts, self.validator.submit)

    def _collect(self) -> None:
        """Wait for what the spare process was given, and keep what it judged: that very file."""
        results = self.validator.results(wait=True) if self.validator is not None and self.pending else []
        for done in self.strategy.gather(results)[0]:
            best = self._seen(done, background=True)
            if self.strategy.rank == 0:
                self.saver.promote(self.run.checkpoint(f"pending-{done.facts['step']}"), best=best, facts=done.facts)
        self.pending = []

    def _save(self, *, stop: bool = False) -> None:
        """Write a state to go on from; then stop, if any rank was told to.

        Raises:
            StoppedError: the training ends here, for now.
        """
        state = {
            "ranks": self.strategy.gather(self._own()),
            "model": self.strategy.weights(self.model),
            "optimizers": {n: self.strategy.optimizer_state(each) for n, each in self.engine.optimizers.items()},
            "scaler": self.engine.scaler.state_dict() if self.engine.scaler else None,
            "average": self._averaged(),
            "place": [self.step, self.epoch, self.place, self.seen],
            "spent": self._elapsed(),
            "over": self.over,
            "pending": self.pending,
            "verdict": self.verdict.state(),
        }
        self.stop.beat()
        if self.strategy.rank == 0 and not self.stop.lost:
            with self.trace.span(CHECKPOINT):
                self._written(wait=True)
                self.saver.save(self.step, state)
        self.saved = time.monotonic()
        ends = bool(self.over) or self.epoch == self.config.epochs
        stop = not ends and (stop or self.strategy.heard()[1])
        if self.strategy.rank == 0:
            self._written(wait=stop or ends)
        if stop:
            why = f" ({self.stop.why})" if self.stop.why else ""
            raise StoppedError(f"stopped at step {self.step}{why}; go on with: clew train --resume {self.run.path}")

    def _written(self, *, wait: bool) -> None:
        """Write down which checkpoints are now on disk."""
        for path, facts in self.saver.finished(wait=wait):
            if path.stem.startswith("pending"):
                continue  # not kept: it becomes the last weights once they are judged
            self.writer.write("checkpoint", **facts, file=f"checkpoints/{path.name}")

    def _averaged(self) -> Any:
        if self.engine.average is None:
            return None
        with self.engine.average.swapped():
            return {name: tensor.clone() for name, tensor in self.strategy.weights(self.model).items()}

    def _own(self) -> dict[str, Any]:
        """What this rank alone has: random numbers, and statistics not averaged yet."""
        found: dict[str, Any] = {"random": torch.get_rng_state()}
        if self.device.type != "cpu":
            found["device_random"] = torch.get_device_module(self.device).get_rng_state(self.device)
        if self.strategy.replicas:
            found["buffers"] = {name: buffer.cpu() for name, buffer in self.model.named_buffers()}
        return found

    def _restore_own(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["random"])
        if "device_random" in state and self.device.type != "cpu":
            torch.get_device_module(self.device).set_rng_state(state["device_random"], self.device)
        for name, buffer in self.model.named_buffers():
            if name in state.get("buffers", {}):
                buffer.copy_(state["buffers"][name])

    def _fresh_meter(self) -> StepStatistics:
        return StepStatistics(self.loader, self.strategy)

    def _record(self, meter: StepStatistics) -> None:
        bad = meter.first_bad()
        if bad is not None:
            raise save_bad_batch(
                self.run, self.strategy.rank, self.loader, bad, self.step - meter.steps + bad.number + 1
            )
        losses = meter.losses()
        if losses and not self.stop.lost:
            self.writer.write(
                "step",
                epoch=self.epoch,
                step=self.step,
                samples=self.seen,
                loss=losses,
                lr=next(iter(self.engine.optimizers.values())).param_groups[0]["lr"],
                **meter.times(),
            )
