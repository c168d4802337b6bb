"""A master that holds a slice of the weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from clew.training.asynchronous.layout import COORDINATOR
from clew.training.asynchronous.master_weights import MasterWeights
from clew.training.asynchronous.messaging import Message, MessageTransport
from clew.training.asynchronous.rules import make_rule
from clew.training.asynchronous.state_bytes import state_from_bytes, state_to_bytes
from clew.training.config import TrainConfig


class ShardMaster:
    """Holds a slice of the weights for all workers, until the coordinator ends the training."""

    def __init__(self, transport: MessageTransport, config: TrainConfig, parameter_count: int) -> None:
        """Make a master that waits for its slice.

        Args:
            transport: Reaches the coordinator and the workers.
            config: The settings of the training.
            parameter_count: Parameters of the whole model.
        """
        self.transport, self.config, self.parameter_count = transport, config, parameter_count
        self._rule = make_rule(config)
        self._pushed: dict[int, Message] = {}
        """Updates of the current round by worker."""
        self._refused: set[int] = set()
        """Workers whose next update the coordinator has refused."""
        self._round_ends: list[dict[str, Any]] = []
        """Rounds that the coordinator has closed and that are not applied yet."""
        self._early: list[Message] = []
        """Messages that came before the weights."""
        self._master: MasterWeights | None = None

    def serve(self) -> None:
        """Handle messages until the coordinator ends the training."""
        self.transport.send(COORDINATOR, "hello")
        while True:
            message = self.transport.receive()
            assert message is not None
            if message.kind == "end":
                return
            if self._master is None and message.kind != "begin":
                self._early.append(message)
            else:
                self._handle(message)

    def _handle(self, message: Message) -> None:
        getattr(self, f"_on_{message.kind}")(message)

    @property
    def master(self) -> MasterWeights:
        assert self._master is not None, "the coordinator sends the weights first"
        return self._master

    def _on_begin(self, message: Message) -> None:
        assert message.tensor is not None
        start = int(message.fields["start"])
        parameters = max(0, min(len(message.tensor), self.parameter_count - start))
        self._master = MasterWeights(message.tensor.clone(), parameters, self.config)
        early, self._early = self._early, []
        for waiting in early:
            self._handle(waiting)

    def _on_optimizer(self, message: Message) -> None:
        assert message.tensor is not None
        self.master.optimizer.load_state_dict(state_from_bytes(message.tensor))

    def _on_collect(self, message: Message) -> None:
        optimizer = message.fields.get("optimizer")
        answer = state_to_bytes(self.master.optimizer.state_dict()) if optimizer else self.master.values
        self.transport.send(COORDINATOR, "slice", {}, answer)

    def _on_pull(self, message: Message) -> None:
        self._send_weights(message.peer)

    def _on_push(self, message: Message) -> None:
        if self._rule.waits_for_round:
            if message.peer in self._refused:
                self._refused.remove(message.peer)
                self._send_weights(message.peer)
                return
            self._pushed[message.peer] = message
            self._finish_rounds()
            return
        assert message.tensor is not None
        self.master.apply(message.tensor, message.fields)
        self._send_weights(message.peer)

    def _on_commit(self, message: Message) -> None:
        assert message.tensor is not None
        self.master.apply(message.tensor, message.fields)

    def _on_close_round(self, message: Message) -> None:
        self._round_ends.append(message.fields)
        self._finish_rounds()

    def _on_refuse_update(self, message: Message) -> None:
        """The coordinator refused an update, so its slice is refused here too."""
        worker = int(message.fields["worker"])
        if self._pushed.pop(worker, None) is None:
            self._refused.add(worker)
        else:
            self._send_weights(worker)

    def _on_hello(self, message: Message) -> None:
        """A worker has connected; nothing to do."""

    def _finish_rounds(self) -> None:
        """Apply the mean of each closed round for which all slices have arrived."""
        while self._round_ends and set(self._round_ends[0]["workers"]) <= self._pushed.keys():
            round_end = self._round_ends.pop(0)
            messages = [self._pushed.pop(worker) for worker in round_end["workers"]]
            updates = [message.tensor for message in messages if message.tensor is not None]
            self.master.apply_mean(updates, round_end["shares"])
            for message in messages:
                self._send_weights(message.peer)

    def _send_weights(self, worker: int) -> None:
        values: Tensor = self.master.values
        if self.config.asynchronous.transfer == "bf16":
            values = values.to(torch.bfloat16)
        self.transport.send(worker, "weights", {"version": self.master.version}, values)
