"""The training of a pack: every model is a run of its own, with its records, its weights and its end."""

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
from clew.data.dataset.sample_store import Disk, Memory, Store
from clew.errors import ClewError
from clew.metrics import metric_values
from clew.training import checkpoint
from clew.training.control import Schedule, ValidationTracker
from clew.training.packs import member_state
from clew.training.packs.engine import AHEAD, PackEngine, Plan, Told
from clew.training.packs.graph_replay import replayed
from clew.training.packs.member import FAILED, FINISHED, LOST, STOPPED, Lane
from clew.training.packs.samples import Epoch, Supply
from clew.training.packs.validation import judge_all
from clew.training.step_statistics import NonFiniteLoss, save_bad_batch
from clew.training.stop_signal import StopSignal

_SILENCE = 0.5
"""Seconds between two records."""
_LISTEN = 0.1
"""Seconds between two looks at what is said."""


class RefusedError(Exception):
    """A pack cannot be trained as one; says why."""


class PackLoop:
    """A pack that is under way. `ended` is called with every lane that has ended."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        models: Sequence[nn.Module],
        device: torch.device,
        stop: StopSignal,
        ended: Callable[[Lane], None],
    ) -> None:
        self.lanes, self.device, self.stop, self.ended = list(lanes), device, stop, ended
        self.config = lanes[0].config
        dataset = Dataset(self.config.dataset)
        self.supply = Supply(lanes[0].recipe, self.config, dataset, device)
        disk = self.config.loading.keep != "memory"
        self.held_out: Store = Disk(dataset, "val", None) if disk else Memory(dataset.read("val"))
        self.parameters = sum(each.numel() for each in models[0].parameters())
        self.engine = PackEngine([each.recipe for each in lanes], models, [each.config for each in lanes], device)
        self.learn = replayed(self.engine)
        steps = self.supply.steps(0)
        for lane in lanes:
            lane.schedule = Schedule(lane.config, self.config.steps or steps * self.config.epochs, steps)
            lane.verdict = ValidationTracker(lane.config, lane.schedule)
        self.step = self.epoch = self.place = self.seen = 0
        self.best = self.engine.stack.snapshot()
        self.best_facts = [dict[str, int]() for _ in lanes]
        self.begun = self.saved = self.listened = time.monotonic()
        self.spent = 0.0
        self._told: list[Told] = []
        self._numbers: list[Any] = []
        self._since, self._cpu, self._waited = time.perf_counter(), time.process_time(), 0.0

    def rehearse(self) -> None:
        """A few held-out samples through everything.

        Raises:
            RefusedError: these models cannot be trained together.
        """
        few = self.held_out.read(np.arange(min(8, len(self.held_out))))
        try:
            self.engine.prepare(to_batch(few, self.config_columns).to(self.device))
            metrics = judge_all(self.engine, [each.recipe for each in self.lanes], Memory(few), self.device)
        except Exception as error:
            raise RefusedError(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error
        if self.config.compile:
            self._compile()
        for row, lane in enumerate(self.lanes):
            try:
                ValidationTracker(lane.config, Schedule(lane.config, 1, 1)).see(metric_values(metrics[row]))
            except ClewError as error:
                raise RefusedError(str(error)) from error  # a run of its own tells it better

    def _compile(self) -> None:
        with contextlib.closing(self.supply.epoch(0, 0)) as batches:
            first = batches.take()
        try:
            self.engine.compile(first.batch)
        except Exception as error:  # no compiler, or code that it does not know
            told = str(error).splitlines()[0] if str(error) else ""
            raise RefusedError(f"train.compile: {type(error).__name__}: {told}") from error

    @property
    def config_columns(self) -> Sequence[str] | None:
        return self.lanes[0].recipe.columns

    def restore(self) -> None:
        """Go on from the states of the lanes, which are all of the same place."""
        for row, lane in enumerate(self.lanes):
            state = lane.state
            if state is None:
                return
            member_state.fill(self.engine, row, state)
            self.step, self.epoch, self.place, self.seen = state["place"]
            self.spent = state["spent"]
            lane.verdict.restore(state["verdict"])
            lane.writer.write("resume", epoch=self.epoch, step=self.step, file=state["file"], damaged=[])
        self.best = self.engine.stack.snapshot()
        for row, lane in enumerate(self.lanes):
            kept = [r for r in lane.run.records(kind="checkpoint") if r["file"].endswith("best.safetensors")]
            if kept and lane.run.checkpoint("best").exists():
                self._keep_best(row, load_file(lane.run.checkpoint("best")))
                self.best_facts[row] = {name: kept[-1][name] for name in ("epoch", "step")}

    def _keep_best(self, row: int, state: dict[str, Tensor] | None = None) -> None:
        own = self.engine.stack.state_dict(row, self.best)
        for name, tensor in (state or self.engine.stack.state_dict(row)).items():
            own[name].copy_(tensor)

    def train(self) -> None:
        """All epochs: learn, validate, let those go that are done."""
        for lane in self.lanes:
            steps = min(self.config.steps or 1 << 62, self.supply.steps(0) * self.config.epochs)
            lane.writer.write(
                "plan",
                epochs=self.config.epochs,
                steps=steps,
                samples=len(self.supply.loader.store),
                parameters=self.parameters,
                device=str(self.device),
                packed=len(self.lanes),
            )
        while self.epoch < self.config.epochs and self.lanes:
            whole = self._learn()
            if not self.lanes:
                break
            if whole:
                self.epoch, self.place = self.epoch + 1, 0
            self._validate()
            last = self.epoch >= self.config.epochs
            self._drop({row: lane.over for row, lane in enumerate(self.lanes) if lane.over or last}, FINISHED)
        self._drop({row: lane.over for row, lane in enumerate(self.lanes)}, FINISHED)  # resumed with fewer epochs

    def close(self) -> None:
        """Let go of what was made ready."""
        self.supply.close()

    def _learn(self) -> bool:
        """The rest of an epoch; whether it was not broken off."""
        steps = self.supply.steps(self.epoch)
        plan: Plan | None = None
        with contextlib.closing(self.supply.epoch(self.epoch, self.place)) as batches:
            while self.place < steps:
                if plan is None or self.step == plan.last or plan.scalars.shape[2] != len(self.lanes):
                    plan = self._plan(min(steps - self.place, AHEAD))
                self._steps(batches, plan)
                enough = self.step == self.config.steps
                if self.place == steps or enough or self._due():
                    self._record()
                self._look_round(steps)
                if not self.lanes:
                    return False
                if enough or all(lane.over for lane in self.lanes):
                    for lane in self.lanes:
                        lane.over = lane.over or f"{self.step} steps are done"
                    return self.place == steps
        return True

    def _steps(self, batches: Epoch, plan: Plan) -> None:
        """As many as the device does well at a time, but none beyond the next one that is looked at."""
        most = plan.last - self.step
        for each in (self.config.steps, self._next_record()):
            if each is not None and each > self.step:
                most = min(most, each - self.step)
        told, numbers = self.learn(batches, plan, self.step, most)
        self._told.append(told)
        self._numbers.extend(numbers)
        self._waited, batches.waited = self._waited + batches.waited, 0.0
        self.step, self.place = self.step + len(numbers), self.place + len(numbers)
        self.seen += sum(map(len, numbers))

    def _next_record(self) -> int | None:
        every = self.config.log_every
        return None if every is None else (self.step // every + 1) * every

    def _plan(self, steps: int) -> Plan:
        columns: dict[Any, Tensor] = {}
        rows = []
        for lane in self.lanes:
            key = (lane.schedule.reduced, lane.schedule.facts)
            if key not in columns:
                columns[key] = torch.tensor(
                    [lane.schedule.at(self.step + n) for n in range(steps)], dtype=torch.float64
                )
            rows.append(columns[key])
        return self.engine.plan(self.step, torch.stack(rows, dim=1))

    def _due(self) -> bool:
        every = self.config.log_every
        return time.perf_counter() - self._since > _SILENCE if every is None else self.step % every == 0

    def _record(self) -> None:
        """Write down the losses since the last time; a model whose loss is not finite has failed."""
        if not self._told:
            return
        totals = torch.cat([each.totals for each in self._told]).double().cpu().numpy()
        weights = torch.cat([each.weights for each in self._told]).double().cpu().numpy()
        seconds, wait = time.perf_counter() - self._since, self._waited
        self._spend()
        bad = {}
        sums = totals.sum(0)
        for row, lane in enumerate(self.lanes):
            if not np.isfinite(sums[row]):
                bad[row] = self._fault(lane, totals[:, row])
            elif weights[:, row].sum() and not (lane.lease is not None and lane.lease.lost):
                lane.writer.write(
                    "step",
                    epoch=self.epoch,
                    step=self.step,
                    samples=self.seen,
                    loss={"loss": float(sums[row] / weights[:, row].sum())},
                    lr=self.engine.optimizer.lr[row] * lane.schedule.at(max(self.step - 1, 0)),
                    seconds=seconds,
                    wait=wait,
                    communicate=0.0,
                )
        self._told, self._numbers = [], []
        self._since, self._waited = time.perf_counter(), 0.0
        self._drop(bad, FAILED, "NotFiniteError")

    def _spend(self) -> None:
        now = time.process_time()
        for lane in self.lanes:
            lane.cpu += (now - self._cpu) / len(self.lanes)
        self._cpu = now

    def _fault(self, lane: Lane, totals: Any) -> str:
        number = int(np.flatnonzero(~np.isfinite(totals))[0])
        found = NonFiniteLoss(number, "loss", float(totals[number]), self._numbers[number])
        step = self.step - len(self._numbers) + number + 1
        return str(save_bad_batch(lane.run, 0, self.supply.loader, found, step))

    def _look_round(self, steps: int) -> None:
        """Now and then: give signs of life, hear who is to stop, write states to go on from."""
        now = time.monotonic()
        if now - self.listened < _LISTEN:
            return
        self.listened = now
        self._beat()
        lost = {row: "" for row, lane in enumerate(self.lanes) if lane.lease is not None and lane.lease.lost}
        self._drop(lost, LOST)
        within = self.place < steps
        told = {row: self._why(lane) for row, lane in enumerate(self.lanes)}
        if within and any(told.values()):
            self._record()
            told = {row: why for row, lane in enumerate(self.lanes) if (why := self._why(lane))}
            self._stop(told)
        minutes = self.config.minutes
        if minutes is not None and self.spent + now - self.begun > 60 * minutes:
            for lane in self.lanes:
                lane.over = lane.over or f"{minutes:g} minutes are over"
        if self.lanes and now - self.saved > 60 * self.config.checkpoint_minutes:
            self.saved = now
            for row in range(len(self.lanes)):
                self._save(row)

    def _beat(self) -> None:
        for lane in self.lanes:
            if lane.lease is not None:
                lane.lease.beat()

    def _why(self, lane: Lane) -> str:
        """Why a lane is to stop; '' to go on."""
        if lane.lease is not None and lane.lease.told:
            return lane.lease.told
        return "told to" if self.stop.wanted else ""

    def _stop(self, told: dict[int, str]) -> None:
        """Let lanes go, ready to be gone on with."""
        for row in told:
            self._save(row)
        words = {
            row: f"stopped at step {self.step} ({why}); go on with: clew train --resume {self.lanes[row].run.path}"
            for row, why in told.items()
        }
        self._drop(words, STOPPED, "StoppedError", weights=False)

    def _validate(self) -> None:
        begun = time.perf_counter()
        facts = {"epoch": self.epoch - 1 + bool(self.place), "step": self.step}
        found = judge_all(
            self.engine, [each.recipe for each in self.lanes], self.held_out, self.device, beat=self._beat
        )
        seconds = time.perf_counter() - begun
        self._since = time.perf_counter()
        for row, lane in enumerate(self.lanes):
            metrics = metric_values(found[row])
            lane.writer.write("validation", **facts, metrics=metrics, seconds=seconds, loading={})
            best, over = lane.verdict.see(metrics)
            lane.over = lane.over or over
            if best or not self.best_facts[row]:
                self._keep_best(row)
                self.best_facts[row] = facts

    def _drop(self, rows: dict[int, str], code: int, error: str = "", *, weights: bool = True) -> None:
        """End these lanes, with a word each, and go on without them."""
        if not rows:
            return
        self._spend()
        for row, message in rows.items():
            lane = self.lanes[row]
            if code != LOST and weights:
                self._weights(row, ("best",) if code == FAILED else ("last", "best"))
            lane.end(code, message, error)
            self.ended(lane)
        left = [row for row in range(len(self.lanes)) if row not in rows]
        self.lanes = [self.lanes[row] for row in left]
        self.best_facts = [self.best_facts[row] for row in left]
        if left:
            places = torch.tensor(left)
            self.engine.keep(places)
            self.learn = replayed(self.engine)
            chosen = places.to(self.device)
            self.best = self.best[0][chosen].clone(), {n: each[chosen].clone() for n, each in self.best[1].items()}
            self._told = [Told(each.totals[:, chosen], each.weights[:, chosen]) for each in self._told]

    def _weights(self, row: int, names: Sequence[str] = ("last", "best")) -> None:
        """The last weights, and the best, on disk."""
        lane, now = self.lanes[row], {"epoch": self.epoch - 1 + bool(self.place), "step": self.step}
        for name, state, facts in (
            ("last", self.engine.stack.state_dict(row), now),
            ("best", self.engine.stack.state_dict(row, self.best), self.best_facts[row]),
        ):
            if facts and name in names:
                checkpoint.save(state, lane.run.checkpoint(name), facts=facts)
                lane.writer.write("checkpoint", **facts, file=f"checkpoints/{name}.safetensors")

    def _save(self, row: int) -> None:
        """A state to go on from, in a pack or alone."""
        lane = self.lanes[row]
        self._weights(row)
        state = {
            **member_state.take(self.engine, row, lane.config, self.step),
            "place": [self.step, self.epoch, self.place, self.seen],
            "spent": self.spent + time.monotonic() - self.begun,
            "over": lane.over,
            "verdict": lane.verdict.state(),
        }
        path = checkpoint.save_state(lane.run, self.step, state, keep=lane.config.keep_checkpoints)
        facts = {"epoch": self.epoch, "step": self.step}
        lane.writer.write("checkpoint", **facts, file=f"checkpoints/{path.name}")
