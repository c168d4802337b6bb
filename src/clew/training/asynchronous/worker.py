"""A worker's loop: lease batches, learn from them, exchange what was learned for the central weights."""

from __future__ import annotations

import contextlib
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clew import metrics
from clew.data.dataset import Dataset
from clew.data.dataset.sample_store import Disk, Memory, Store
from clew.data.dataset.sampler import Sampler
from clew.errors import ConfigError, LostPeerError, RunError
from clew.recipe import Recipe
from clew.runs import Run
from clew.training import validation
from clew.training.asynchronous.flat_model import Vector, fingerprint
from clew.training.asynchronous.master import finite, sends_gradients
from clew.training.asynchronous.messaging import Message, Post
from clew.training.asynchronous.rules import Push, make_rule
from clew.training.asynchronous.state_bytes import from_bytes, to_bytes
from clew.training.config import TrainConfig
from clew.training.control import Schedule
from clew.training.engine import Engine, make_optimizer
from clew.training.step_statistics import StepStatistics, save_bad_batch
from clew.training.strategies import Strategy
from clew.training.timeline_writer import COMMUNICATE, LOAD, READ, VALIDATE, TimelineWriter
from clew.training.training_data import make_loader
from clew.version import __version__

COORDINATOR = 0
_IDLE, _FAREWELL = 0.1, 30.0
"""Seconds: between two questions of a worker that has nothing to do; for an answer to its good-bye."""


class Part(NamedTuple):
    """Who holds which part of the weights."""

    peer: int
    first: int
    stop: int


def introduce(post: Post, *, timeout: float | None = None) -> dict[str, Any] | None:
    """Say hello to the coordinator; what it answers, or None if it does not in time.

    Raises:
        ConfigError: it refused.
    """
    post.send(COORDINATOR, "hello", {"clew": __version__})
    message = post.receive(timeout)
    return None if message is None else _accepted(message).facts


