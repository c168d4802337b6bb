"""How the coordinator talks to the other masters: those that hold shards, and those of groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from clew.training.asynchronous.layout import WeightSlice
from clew.training.asynchronous.messaging import Message, MessageTransport


@dataclass
class MasterLinks:
    """Sends requests to the other masters and waits for their answers.

    While the coordinator waits for one master, masters of groups that wait for an answer get it: otherwise they could
    not answer either. Messages of workers are kept in `later`.
    """

    transport: MessageTransport
    shards: Sequence[WeightSlice] = ()
    group_masters: Sequence[int] = ()
    apply_group_update: Callable[[Message], None] = lambda message: None
    """Applies the update of a group's master and answers it."""
    later: deque[Message] = field(default_factory=deque)
    """Messages of workers that came meanwhile."""
    optimizers: Sequence[Tensor] = ()
    """States of the shard masters' optimisers to continue from."""

    @property
    def masters(self) -> list[int]:
        """All masters besides the coordinator."""
        return [*(shard.master for shard in self.shards), *self.group_masters]

    def begin(self, values: Tensor) -> None:
        """Wait until all masters have connected, in any order, and send them their weights."""
        missing = set(self.masters)
        while missing:
            message = self._receive()
            if message.kind == "hello" and message.peer in missing:
                missing.remove(message.peer)
            else:
                self.later.append(message)
        for master, start, stop in self.shards:
            self.transport.send(master, "begin", {"start": start}, values[start:stop])
        for master in self.group_masters:
            self.transport.send(master, "begin", {"start": 0}, values)
        for shard, state in zip(self.shards, self.optimizers, strict=False):
            self.transport.send(shard.master, "optimizer", {}, state)

    def gather(self, values: Tensor) -> None:
        """Bring the coordinator's copy of the weights up to date with all other masters."""
        for master in self.group_masters:
            self.transport.send(master, "flush")
            self._answer(master, "push")
        for master, start, stop in self.shards:
            self.transport.send(master, "collect")
            values[start:stop].copy_(self._slice(master))

    def optimizer_states(self) -> list[Tensor]:
        """Return the states of the shard masters' optimisers."""
        states = []
        for shard in self.shards:
            self.transport.send(shard.master, "collect", {"optimizer": True})
            states.append(self._slice(shard.master).clone())
        return states

    def end(self) -> None:
        """End the other masters."""
        for master in self.masters:
            self.transport.send(master, "end")

    def _slice(self, master: int) -> Tensor:
        tensor = self._answer(master, "slice").tensor
        assert tensor is not None
        return tensor

    def _answer(self, master: int, kind: str) -> Message:
        """Wait for a message of this kind from a master; from a group's master, for the update it was asked for."""
        while True:
            message = self._receive()
            if message.kind == "push" and message.peer in self.group_masters:
                self.apply_group_update(message)
                if message.peer == master and message.fields.get("flush"):
                    return message
            elif message.peer == master and message.kind == kind:
                return message
            else:
                self.later.append(message)

    def _receive(self) -> Message:
        message = self.transport.receive()
        assert message is not None
        return message
