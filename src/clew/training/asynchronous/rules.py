"""What a worker sends, and what it makes of the answer: one class a rule, all over one flat tensor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from clew.training.asynchronous.flat_model import Vector
from clew.training.asynchronous.master import sends_gradients
from clew.training.asynchronous.messaging.transport import Shape, empty
from clew.training.config import TrainConfig

Room = Callable[[Shape], Tensor]
Ask = Callable[[str, Tensor | None], Tensor]
"""Send a kind of message with what is in a tensor to whoever holds the weights; their answer. Given the kind `commit`,
nothing is answered."""


class Rule(ABC):
    """A worker's half of a strategy."""

    follows: ClassVar[bool] = True
    """Whether a worker that was idle goes on from the central weights of now, or from its own; who does so has no use
    for its own weights once the central ones come."""

    def __init__(self, vector: Vector, config: TrainConfig, room: Room = empty) -> None:
        """`room`: makes room for what is lent to the masters."""
        self.vector, self.config = vector, config
        self.out = _room(vector, room)
        """What is sent: an update, and the buffers behind it."""

    @property
    def landing(self) -> Tensor | None:
        """Where the central weights may be put as they come, or None where they are needed beside this worker's."""
        there = self.follows and not self.config.central.overlap and self.vector.memory.device.type == "cpu"
        return self.vector.memory if there else None

    @property
    def _update(self) -> Tensor:
        return self.out[: self.vector.size]

    def begin(self, answer: Tensor) -> None:
        """Start from the central weights."""
        self.vector.fill(answer)

    @abstractmethod
    def exchange(self, ask: Ask, facts: dict[str, Any]) -> None:
        """Send, and take the answer."""

    def state(self) -> dict[str, Tensor]:
        """What this worker has that the masters do not."""
        return {}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from it."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])


class Push(Rule):
    """One that sends first, and so may be at work while the answer comes."""

    def __init__(self, vector: Vector, config: TrainConfig, room: Room = empty) -> None:
        super().__init__(vector, config, room)
        self._sent = _room(vector, room) if config.central.overlap else self.out

    def exchange(self, ask: Ask, facts: dict[str, Any]) -> None:
        self.pack(facts)
        self.incoming(ask("push", self.out))

    def pack(self, facts: dict[str, Any]) -> None:
        """Write what is to be sent. Where exchanges overlap with work, `incoming` then takes the answer to the one
        before."""
        self.out, self._sent = self._sent, self.out
        self.outgoing(facts)
        self.vector.write_buffers(self.out)

    @abstractmethod
    def outgoing(self, facts: dict[str, Any]) -> None:
        """Write what this worker has to tell."""

    @abstractmethod
    def incoming(self, answer: Tensor) -> None:
        """Take what it is told in return."""


class Gradients(Push):
    """The gradient of the last batch; the master's optimiser makes a step of it."""

    def __init__(self, vector: Vector, config: TrainConfig, room: Room = empty) -> None:
        super().__init__(vector, config, room)
        apart = config.central.overlap and vector.memory.device.type == "cpu"
        self._next = room((vector.memory.dtype, vector.length)) if apart else None
        """Where the next weights land while the model is at work with the last."""

    @property
    def landing(self) -> Tensor | None:
        return super().landing if self._next is None else self._next

    def outgoing(self, facts: dict[str, Any]) -> None:
        there = [parameter.grad for parameter in self.vector.parameters if parameter.grad is not None]
        torch._foreach_copy_(self.vector.views(self._update), there)

    def incoming(self, answer: Tensor) -> None:
        if answer is self._next:
            self._next = self.vector.adopt(answer)
        else:
            self.vector.fill(answer)


class Deltas(Push):
    """How far this worker has come since it last told."""

    def __init__(self, vector: Vector, config: TrainConfig, room: Room = empty) -> None:
        super().__init__(vector, config, room)
        self._base = torch.empty_like(vector.flat)

    def begin(self, answer: Tensor) -> None:
        super().begin(answer)
        self._base.copy_(self.vector.flat)

    def outgoing(self, facts: dict[str, Any]) -> None:
        if self._base.device == self.out.device:
            torch.sub(self._base, self.vector.flat, out=self._update)
        else:
            self._update.copy_(self._base - self.vector.flat)

    def incoming(self, answer: Tensor) -> None:
        self.vector.fill(answer)
        if self.config.central.overlap:  # the answer does not know yet what has just been packed
            self.vector.flat.sub_(self._update.to(self.vector.flat.device))
        self._base.copy_(self.vector.flat)


class Elastic(Push):
    """This worker's weights; it and the centre pull at each other by the same difference."""

    follows = False

    def __init__(self, vector: Vector, config: TrainConfig, room: Room = empty) -> None:
        super().__init__(vector, config, room)
        self._alpha = 0.0

    def state(self) -> dict[str, Tensor]:
        return {"weights": self.vector.flat}

    def outgoing(self, facts: dict[str, Any]) -> None:
        facts["alpha"] = self._alpha = min(0.5, self.config.central.elasticity / max(1, int(facts["workers"])))
        self._update.copy_(self.vector.flat)

    def incoming(self, answer: Tensor) -> None:
        sent = self._sent if self.config.central.overlap else self.out
        difference = sent[: self.vector.size] - answer[: self.vector.size]
        self.vector.flat.sub_(difference.to(self.vector.flat.device), alpha=self._alpha)
        self.vector.read_buffers(answer)


class Energy(Rule):
    """Steps scaled so that all workers together move as one with momentum would (gradient energy matching)."""

    follows = False

    def __init__(self, vector: Vector, config: TrainConfig, room: Room = empty) -> None:
        super().__init__(vector, config, room)
        self._base, self._before = torch.empty_like(vector.flat), torch.empty_like(vector.flat)
        self._momentum = torch.zeros_like(vector.flat)

    def begin(self, answer: Tensor) -> None:
        super().begin(answer)
        self._base.copy_(self.vector.flat)
        self._before.copy_(self.vector.flat)

    def state(self) -> dict[str, Tensor]:
        return {"momentum": self._momentum, "before": self._before, "base": self._base, "weights": self.vector.flat}

    def exchange(self, ask: Ask, facts: dict[str, Any]) -> None:
        central = self.config.central
        delta = self.vector.flat - self._base
        self._momentum.mul_(central.momentum).add_(delta)
        theta = ask("pull", None).to(delta.device)
        moved = (theta[: self.vector.size] - self._before).abs_()
        energy = self._momentum.abs().mul_(central.kappa).sub_(moved)
        share = energy.div_(delta.add(1e-12).abs_()).clamp_(0.0, 5.0)
        step = share.mul_(delta)
        self._update.copy_(step)
        self.vector.write_buffers(self.out)
        self._before.copy_(theta[: self.vector.size])
        torch.add(self._before, step, out=self.vector.flat)
        self.vector.read_buffers(theta)
        self._base.copy_(self.vector.flat)
        ask("commit", self.out)


def make_rule(vector: Vector, config: TrainConfig, room: Room = empty) -> Rule:
    """The worker's half of the strategy of the settings."""
    kinds: dict[str, type[Rule]] = {"easgd": Elastic, "gem": Energy}
    kind = Gradients if sends_gradients(config) else kinds.get(config.strategy, Deltas)
    return kind(vector, config, room)


def _room(vector: Vector, room: Room) -> Tensor:
    if vector.flat.device.type != "cpu":
        return torch.zeros(vector.length, dtype=vector.flat.dtype, pin_memory=True)
    return room((vector.flat.dtype, vector.length)).zero_()