class Worker:
    """Everything a worker has. `run` works until there is no more work."""

    def __init__(
        self,
        post: Post,
        recipe: Recipe,
        config: TrainConfig,
        parts: list[Part],
        device: torch.device,
        *,
        run: Run | None = None,
    ) -> None:
        """`run`: its folder, where that is at hand, for a timeline and for a batch that went wrong."""
        self.post, self.recipe, self.config, self.parts, self.device = post, recipe, config, parts, device
        self.strategy = Strategy()
        dataset = Dataset(config.dataset)
        self.loader = make_loader(recipe, config, dataset, self.strategy, device)
        traced = run is not None and config.trace
        self.trace = TimelineWriter(
            run.trace_folder / f"rank-{post.here}.trace" if run is not None and traced else None
        )
        self._run = run
        self.loader.on_wait = lambda begun, ended: self.trace.add(LOAD, begun, ended)
        self.loader.on_read = lambda begun, ended: self.trace.add(READ, begun, ended)
        self._dataset = dataset
        torch.manual_seed(config.seed)
        self.model = recipe.model().to(device)
        self.vector = Vector(self.model, post.room)
        self.engine = Engine(recipe, self.model, config, self.strategy, device, self.trace, build=_builder(config))
        self.rule = make_rule(self.vector, config, post.room)
        steps = self.loader.sampler.steps()
        self.schedule = Schedule(config, config.steps or steps * config.epochs, steps)
        self.every = config.exchange_interval
        self.facts: dict[str, Any] = {}
        """What the coordinator last told: the step, the number of workers, what to do."""
        self._leases: list[list[int]] = []
        self._undone: list[list[int]] = []
        """Lease and batches of it that were learned from since the last exchange."""
        self._left = 0
        """Batches of the lease under way that are still to come."""
        self._versions: dict[int, int] = {}
        self._room = post.room((self.vector.flat.dtype, self.vector.length))
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="exchange") if config.central.overlap else None
        post.patient = config.central.overlap
        self._flying: Future[Tensor] | None = None
        self._judge: tuple[nn.Module, Vector, Store] | None = None
        self._meter = StepStatistics(self.loader, self.strategy)

    def run(self) -> int:
        """From the first lease to the end; how many batches were learned from."""
        learned = 0
        self._begin()
        while self._leased():
            number, epoch, first, stop = self._leases.pop(0)
            with contextlib.closing(self.loader.epoch(epoch, first, stop)) as portions:
                for place, portion in enumerate(portions, first + 1):
                    self.trace.begin_step(int(self.facts["step"]))
                    self.engine.rate(self.schedule.at(int(self.facts["step"])))
                    self._meter.add(self.engine.step(portion.parts), portion)
                    self._note(number)
                    learned += 1
                    self._left = stop - place
                    if self._due(last=place == stop) and not self._exchange():
                        break
        return learned

    def close(self) -> None:
        """End the threads."""
        self.loader.close()
        self.trace.close()
        if self._pool is not None:
            self._pool.shutdown()

    def _begin(self) -> None:
        """Show that the model is the same, and take the central weights."""
        torch.manual_seed(self.config.seed * 1_000_003 + max(self.post.here, 0) + 1)
        self.post.send(COORDINATOR, "ready", {"model": fingerprint(self.model), "host": socket.gethostname()})
        self._hear(self._answer(COORDINATOR))
        self._restart()

    def _restart(self) -> None:
        self._undone, self._flying = [], None
        self.rule.begin(self._ask("pull", None, {}))

    def _leased(self) -> bool:
        """Make sure that there is a lease; or do what else is asked for until there is one. False at the end."""
        while not self._leases or self.facts.get("end"):
            if self.facts.get("end"):
                self._leave()
                return False
            if self._flying is not None:
                self._land()
                continue
            if self._undone:
                self._exchange()
                continue
            begun = time.perf_counter()
            self.post.send(COORDINATOR, "report", {**self._report(), "want": True})
            self._hear(self._answer(COORDINATOR))
            if not self.facts.get("end") and not self._obey() and not self._leases:
                time.sleep(_IDLE)
                self.strategy.waited += time.perf_counter() - begun
            if self._leases and self.rule.follows and self.facts["version"] != self._versions.get(COORDINATOR):
                self._restart()
        return True

    def _leave(self) -> None:
        """Say good-bye, and wait until it is heard: who goes at once may go before its last words."""
        self.post.send(COORDINATOR, "bye", {"sent": self.post.sent + 1, "received": self.post.received + 1})
        with contextlib.suppress(LostPeerError):
            self.post.receive(_FAREWELL)

    def _due(self, *, last: bool) -> bool:
        """Whether it is time to exchange: after so many batches, or when nothing is left to do for now."""
        return sum(count for _, count in self._undone) >= self.every or (last and not self._leases)

    def _note(self, lease: int) -> None:
        if self._undone and self._undone[-1][0] == lease:
            self._undone[-1][1] += 1
        else:
            self._undone.append([lease, 1])

    def _exchange(self) -> bool:
        """Tell what was learned; False if the lease is not this worker's any more, and all of it void."""
        begun = time.perf_counter()
        soon = self.every if self._pool is not None else 0  # an answer that comes later is asked for earlier
        facts = {**self._report(), "want": not self._leases and self._left <= soon}
        self._undone = []
        if self._pool is None:
            self.rule.exchange(lambda kind, tensor: self._ask(kind, tensor, facts), facts)
        else:
            self._overlapped(facts)
        ended = time.perf_counter()
        self.strategy.waited += ended - begun
        self.trace.add(COMMUNICATE, int(begun * 1e9), int(ended * 1e9))
        if self.facts.pop("void", False):
            self._leases = []
            self._restart()
            return False
        self._obey()
        return not self.facts.get("end")

    def _overlapped(self, facts: dict[str, Any]) -> None:
        """Send in a thread; what is taken now is the answer to the exchange before."""
        assert self._pool is not None and isinstance(self.rule, Push)
        flying, self._flying = self._flying, None
        answer = None if flying is None else flying.result()
        self.rule.pack(facts)
        if answer is not None:
            self.rule.incoming(answer)
        self._flying = self._pool.submit(self._ask, "push", self.rule.out, facts)

    def _land(self) -> None:
        """Wait for the last exchange under way, and stand where the masters are."""
        assert self._flying is not None
        self.rule.begin(self._flying.result())
        self._flying = None

    def _report(self) -> dict[str, Any]:
        """What was done since the last report, for the coordinator."""
        meter, self._meter = self._meter, StepStatistics(self.loader, self.strategy)
        losses: dict[str, Any] = {}
        samples = 0
        if meter.steps:
            bad = meter.first_bad()
            if bad is not None and self._run is not None:
                raise save_bad_batch(self._run, self.post.here, self.loader, bad, int(self.facts["step"]))
            if bad is not None:
                raise RunError(f"{bad.name} is {bad.value}; lower train.optimizer.lr or set train.clip")
            losses, samples = meter.sums(), meter.samples
        return {
            "done": self._undone,
            "losses": losses,
            "samples": samples,
            "workers": int(self.facts.get("workers", 1)),
            **{name: round(seconds, 6) for name, seconds in meter.times().items()},
        }

    def _ask(self, kind: str, tensor: Tensor | None, facts: dict[str, Any]) -> Tensor:
        """Send each part of a tensor to its holder, and put the answers together."""
        sent = tensor if tensor is None or self.config.central.transfer == "float32" else tensor.bfloat16()
        if tensor is not None:
            facts["finite"] = finite(tensor)
        landing = self.rule.landing
        whole = self._room if landing is None else landing
        self.post.landing = {} if kind == "commit" else {peer: whole[first:stop] for peer, first, stop in self.parts}
        for peer, first, stop in self.parts:
            told = {**(facts if kind != "pull" else {}), "version": self._versions.get(peer, 0)}
            self.post.send(peer, kind, told, None if sent is None else sent[first:stop], lent=True)
        apart = kind != "pull" and COORDINATOR not in [part.peer for part in self.parts]
        if apart:
            self.post.send(COORDINATOR, "report", facts)
        if kind == "commit":
            for peer in {COORDINATOR} if apart else {COORDINATOR} & {part.peer for part in self.parts}:
                self._hear(self._answer(peer))
            return self._room
        waiting = {part.peer: part for part in self.parts}
        while waiting:
            message = self._next()
            part = waiting.pop(message.peer, None)
            self._hear(message)
            if part is None:
                apart = False
                continue
            self._versions[message.peer] = int(message.facts["version"])
            assert message.tensor is not None
            place = whole[part.first : part.stop]
            if landing is None and len(place) == len(whole) and place.dtype == message.tensor.dtype and not self._pool:
                whole = message.tensor
            elif message.tensor.data_ptr() != place.data_ptr():
                place.copy_(message.tensor)
        if apart:
            self._hear(self._answer(COORDINATOR))
        return whole

    def _next(self) -> Message:
        while True:
            message = self.post.receive()
            assert message is not None
            if message.kind != "welcome":  # to a hello that was said twice
                return _accepted(message)

    def _answer(self, peer: int) -> Message:
        message = self._next()
        assert message.peer == peer, f"peer {message.peer} spoke out of turn"
        return message

    def _hear(self, message: Message) -> None:
        if message.peer != COORDINATOR or message.kind == "part":
            return
        told = message.facts
        self.facts.update(told)
        if told.get("lease"):
            self._leases.append(told["lease"])

    def _obey(self) -> bool:
        """Do what the coordinator asked for besides; whether there was anything."""
        asked = False
        if self._flying is not None and not self.facts.keys().isdisjoint(("state", "restore", "judge")):
            self._flying.result()  # one thread at a time may use the post
        if self.facts.pop("state", False):
            asked = True
            self.post.send(COORDINATOR, "state", {}, to_bytes(self._state()))
            self._hear(self._answer(COORDINATOR))
        given = self.facts.pop("restore", None)
        if given:
            asked = True
            self.post.send(COORDINATOR, "restore", {})
            message = self._answer(COORDINATOR)
            assert message.tensor is not None
            self._load(from_bytes(message.tensor))
        if self.facts.get("judge"):
            asked = True
            self._validate(*self.facts.pop("judge"))
        return asked

    def _state(self) -> dict[str, Any]:
        return {
            "optimizers": {name: each.state_dict() for name, each in self.engine.optimizers.items()},
            "scaler": self.engine.scaler.state_dict() if self.engine.scaler else None,
            "random": torch.get_rng_state(),
            "rule": self.rule.state(),
        }

    def _load(self, state: dict[str, Any]) -> None:
        for name, optimizer in self.engine.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        if self.engine.scaler is not None and state["scaler"]:
            self.engine.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["random"])
        self.rule.load(state["rule"])

    def _validate(self, number: int, first: int, stop: int) -> None:
        """Judge some batches of held-out samples with the weights of a moment, and send the tallies."""
        with self.trace.span(VALIDATE):
            self.post.send(COORDINATOR, "snapshot", {"number": number})
            message = self._answer(COORDINATOR)
            assert message.tensor is not None
            model, vector, store = self._judging()
            vector.fill(message.tensor)
            batches = Sampler(len(store), self.config.size, shuffle=False).batches(0)[first:stop]
            found = validation.evaluate_batches(self.recipe, model, store, batches, self.device)
            told = {name: metrics.metric_to_data(each) for name, each in found.items()}
            self.post.send(COORDINATOR, "tallies", {"number": number, "first": first, "stop": stop, "found": told})
            self._hear(self._answer(COORDINATOR))

    def _judging(self) -> tuple[nn.Module, Vector, Store]:
        if self._judge is None:
            model = self.recipe.model().to(self.device)
            memory = self.config.loading.keep == "memory"
            store = Memory(self._dataset.read("val")) if memory else Disk(self._dataset, "val", None)
            self._judge = model, Vector(model), store
        return self._judge


def _accepted(message: Message) -> Message:
    if message.kind == "refused":
        raise ConfigError(f"the master refused this worker: {message.facts['why']}")
    return message


class Nothing(Optimizer):
    """Leaves gradients to whoever sends them."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 1.0})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Nothing."""


def _builder(config: TrainConfig) -> Any:
    if not sends_gradients(config):
        return make_optimizer
    return lambda parameters, config: Nothing(parameters)
