"""The training loop. Every rank of every synchronous strategy runs it; `run_rank` is the entry point of a rank.

Two other modules train, and share the parts of this one:

- `clew.training.asynchronous.worker` has a loop of its own, because a worker has no epochs: it asks the coordinator for
  batches and exchanges weights. It shares the step (`Engine`), the losses and times of a record
  (`StepStatistics`), the learning rate (`Schedule`), the loader and the evaluation of a batch. Validation, early
  stopping and checkpoints are decided by the coordinator, with the same `ValidationTracker` and `CheckpointSaver`.
- `clew.training.packs.loop` trains many models in one step, so its engine, its records and its validation hold one row
  per model, and a model may end while the others continue. It shares `Schedule`, `ValidationTracker`, the files of
  weights and states (`checkpoint`) and the report of a bad batch. Its state files can be resumed by this loop.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any

import torch

from clew.core.private_files import keep_compiled_code_private
from clew.data.dataset import Dataset
from clew.errors import LeaseError
from clew.jobs.rank_info import RankInfo
from clew.runs import Run
from clew.training import batch_size_search, checkpoint, validation
from clew.training.background_validation import BackgroundValidator, ValidationResult
from clew.training.device import select_device
from clew.training.early_stopping import ValidationTracker
from clew.training.engine import Engine
from clew.training.held_out import HeldOutSamples
from clew.training.metric_workers import MetricWorkers, metric_worker_limit
from clew.training.rank_session import RankSession, open_session, system_monitor
from clew.training.rank_state import capture_rank_state, restore_rank_state
from clew.training.schedule import Schedule
from clew.training.start_weights import freeze
from clew.training.step_errors import train_step
from clew.training.step_statistics import RECORD_SECONDS, StepStatistics, save_bad_batch
from clew.training.strategies import Strategy, make_strategy
from clew.training.timeline_writer import CHECKPOINT, LOAD, READ, VALIDATE, TimelineWriter
from clew.training.training_data import make_loader
from clew.training.training_plan import training_plan
from clew.training.training_start import TrainingStart

_SAVE, _FINISH, _LEAVE = 1, 2, 3
"""Commands of rank 0: write a state, end the training, stop because the lease was lost."""
_SIGNAL_INTERVAL = 10
"""Steps between two times at which ranks on devices read the signals of each other."""


def run_rank(run: Run, start: TrainingStart, place: RankInfo, store: Any = None) -> None:
    """Train as one rank, from the first batch or the newest state to the last record.

    Args:
        run: The folder of the run.
        start: The recipe, the settings, and whether to continue from the newest state.
        place: The rank of this process.
        store: The store through which the ranks find each other; None for a single process.

    Raises:
        Whatever ends the training early, after it was recorded.
    """
    recipe, config = start.recipe, start.config
    with open_session(run, config, place, start.lease) as session:
        device = select_device(place.local_rank, config.device)
        strategy = make_strategy(config, rank=place.rank, ranks=place.ranks, store=store, device=device)
        config = batch_size_search.with_batch_size(run, recipe, config, strategy, session.writer, device)
        limit = metric_worker_limit(config.metric_workers, device, place.local_ranks)
        with (
            contextlib.closing(MetricWorkers(recipe, limit)) as workers,
            contextlib.closing(_Loop(run, replace(start, config=config), strategy, session, device, workers)) as loop,
            system_monitor(run, config, place, device),
        ):
            loop.check()
            if start.resume:
                loop.restore()
            loop.train()
        strategy.close()
        session.end_reason = loop.end_reason


class _Loop:
    """A training in progress."""

    def __init__(
        self,
        run: Run,
        start: TrainingStart,
        strategy: Strategy,
        session: RankSession,
        device: torch.device,
        metric_workers: MetricWorkers,
    ) -> None:
        recipe, config = start.recipe, start.config
        self.run, self.recipe, self.config, self.strategy, self.device = run, recipe, config, strategy, device
        self.writer, self.stop = session.writer, session.stop
        dataset, loading = Dataset(config.dataset), time.perf_counter()
        self.loader = make_loader(recipe, config, dataset, strategy, device)
        self.load_seconds = time.perf_counter() - loading
        """Seconds until the samples of this rank were loaded."""
        self.held_out = HeldOutSamples(recipe, config, dataset, strategy, device, metric_workers)
        torch.manual_seed(config.seed)
        new_for = None if start.resume else dataset
        model = validation.build_model(recipe, config.start_from, dataset=new_for).to(device)
        freeze(model, config.freeze)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        strategy.alternates = recipe.alternates(model)
        self.model = strategy.distribute(model)
        if config.compile:
            keep_compiled_code_private()
            self.model.compile()
        torch.manual_seed(config.seed * 1_000_003 + strategy.rank + 1)  # dropout differs between ranks
        self.steps = self.loader.sampler.steps()
        plan = training_plan(config, self.steps, strategy)
        self.engine = Engine(recipe, self.model, config, strategy, device, plan=plan)
        self.hooks = self.engine.hooks
        path = run.trace_folder / f"rank-{strategy.rank}.trace" if config.trace else None
        self.trace = self.engine.trace = TimelineWriter(path, behind=strategy.clock_offset())
        self.loader.on_wait = lambda start, end: self.trace.add(LOAD, start, end)
        self.loader.on_read = lambda start, end: self.trace.add(READ, start, end)
        self.schedule = Schedule(config, config.steps or self.steps * config.epochs, self.steps)
        self.tracker = ValidationTracker(config, self.schedule)
        self.saver = checkpoint.CheckpointSaver(run, config.keep_checkpoints)
        self.validator: BackgroundValidator | None = None
        if config.validation == "background" and strategy.rank == 0:
            self.validator = BackgroundValidator(recipe, config)
        self.pending: list[dict[str, int]] = []
        """Epoch and step of the weights that the background process is validating."""
        self.step = self.epoch = self.epoch_step = self.samples = 0
        """Steps done, epochs done, steps done in the current epoch, samples processed."""
        self.earlier_seconds, self.started, self.saved = 0.0, time.monotonic(), time.monotonic()
        self.end_reason = ""
        """Why the training ends before its last epoch."""

    def train(self) -> None:
        """Run all epochs: train, validate, save."""
        self.stop.can_save = True
        self.writer.write(
            "plan",
            epochs=self.config.epochs,
            steps=min(self.config.steps or 1 << 62, self.steps * self.config.epochs),
            samples=len(self.loader.store),
            parameters=self.parameters,
            device=str(self.device),
        )
        self.writer.write("load", seconds=self.load_seconds)
        self.hooks.start()
        while self.epoch < self.config.epochs and not self.end_reason:
            complete = not self._train_epoch()
            if complete:
                self.epoch, self.epoch_step = self.epoch + 1, 0
            with self.trace.span(VALIDATE):
                metrics = self._validate()
            if complete:
                self.hooks.end_epoch(metrics)
            self._save()
            self.trace.flush()
        if self.pending:
            self._collect_validations()
            self._record_checkpoints(wait=True)

    def check(self) -> None:
        """Evaluate a few validation samples, so that a mismatch is found before the first step.

        Raises:
            RecipeError: The model does not accept the data.
            ConfigError: A metric that the settings name does not exist.
        """
        metrics = self.held_out.check(self.model, self.hooks)
        ValidationTracker(self.config, Schedule(self.config, 1, 1)).update(metrics)

    def restore(self) -> None:
        """Continue from the newest readable state: weights, optimisers, random numbers, position in the data."""
        state, path, damaged = checkpoint.load_state(self.run)
        checkpoint.check_same_model(self.strategy.full_weights(self.model), state["model"], path)
        self.strategy.load_weights(self.model, state["model"])
        for name, optimizer in self.engine.optimizers.items():
            self.strategy.load_optimizer_state(optimizer, state["optimizers"][name])
        if self.engine.scaler is not None:
            self.engine.scaler.load_state_dict(state["scaler"])
        if self.engine.average is not None:
            with self.engine.average.swapped():
                self.strategy.load_weights(self.model, state["average"])
        self.step, self.epoch, self.epoch_step, self.samples = state["place"]
        self.earlier_seconds, self.end_reason = state["spent"], state["over"]
        self.tracker.restore(state["verdict"])
        self.hooks.load_state(state.get("hooks", {}))
        self.pending = state["pending"]
        if self.validator is not None:
            for facts in self.pending:
                weights = self.run.checkpoint(f"pending-{facts['step']}")
                self.validator.submit(weights if weights.exists() else self.run.checkpoint("last"), facts)
        if len(state["ranks"]) == self.strategy.ranks:
            restore_rank_state(state["ranks"][self.strategy.rank], self.model, self.device)
        files = {"file": path.name, "damaged": [file.name for file in damaged]}
        self.writer.write("resume", epoch=self.epoch, step=self.step, samples=self.samples, **files)

    def close(self) -> None:
        """Wait for files that are being written, and end threads and processes."""
        self.loader.close()
        self.saver.close()
        self.trace.close()
        if self.validator is not None:
            self.validator.close()

    def _train_epoch(self) -> bool:
        """Train the rest of an epoch. Return whether it ended early."""
        statistics = StepStatistics(self.loader, self.strategy)
        steps = self.loader.sampler.steps(self.epoch)
        if not self.epoch_step:
            self.hooks.start_epoch(self.epoch)
        with contextlib.closing(self.loader.epoch(self.epoch, self.epoch_step)) as portions:
            for portion in portions:
                self.trace.begin_step(self.step)
                self.engine.rate(self.schedule.at(self.step))
                self.stop.renew_lease()
                self.strategy.command, self.strategy.stop_requested = self._command(), self.stop.requested
                self.strategy.batch_samples = portion.size
                losses = train_step(self.engine, portion, self.config.dataset)
                statistics.add(losses, portion, self.hooks.end_step())
                self.step, self.epoch_step = self.step + 1, self.epoch_step + 1
                self.samples += portion.size
                last_step = self.step == self.config.steps
                if self.epoch_step == steps or last_step or self._record_is_due(statistics):
                    self._record(statistics)
                    statistics = StepStatistics(self.loader, self.strategy)
                self._follow_signals(inside_epoch=self.epoch_step < steps and not last_step)
                if last_step or self.end_reason:
                    self.end_reason = self.end_reason or f"{self.step} steps are done"
                    return self.epoch_step < steps
        return False

    def _follow_signals(self, *, inside_epoch: bool) -> None:
        """Do what rank 0 commands, and stop if any rank must stop."""
        # reading the signals waits for a device: there, it is done only now and then
        if self.device.type != "cpu" and self.step % _SIGNAL_INTERVAL:
            return
        command, stop_requested = self.strategy.received_signals()
        if command == _LEAVE:
            raise self._lease_error()
        if command == _FINISH:
            self.end_reason = f"{self.config.minutes:g} minutes are over"
        elif (command or stop_requested) and inside_epoch:
            self._save(stop=stop_requested)

    def _lease_error(self) -> LeaseError:
        return LeaseError(f"{self.run.path} was assigned to another process at step {self.step}")

    def _check_lease(self) -> None:
        """Make sure that the run still belongs to these processes, before something is written that must be there once.

        Every rank must call it: one of them has the lease, and all of them leave together.

        Raises:
            LeaseError: It does not.
        """
        self.stop.renew_lease(now=True)
        if any(self.strategy.gather(self.stop.lease_lost)):
            raise self._lease_error()

    def _record_is_due(self, statistics: StepStatistics) -> bool:
        interval = self.config.log_every
        return statistics.age > RECORD_SECONDS if interval is None else self.step % interval == 0

    def _command(self) -> int:
        """What rank 0 wants all ranks to do after the next step."""
        if self.stop.lease_lost:
            return _LEAVE
        if self.config.minutes is not None and self._elapsed_seconds() > 60 * self.config.minutes:
            return _FINISH
        return _SAVE if time.monotonic() - self.saved > 60 * self.config.checkpoint_minutes else 0

    def _elapsed_seconds(self) -> float:
        return self.earlier_seconds + time.monotonic() - self.started

    def _validate(self) -> dict[str, float]:
        """Validate the current weights, now or in the background process. Return the metrics that are known now."""
        self.strategy.average_buffers(self.model)
        facts = {"epoch": self.epoch - 1 + bool(self.epoch_step), "step": self.step}
        average = self.engine.average
        with average.swapped() if average else contextlib.nullcontext():
            if self.config.validation == "background":
                self._collect_validations()  # one at a time: that of the epoch before must be finished by now
                self._submit_validation(self.strategy.full_weights(self.model), facts)
                return {}
            start = time.perf_counter()
            # a validation may take longer than a lease
            metrics = self.held_out.evaluate(self.model, self.hooks, self.stop.renew_lease)
            best = self._record_validation(ValidationResult(facts, metrics, time.perf_counter() - start))
            weights = self.strategy.full_weights(self.model)
            if self.strategy.rank == 0:
                self._record_checkpoints(wait=True)
                self.saver.save_weights(weights, ("last", "best") if best else ("last",), facts)
            return metrics

    def _record_validation(self, result: ValidationResult, **more: Any) -> bool:
        """Write a validation to the records. Return whether its weights are the best so far."""
        self._check_lease()
        loading = dict(self.loader.store.facts)
        self.writer.write(
            "validation", **result.facts, metrics=result.metrics, seconds=result.seconds, loading=loading, **more
        )
        best, end_reason = self.tracker.update(result.metrics)
        self.end_reason = self.end_reason or end_reason
        return best

    def _submit_validation(self, weights: dict[str, Any], facts: dict[str, int]) -> None:
        """Have the background process validate these weights when they are on disk."""
        self.pending.append(facts)
        if self.validator is not None:
            self._record_checkpoints(wait=True)
            path = self.run.checkpoint(f"pending-{facts['step']}")
            self.saver.save_and_notify(weights, path, facts, self.validator.submit)

    def _collect_validations(self) -> None:
        """Wait for the background process, and keep the files that it has validated."""
        results = self.validator.results(wait=True) if self.validator is not None and self.pending else []
        for result in self.strategy.gather(results)[0]:
            best = self._record_validation(result, background=True)
            if self.strategy.rank == 0:
                path = self.run.checkpoint(f"pending-{result.facts['step']}")
                self.saver.promote(path, best=best, facts=result.facts)
        self.pending = []

    def _save(self, *, stop: bool = False) -> None:
        """Write a state from which the training can continue. Then stop, if any rank must stop.

        Raises:
            StoppedError: The training stops here, and can be resumed.
        """
        state = self._state()
        self._check_lease()
        if self.strategy.rank == 0:
            with self.trace.span(CHECKPOINT):
                self._record_checkpoints(wait=True)
                self.saver.save(self.step, state)
        self.saved = time.monotonic()
        ends = bool(self.end_reason) or self.epoch == self.config.epochs
        stop = not ends and (stop or self.strategy.received_signals()[1])
        if self.strategy.rank == 0:
            self._record_checkpoints(wait=stop or ends)
        if stop:
            raise self.stop.stopped_error(self.step, self.run.path)

    def _state(self) -> dict[str, Any]:
        """What `restore` needs. Every rank must call it."""
        return {
            "ranks": self.strategy.gather(capture_rank_state(self.strategy, self.model, self.device)),
            "model": self.strategy.full_weights(self.model),
            "optimizers": {name: self.strategy.optimizer_state(o) for name, o in self.engine.optimizers.items()},
            "scaler": self.engine.scaler.state_dict() if self.engine.scaler else None,
            "average": self._averaged_weights(),
            "place": [self.step, self.epoch, self.epoch_step, self.samples],
            "spent": self._elapsed_seconds(),
            "over": self.end_reason,
            "pending": self.pending,
            "verdict": self.tracker.state(),
            "hooks": self.hooks.state(),
        }

    def _averaged_weights(self) -> Any:
        if self.engine.average is None:
            return None
        with self.engine.average.swapped():
            return {name: tensor.clone() for name, tensor in self.strategy.full_weights(self.model).items()}

    def _record_checkpoints(self, *, wait: bool) -> None:
        """Record the checkpoints that are on disk now."""
        for path, facts in self.saver.finished(wait=wait):
            if path.stem.startswith("pending"):
                continue  # it becomes the last weights when it has been validated
            self.writer.write("checkpoint", **facts, file=f"checkpoints/{path.name}")

    def _record(self, statistics: StepStatistics) -> None:
        """Write the losses and times since the last record."""
        bad = statistics.first_non_finite()
        if bad is not None:
            step = self.step - statistics.steps + bad.number + 1
            raise save_bad_batch(self.run, self.strategy.rank, self.loader, bad, step)
        losses = statistics.losses()
        if losses and not self.stop.lease_lost:
            self.writer.write(
                "step",
                epoch=self.epoch,
                step=self.step,
                samples=self.samples,
                loss={**statistics.logged(), **losses},
                lr=next(iter(self.engine.optimizers.values())).param_groups[0]["lr"],
                **statistics.times(),
            )
