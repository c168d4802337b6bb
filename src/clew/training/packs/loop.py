"""The training loop of a pack: every member is a run of its own, with its own records, weights and end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from clew.data.dataset import Dataset
from clew.data.dataset.batch import to_batch
from clew.data.dataset.sample_store import DiskSamples, MemorySamples, SampleStore
from clew.errors import ClewError
from clew.metrics import metric_values
from clew.training import checkpoint
from clew.training.early_stopping import ValidationTracker
from clew.training.packs.engine import MAX_PLANNED_STEPS, PackEngine, StepLosses, StepPlan
from clew.training.packs.graph_replay import make_step_runner
from clew.training.packs.member import FAILED, FINISHED, LOST, STOPPED, PackMember
from clew.training.packs.member_state import load_member_state, member_state
from clew.training.packs.samples import EpochBatches, PackSamples
from clew.training.packs.validation import evaluate_pack
from clew.training.schedule import Schedule
from clew.training.step_statistics import NonFiniteLoss, save_bad_batch
from clew.training.stop_signal import StopSignal

_RECORD_INTERVAL = 0.5
"""Seconds between two records."""
_CHECK_INTERVAL = 0.1
"""Seconds between two checks of leases, signals and time limits."""


class PackRefusedError(Exception):
    """These models cannot be trained as one pack; the message is the reason."""


class PackLoop:
    """The training of a pack. `on_end` is called with every member that has ended."""

    def __init__(
        self,
        members: Sequence[PackMember],
        models: Sequence[nn.Module],
        device: torch.device,
        stop: StopSignal,
        on_end: Callable[[PackMember], None],
    ) -> None:
        """Stack the models and open the dataset.

        Args:
            members: The runs; their settings have the same key, see `grouping.settings_key`.
            models: The model of each member; all have the same signature.
            device: Where the pack is trained.
            stop: Whether all members are to stop.
            on_end: Called with every member that has ended.
        """
        self.members, self.device, self.stop, self.on_end = list(members), device, stop, on_end
        self.config = members[0].config
        dataset, start = Dataset(self.config.dataset), time.perf_counter()
        self.samples = PackSamples(members[0].recipe, self.config, dataset, device)
        on_disk = self.config.loading.keep != "memory"
        self.validation_samples: SampleStore = (
            DiskSamples(dataset, "val", None) if on_disk else MemorySamples(dataset.read("val"))
        )
        self.load_seconds = time.perf_counter() - start
        self.parameters = sum(parameter.numel() for parameter in models[0].parameters())
        recipes, configs = [member.recipe for member in members], [member.config for member in members]
        self.engine = PackEngine(recipes, models, configs, device)
        self.run_steps = make_step_runner(self.engine)
        steps = self.samples.steps(0)
        for member in members:
            member.schedule = Schedule(member.config, self.config.steps or steps * self.config.epochs, steps)
            member.verdict = ValidationTracker(member.config, member.schedule)
        self.step = self.epoch = self.batch = self.samples_seen = 0
        """Steps done; the current epoch; batches of it done; samples trained on per member."""
        self.best = self.engine.stack.snapshot()
        self.best_positions = [dict[str, int]() for _ in members]
        """The epoch and the step of the best weights of each member; empty before its first validation."""
        self.started = self.last_save = self.last_check = time.monotonic()
        self.earlier_seconds = 0.0
        self._losses: list[StepLosses] = []
        self._numbers: list[Any] = []
        """Losses, and numbers of the samples, of the steps since the last record."""
        self._last_record, self._last_cpu, self._waited = time.perf_counter(), time.process_time(), 0.0

    def rehearse(self) -> None:
        """Pass a few validation samples through everything.

        Raises:
            PackRefusedError: These models cannot be trained together.
        """
        samples = self.validation_samples.read(np.arange(min(8, len(self.validation_samples))))
        recipes = [member.recipe for member in self.members]
        try:
            self.engine.prepare(to_batch(samples, recipes[0].columns).to(self.device))
            metrics = evaluate_pack(self.engine, recipes, MemorySamples(samples), self.device)
        except Exception as error:
            raise PackRefusedError(_first_line(error)) from error
        if self.config.compile:
            self._compile()
        for row, member in enumerate(self.members):
            try:
                ValidationTracker(member.config, Schedule(member.config, 1, 1)).update(metric_values(metrics[row]))
            except ClewError as error:
                raise PackRefusedError(str(error)) from error  # a training of its own reports it better

    def _compile(self) -> None:
        with contextlib.closing(self.samples.epoch(0, 0)) as batches:
            first = batches.take()
        try:
            self.engine.compile(first.batch)
        except Exception as error:  # no compiler, or code that it does not support
            raise PackRefusedError(f"train.compile: {_first_line(error)}") from error

    def restore(self) -> None:
        """Continue from the checkpoints of the members, which are all of the same step."""
        for row, member in enumerate(self.members):
            state = member.state
            if state is None:
                return
            load_member_state(self.engine, row, state)
            self.step, self.epoch, self.batch, self.samples_seen = state["place"]
            self.earlier_seconds = state["spent"]
            member.verdict.restore(state["verdict"])
            position = {"epoch": self.epoch, "step": self.step, "samples": self.samples_seen}
            member.writer.write("resume", **position, file=state["file"], damaged=[])
        self.best = self.engine.stack.snapshot()
        for row, member in enumerate(self.members):
            records = [r for r in member.run.records(kind="checkpoint") if r["file"].endswith("best.safetensors")]
            if records and member.run.checkpoint("best").exists():
                self._keep_best(row, load_file(member.run.checkpoint("best")))
                self.best_positions[row] = {name: records[-1][name] for name in ("epoch", "step")}

    def _keep_best(self, row: int, state: dict[str, Tensor] | None = None) -> None:
        views = self.engine.stack.state_dict(row, self.best)
        for name, tensor in (state or self.engine.stack.state_dict(row)).items():
            views[name].copy_(tensor)

    def train(self) -> None:
        """Train all epochs: train, validate, end the members that are done."""
        for member in self.members:
            steps = min(self.config.steps or 1 << 62, self.samples.steps(0) * self.config.epochs)
            member.writer.write(
                "plan",
                epochs=self.config.epochs,
                steps=steps,
                samples=len(self.samples.loader.store),
                parameters=self.parameters,
                device=str(self.device),
                packed=len(self.members),
            )
            member.writer.write("load", seconds=self.load_seconds)
        while self.epoch < self.config.epochs and self.members:
            complete = self._train_epoch()
            if not self.members:
                break
            if complete:
                self.epoch, self.batch = self.epoch + 1, 0
            self._validate()
            self._end_finished(all_members=self.epoch >= self.config.epochs)
        self._end_finished(all_members=True)  # resumed with fewer epochs

    def _end_finished(self, *, all_members: bool) -> None:
        finished = {
            row: member.end_reason for row, member in enumerate(self.members) if member.end_reason or all_members
        }
        self._end_members(finished, FINISHED)

    def close(self) -> None:
        """End the loader's threads."""
        self.samples.close()

    def _train_epoch(self) -> bool:
        """Train on the rest of an epoch; return whether it was completed."""
        steps = self.samples.steps(self.epoch)
        plan: StepPlan | None = None
        with contextlib.closing(self.samples.epoch(self.epoch, self.batch)) as batches:
            while self.batch < steps:
                if plan is None or self.step == plan.stop or plan.scalars.shape[2] != len(self.members):
                    plan = self._plan(min(steps - self.batch, MAX_PLANNED_STEPS))
                self._train_steps(batches, plan)
                enough = self.step == self.config.steps
                if self.batch == steps or enough or self._record_due():
                    self._write_records()
                self._check_regularly(steps)
                if not self.members:
                    return False
                if enough or all(member.end_reason for member in self.members):
                    for member in self.members:
                        member.end_reason = member.end_reason or f"{self.step} steps are done"
                    return self.batch == steps
        return True

    def _train_steps(self, batches: EpochBatches, plan: StepPlan) -> None:
        """Perform as many steps as the device does efficiently at once, up to the next step that needs attention."""
        limit = plan.stop - self.step
        for stop in (self.config.steps, self._next_record()):
            if stop is not None and stop > self.step:
                limit = min(limit, stop - self.step)
        losses, numbers = self.run_steps(batches, plan, self.step, limit)
        self._losses.append(losses)
        self._numbers.extend(numbers)
        self._waited, batches.waited = self._waited + batches.waited, 0.0
        self.step, self.batch = self.step + len(numbers), self.batch + len(numbers)
        self.samples_seen += sum(map(len, numbers))

    def _next_record(self) -> int | None:
        every = self.config.log_every
        return None if every is None else (self.step // every + 1) * every

    def _plan(self, steps: int) -> StepPlan:
        columns: dict[Any, Tensor] = {}
        factors = []
        for member in self.members:
            key = (member.schedule.reduced, member.schedule.facts)
            if key not in columns:
                values = [member.schedule.at(self.step + number) for number in range(steps)]
                columns[key] = torch.tensor(values, dtype=torch.float64)
            factors.append(columns[key])
        return self.engine.plan(self.step, torch.stack(factors, dim=1))

    def _record_due(self) -> bool:
        every = self.config.log_every
        if every is None:
            return time.perf_counter() - self._last_record > _RECORD_INTERVAL
        return self.step % every == 0

    def _write_records(self) -> None:
        """Write the losses since the last record; end the members whose loss is not finite."""
        if not self._losses:
            return
        totals = torch.cat([losses.totals for losses in self._losses]).double().cpu().numpy()
        weights = torch.cat([losses.weights for losses in self._losses]).double().cpu().numpy()
        seconds, wait = time.perf_counter() - self._last_record, self._waited
        self._count_cpu_time()
        failed = {}
        sums = totals.sum(0)
        for row, member in enumerate(self.members):
            if not np.isfinite(sums[row]):
                failed[row] = self._save_bad_batch(member, totals[:, row])
            elif weights[:, row].sum() and not member.lost:
                member.writer.write(
                    "step",
                    epoch=self.epoch,
                    step=self.step,
                    samples=self.samples_seen,
                    loss={"loss": float(sums[row] / weights[:, row].sum())},
                    lr=self.engine.optimizer.lr[row] * member.schedule.at(max(self.step - 1, 0)),
                    seconds=seconds,
                    wait=wait,
                    communicate=0.0,
                )
        self._losses, self._numbers = [], []
        self._last_record, self._waited = time.perf_counter(), 0.0
        self._end_members(failed, FAILED, "NotFiniteError")

    def _count_cpu_time(self) -> None:
        now = time.process_time()
        for member in self.members:
            member.cpu += (now - self._last_cpu) / len(self.members)
        self._last_cpu = now

    def _save_bad_batch(self, member: PackMember, totals: Any) -> str:
        """Save the first batch whose loss is not finite, and return the message about it."""
        number = int(np.flatnonzero(~np.isfinite(totals))[0])
        bad = NonFiniteLoss(number, "loss", float(totals[number]), self._numbers[number])
        step = self.step - len(self._numbers) + number + 1
        return str(save_bad_batch(member.run, 0, self.samples.loader, bad, step))

    def _check_regularly(self, steps: int) -> None:
        """Renew leases, end members that must stop, and write checkpoints, if it is time for that."""
        now = time.monotonic()
        if now - self.last_check < _CHECK_INTERVAL:
            return
        self.last_check = now
        self._renew_leases()
        self._end_members({row: "" for row, member in enumerate(self.members) if member.lost}, LOST)
        if self.batch < steps and any(self._stop_reason(member) for member in self.members):
            self._write_records()
            self._stop_members(
                {row: reason for row, member in enumerate(self.members) if (reason := self._stop_reason(member))}
            )
        minutes = self.config.minutes
        if minutes is not None and self.earlier_seconds + now - self.started > 60 * minutes:
            for member in self.members:
                member.end_reason = member.end_reason or f"{minutes:g} minutes are over"
        if self.members and now - self.last_save > 60 * self.config.checkpoint_minutes:
            self.last_save = now
            for row in range(len(self.members)):
                self._save_state(row)

    def _renew_leases(self) -> None:
        for member in self.members:
            if member.lease is not None:
                member.lease.beat()

    def _stop_reason(self, member: PackMember) -> str:
        """Return why a member must stop; '' if it continues."""
        if member.lease is not None and member.lease.stop_reason:
            return member.lease.stop_reason
        return self.stop.reason or "stop requested" if self.stop.requested else ""

    def _stop_members(self, reasons: dict[int, str]) -> None:
        """Stop members, so that they can be resumed."""
        for row in reasons:
            self._save_state(row)
        messages = {}
        for row, reason in reasons.items():
            command = f"clew train --resume {self.members[row].run.path}"
            messages[row] = f"stopped at step {self.step} ({reason}); resume with: {command}"
        self._end_members(messages, STOPPED, "StoppedError", save_weights=False)

    def _validate(self) -> None:
        started = time.perf_counter()
        position = {"epoch": self.epoch - 1 + bool(self.batch), "step": self.step}
        recipes = [member.recipe for member in self.members]
        metrics = evaluate_pack(self.engine, recipes, self.validation_samples, self.device, on_batch=self._renew_leases)
        seconds = time.perf_counter() - started
        self._last_record = time.perf_counter()
        for row, member in enumerate(self.members):
            values = metric_values(metrics[row])
            member.writer.write("validation", **position, metrics=values, seconds=seconds, loading={})
            best, reason = member.verdict.update(values)
            member.end_reason = member.end_reason or reason
            if best or not self.best_positions[row]:
                self._keep_best(row)
                self.best_positions[row] = position

    def _end_members(self, messages: dict[int, str], code: int, error: str = "", *, save_weights: bool = True) -> None:
        """End members, and continue without them.

        Args:
            messages: Why each ends, by row.
            code: How they end.
            error: The name of the exception, if one ends them.
            save_weights: Whether to save their weights first.
        """
        if not messages:
            return
        self._count_cpu_time()
        for row, message in messages.items():
            member = self.members[row]
            if code != LOST and save_weights:
                self._save_weights(row, ("best",) if code == FAILED else ("last", "best"))
            member.end(code, message, **({"error": error} if error else {}))
            self.on_end(member)
        remaining = [row for row in range(len(self.members)) if row not in messages]
        self.members = [self.members[row] for row in remaining]
        self.best_positions = [self.best_positions[row] for row in remaining]
        if remaining:
            rows = torch.tensor(remaining)
            self.engine.keep_members(rows)
            self.run_steps = make_step_runner(self.engine)
            chosen = rows.to(self.device)
            weights, untrained = self.best
            self.best = weights[chosen].clone(), {name: tensor[chosen].clone() for name, tensor in untrained.items()}
            self._losses = [StepLosses(each.totals[:, chosen], each.weights[:, chosen]) for each in self._losses]

    def _save_weights(self, row: int, names: Sequence[str] = ("last", "best")) -> None:
        """Save the last and the best weights of a member."""
        member, stack = self.members[row], self.engine.stack
        position = {"epoch": self.epoch - 1 + bool(self.batch), "step": self.step}
        for name, state, facts in (
            ("last", stack.state_dict(row), position),
            ("best", stack.state_dict(row, self.best), self.best_positions[row]),
        ):
            if facts and name in names:
                checkpoint.save(state, member.run.checkpoint(name), facts=facts)
                member.writer.write("checkpoint", **facts, file=f"checkpoints/{name}.safetensors")

    def _save_state(self, row: int) -> None:
        """Save a checkpoint of a member, from which it can be resumed in a pack or alone."""
        member = self.members[row]
        self._save_weights(row)
        state = {
            **member_state(self.engine, row, member.config, self.step),
            "place": [self.step, self.epoch, self.batch, self.samples_seen],
            "spent": self.earlier_seconds + time.monotonic() - self.started,
            "over": member.end_reason,
            "verdict": member.verdict.state(),
        }
        path = checkpoint.save_state(member.run, self.step, state, keep=member.config.keep_checkpoints)
        position = {"epoch": self.epoch, "step": self.step}
        member.writer.write("checkpoint", **position, file=f"checkpoints/{path.name}")


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
