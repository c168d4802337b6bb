"""The loop of a worker: lease batches, train on them, exchange updates for central weights."""

from __future__ import annotations

import contextlib
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clew.data.dataset import Dataset
from clew.errors import LostPeerError, RunError
from clew.recipe import Recipe
from clew.runs import Run
from clew.training.asynchronous.flat_model import FlatModel, model_fingerprint
from clew.training.asynchronous.layout import COORDINATOR, WeightSlice
from clew.training.asynchronous.messaging import Message, MessageTransport
from clew.training.asynchronous.rules import make_rule
from clew.training.asynchronous.rules.worker_side import PushWorkerSide
from clew.training.asynchronous.state_bytes import state_from_bytes, state_to_bytes
from clew.training.asynchronous.update_kind import GradientsOnly
from clew.training.asynchronous.worker_exchange import WeightExchange, check_accepted
from clew.training.asynchronous.worker_validation import WorkerValidation
from clew.training.config import TrainConfig
from clew.training.engine import Engine
from clew.training.optimizer import make_optimizer
from clew.training.schedule import Schedule
from clew.training.step_errors import train_step
from clew.training.step_statistics import StepStatistics, save_bad_batch
from clew.training.strategies import Strategy
from clew.training.timeline_writer import COMMUNICATE, LOAD, READ, VALIDATE, TimelineWriter
from clew.training.training_data import make_loader
from clew.training.training_plan import training_plan
from clew.training.validation import build_model
from clew.version import __version__

_IDLE_PAUSE, _GOODBYE_TIMEOUT = 0.1, 30.0
"""Seconds: between two requests of a worker that has no lease; to wait for the answer to its last message."""


def introduce(transport: MessageTransport, *, timeout: float | None = None) -> dict[str, Any] | None:
    """Send a hello to the coordinator.

    Returns:
        The fields of its answer; None if it does not answer within `timeout` seconds.

    Raises:
        ConfigError: The coordinator refused this worker.
    """
    transport.send(COORDINATOR, "hello", {"clew": __version__})
    message = transport.receive(timeout)
    return None if message is None else check_accepted(message).fields


