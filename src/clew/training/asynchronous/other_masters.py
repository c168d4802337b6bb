"""The other masters: one that holds a part of the weights, and one that leads a group of workers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from clew.training.asynchronous.master import Holder
from clew.training.asynchronous.messaging import Message, Post
from clew.training.asynchronous.state_bytes import from_bytes, to_bytes
from clew.training.asynchronous.worker import COORDINATOR
from clew.training.config import TrainConfig


class Shard:
    """Holds a part of the weights for all workers, until the coordinator says that it is over."""

    def __init__(self, post: Post, config: TrainConfig, size: int) -> None:
        """`size`: parameters of the whole model."""
        self.post, self.config, self.size = post, config, size
        self._pushed: dict[int, Message] = {}
        self._dropped: set[int] = set()
        self._closes: list[dict[str, Any]] = []
        self._early: list[Message] = []
        self._holder: Holder | None = None

    def serve(self) -> None:
        """Until the end."""
        self.post.send(COORDINATOR, "hello")
        while True:
            message = self.post.receive()
            assert message is not None
            if message.kind == "end":
                return
            if self._holder is None and message.kind != "begin":
                self._early.append(message)
            else:
                getattr(self, f"_on_{message.kind}")(message)

    @property
    def holder(self) -> Holder:
        assert self._holder is not None, "the coordinator sends the weights first"
        return self._holder

    def _on_begin(self, message: Message) -> None:
        assert message.tensor is not None
        first = int(message.facts["first"])
        parameters = max(0, min(len(message.tensor), self.size - first))
        self._holder = Holder(message.tensor.clone(), parameters, self.config)
        early, self._early = self._early, []
        for each in early:
            getattr(self, f"_on_{each.kind}")(each)

    def _on_optimizer(self, message: Message) -> None:
        assert message.tensor is not None
        self.holder.optimizer.load_state_dict(from_bytes(message.tensor))

    def _on_collect(self, message: Message) -> None:
        state = message.facts.get("optimizer")
        sent = to_bytes(self.holder.optimizer.state_dict()) if state else self.holder.values
        self.post.send(COORDINATOR, "part", {}, sent)

    def _on_pull(self, message: Message) -> None:
        self._give(message.peer)

    def _on_push(self, message: Message) -> None:
        if self.config.strategy == "diloco" or self.config.strategy == "backup":
            if message.peer in self._dropped:
                self._dropped.remove(message.peer)
                self._give(message.peer)
                return
            self._pushed[message.peer] = message
            self._finish_round()
            return
        assert message.tensor is not None
        self.holder.take(message.tensor, message.facts)
        self._give(message.peer)

    def _on_commit(self, message: Message) -> None:
        assert message.tensor is not None
        self.holder.take(message.tensor, message.facts)

    def _on_close(self, message: Message) -> None:
        self._closes.append(message.facts)
        self._finish_round()

    def _on_drop(self, message: Message) -> None:
        """The coordinator did not take an update: its part is not taken either."""
        peer = int(message.facts["peer"])
        if self._pushed.pop(peer, None) is None:
            self._dropped.add(peer)
        else:
            self._give(peer)

    def _on_hello(self, message: Message) -> None:
        """A worker's line is open."""

    def _finish_round(self) -> None:
        """Take the mean of the updates the coordinator took, once all their parts are here."""
        while self._closes and set(self._closes[0]["peers"]) <= self._pushed.keys():
            close = self._closes.pop(0)
            given = [self._pushed.pop(peer) for peer in close["peers"]]
            self.holder.take_mean([each.tensor for each in given if each.tensor is not None], close["shares"])
            for each in given:
                self._give(each.peer)

    def _give(self, peer: int) -> None:
        sent: Tensor = self.holder.values
        if self.config.central.transfer == "bf16":
            sent = sent.to(torch.bfloat16)
        self.post.send(peer, "weights", {"version": self.holder.version}, sent)


class Head(Shard):
    """Leads a group: is its master, and a worker of the master above.

    What its group has learned goes up after as many updates as the group has workers; then it goes on from what all
    groups have learned together. Groups that average (easgd) count for their share above.
    """

    def __init__(self, post: Post, config: TrainConfig, size: int, *, workers: int) -> None:
        super().__init__(post, config, size)
        self._workers, self._since = max(1, workers), 0
        self._base = torch.empty(0)
        self._share = 1 / max(1, config.central.groups) if config.strategy == "easgd" else 1.0

    def _on_begin(self, message: Message) -> None:
        assert message.tensor is not None
        self._base = message.tensor.clone()
        super()._on_begin(message)

    def _on_push(self, message: Message) -> None:
        super()._on_push(message)
        self._counted()

    def _on_commit(self, message: Message) -> None:
        super()._on_commit(message)
        self._counted()

    def _on_flush(self, message: Message) -> None:
        self._rise(flush=True)

    def _counted(self) -> None:
        self._since += 1
        if self._since >= self._workers:
            self._rise(flush=False)

    def _rise(self, *, flush: bool) -> None:
        """Tell the master above what was learned, and take what it has."""
        self._since = 0
        values = self.holder.values
        update = (self._base - values).mul_(self._share)
        update[self.holder.parameters :] = values[self.holder.parameters :]
        facts = {"version": self.holder.version, "flush": flush, "workers": max(1, self.config.central.groups)}
        self.post.send(COORDINATOR, "push", {**facts, "version": self._above}, update, lent=True)
        later = []
        while True:
            message = self.post.receive()
            assert message is not None
            if message.peer == COORDINATOR and message.kind == "weights":
                break
            later.append(message)
        assert message.tensor is not None
        self._above = int(message.facts["version"])
        values.copy_(message.tensor)
        self._base.copy_(message.tensor)
        for each in later:
            getattr(self, f"_on_{each.kind}")(each)

    _above = 0