class Worker:
    """A worker. `run` trains until there are no more batches."""

    def __init__(
        self,
        transport: MessageTransport,
        recipe: Recipe,
        config: TrainConfig,
        slices: list[WeightSlice],
        device: torch.device,
        *,
        run: Run | None = None,
    ) -> None:
        """Make the model and the loader.

        Args:
            transport: Reaches the masters.
            recipe: The recipe to train.
            config: The settings of the training.
            slices: Which master holds which slice of the weights.
            device: Where the model is trained.
            run: The run's folder, if this process can write to it: for a timeline, and for a batch whose loss is not
                finite.
        """
        self.transport, self.recipe, self.config, self.device, self._run = transport, recipe, config, device, run
        rule = make_rule(config)
        self.strategy = GradientsOnly() if rule.sends_gradients else Strategy()
        dataset, start = Dataset(config.dataset), time.perf_counter()
        self.loader = make_loader(recipe, config, dataset, self.strategy, device)
        self._load_seconds = time.perf_counter() - start
        timeline = run.trace_folder / f"rank-{transport.number}.trace" if run is not None and config.trace else None
        self.trace = TimelineWriter(timeline)
        self.loader.on_wait = lambda start, end: self.trace.add(LOAD, start, end)
        self.loader.on_read = lambda start, end: self.trace.add(READ, start, end)
        torch.manual_seed(config.seed)
        self.model = build_model(recipe).to(device)
        self.flat_model = FlatModel(self.model, transport.allocate)
        build = _no_optimizer if rule.sends_gradients else make_optimizer
        steps = self.loader.sampler.steps()
        plan = training_plan(config, steps, self.strategy)
        self.engine = Engine(recipe, self.model, config, self.strategy, device, self.trace, build=build, plan=plan)
        self.side = rule.worker_side(self.flat_model, transport.allocate)
        self.schedule = Schedule(config, config.steps or steps * config.epochs, steps)
        self.status: dict[str, Any] = {}
        """What the coordinator last sent: the step, the number of workers, requests."""
        self._leases: list[list[int]] = []
        self._unsent: list[list[int]] = []
        """Leases, and the number of their batches trained on since the last exchange."""
        self._batches_left = 0
        """Batches of the current lease that are still to come."""
        self._exchange_thread = (
            ThreadPoolExecutor(1, thread_name_prefix="exchange") if config.asynchronous.overlap else None
        )
        transport.busy_process = config.asynchronous.overlap
        self._exchange = WeightExchange(transport, config, slices, self.flat_model, self.side, self._update_status)
        self._pending: Future[Tensor] | None = None
        """The answer to an exchange that is in progress."""
        self._validation = WorkerValidation(recipe, config, dataset, device)
        self._meter = StepStatistics(self.loader, self.strategy)

    def run(self) -> int:
        """Train from the first lease to the end; return the number of batches."""
        batches = 0
        self._begin()
        while self._get_lease():
            number, epoch, first, stop = self._leases.pop(0)
            with contextlib.closing(self.loader.epoch(epoch, first, stop)) as portions:
                for place, portion in enumerate(portions, first + 1):
                    self.trace.begin_step(int(self.status["step"]))
                    self.engine.rate(self.schedule.at(int(self.status["step"])))
                    losses = train_step(self.engine, portion, self.config.dataset)
                    self._meter.add(losses, portion, self.engine.hooks.end_step())
                    self._count_batch(number)
                    batches += 1
                    self._batches_left = stop - place
                    if self._exchange_due(last=place == stop) and not self._exchange_update():
                        break
        return batches

    def close(self) -> None:
        """End the threads."""
        self.loader.close()
        self.trace.close()
        if self._exchange_thread is not None:
            self._exchange_thread.shutdown()

    def _begin(self) -> None:
        """Show that the model is the same, and take the central weights."""
        torch.manual_seed(self.config.seed * 1_000_003 + max(self.transport.number, 0) + 1)
        fields = {"model": model_fingerprint(self.model), "host": socket.gethostname()}
        self.transport.send(COORDINATOR, "ready", fields)
        self._update_status(self._exchange.answer(COORDINATOR))
        self._restart()

    def _restart(self) -> None:
        """Continue from the central weights."""
        self._unsent, self._pending = [], None
        self.side.start(self._exchange.request("pull", None, {}))

    def _get_lease(self) -> bool:
        """Wait until there is a lease, and serve the coordinator's requests meanwhile; False at the end."""
        while not self._leases or self.status.get("end"):
            if self.status.get("end"):
                self._leave()
                return False
            if self._pending is not None:
                self._finish_pending()
                continue
            if self._unsent:
                self._exchange_update()
                continue
            started = time.perf_counter()
            self.transport.send(COORDINATOR, "report", {**self._report(), "wants_lease": True})
            self._update_status(self._exchange.answer(COORDINATOR))
            if not self.status.get("end") and not self._serve_requests() and not self._leases:
                time.sleep(_IDLE_PAUSE)
                self.strategy.communication_seconds += time.perf_counter() - started
            outdated = self.status["version"] != self._exchange.versions.get(COORDINATOR)
            if self._leases and self.side.restarts_from_master and outdated:
                self._restart()
        return True

    def _leave(self) -> None:
        """Send the last message, and wait for its answer: a process that ends at once may end before it is sent."""
        counts = {"sent": self.transport.sent + 1, "received": self.transport.received + 1}
        self.transport.send(COORDINATOR, "goodbye", counts)
        with contextlib.suppress(LostPeerError):
            self.transport.receive(_GOODBYE_TIMEOUT)

    def _exchange_due(self, *, last: bool) -> bool:
        """Return whether to exchange now: after `sync_every` batches, or if no batches are left for now."""
        return sum(count for _, count in self._unsent) >= self.config.exchange_interval or (last and not self._leases)

    def _count_batch(self, lease: int) -> None:
        if self._unsent and self._unsent[-1][0] == lease:
            self._unsent[-1][1] += 1
        else:
            self._unsent.append([lease, 1])

    def _exchange_update(self) -> bool:
        """Send an update and take the central weights; False if the lease was lost or the training has ended."""
        started = time.perf_counter()
        # an answer that comes one exchange later must be requested one exchange earlier
        ahead = self.config.exchange_interval if self._exchange_thread is not None else 0
        fields = {**self._report(), "wants_lease": not self._leases and self._batches_left <= ahead}
        self._unsent = []
        if self._exchange_thread is None:
            self.side.exchange(lambda kind, tensor: self._exchange.request(kind, tensor, fields), fields)
        else:
            self._exchange_in_thread(fields)
        ended = time.perf_counter()
        self.strategy.communication_seconds += ended - started
        self.trace.add(COMMUNICATE, int(started * 1e9), int(ended * 1e9))
        if self.status.pop("void", False):
            self._leases = []
            self._restart()
            return False
        self._serve_requests()
        return not self.status.get("end")

    def _exchange_in_thread(self, fields: dict[str, Any]) -> None:
        """Send an update in a thread, and take the answer to the update before."""
        assert self._exchange_thread is not None and isinstance(self.side, PushWorkerSide)
        pending, self._pending = self._pending, None
        answer = None if pending is None else pending.result()
        self.side.pack(fields)
        if answer is not None:
            self.side.take_answer(answer)
        self._pending = self._exchange_thread.submit(self._exchange.request, "push", self.side.outgoing, fields)

    def _finish_pending(self) -> None:
        """Wait for the exchange in progress, and continue from the central weights."""
        assert self._pending is not None
        self.side.start(self._pending.result())
        self._pending = None

    def _report(self) -> dict[str, Any]:
        """Return what was done since the last report, for the coordinator."""
        meter, self._meter = self._meter, StepStatistics(self.loader, self.strategy)
        losses: dict[str, Any] = {}
        samples = 0
        if meter.steps:
            bad = meter.first_non_finite()
            if bad is not None and self._run is not None:
                raise save_bad_batch(self._run, self.transport.number, self.loader, bad, int(self.status["step"]))
            if bad is not None:
                raise RunError(f"{bad.name} is {bad.value}; lower train.optimizer.lr or set train.clip")
            losses, samples = meter.sums(), meter.samples
        return {
            "done": self._unsent,
            "losses": losses,
            "samples": samples,
            "workers": int(self.status.get("workers", 1)),
            "load": round(self._load_seconds, 6),
            **{name: round(seconds, 6) for name, seconds in meter.times().items()},
        }

    def _update_status(self, message: Message) -> None:
        """Note what the coordinator sent; other masters send only weights."""
        if message.peer != COORDINATOR:
            return
        self.status.update(message.fields)
        if message.fields.get("lease"):
            self._leases.append(message.fields["lease"])

    def _serve_requests(self) -> bool:
        """Do what the coordinator requested besides training; return whether there was anything."""
        served = False
        if self._pending is not None and not self.status.keys().isdisjoint(("state", "restore", "validate")):
            self._pending.result()  # only one thread at a time may use the transport
        if self.status.pop("state", False):
            served = True
            self.transport.send(COORDINATOR, "state", {}, state_to_bytes(self._state()))
            self._update_status(self._exchange.answer(COORDINATOR))
        if self.status.pop("restore", None):
            served = True
            self.transport.send(COORDINATOR, "restore", {})
            message = self._exchange.answer(COORDINATOR)
            assert message.tensor is not None
            self._load_state(state_from_bytes(message.tensor))
        if self.status.get("validate"):
            served = True
            self._validate(*self.status.pop("validate"))
        return served

    def _state(self) -> dict[str, Any]:
        return {
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.engine.optimizers.items()},
            "scaler": self.engine.scaler.state_dict() if self.engine.scaler else None,
            "random": torch.get_rng_state(),
            "rule": self.side.state(),
        }

    def _load_state(self, state: dict[str, Any]) -> None:
        for name, optimizer in self.engine.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        if self.engine.scaler is not None and state["scaler"]:
            self.engine.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["random"])
        self.side.load_state(state["rule"])

    def _validate(self, number: int, first: int, stop: int) -> None:
        """Evaluate the weights of validation `number` on some batches, and send the metrics."""
        with self.trace.span(VALIDATE):
            self.transport.send(COORDINATOR, "snapshot", {"number": number})
            message = self._exchange.answer(COORDINATOR)
            assert message.tensor is not None
            metrics = self._validation.evaluate(message.tensor, first, stop)
            self.transport.send(COORDINATOR, "metrics", {"number": number, "metrics": metrics})
            self._update_status(self._exchange.answer(COORDINATOR))


class NoOptimizer(Optimizer):
    """Leaves the gradients as they are: the master's optimiser uses them."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 1.0})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing."""


def _no_optimizer(parameters: list[nn.Parameter], config: TrainConfig) -> NoOptimizer:
    return NoOptimizer(parameters)
