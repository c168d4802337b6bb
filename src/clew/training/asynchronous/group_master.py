"""The master of a group of workers, which is itself like a worker of the top master."""

from __future__ import annotations

import torch

from clew.training.asynchronous.layout import COORDINATOR
from clew.training.asynchronous.messaging import Message, MessageTransport
from clew.training.asynchronous.shard_master import ShardMaster
from clew.training.config import TrainConfig


class GroupMaster(ShardMaster):
    """Holds a copy of all weights for its group, and exchanges with the coordinator.

    After as many updates as the group has workers, it sends how far its weights moved, scaled by the rule's
    `group_share`, and continues from the weights of all groups together.
    """

    def __init__(self, transport: MessageTransport, config: TrainConfig, parameter_count: int, *, workers: int) -> None:
        """Make a master that waits for the weights.

        Args:
            transport: Reaches the coordinator and the workers of the group.
            config: The settings of the training.
            parameter_count: Parameters of the model.
            workers: Workers of the group.
        """
        super().__init__(transport, config, parameter_count)
        self._workers, self._updates = max(1, workers), 0
        self._base = torch.empty(0)
        """The weights after the last exchange with the coordinator."""
        self._top_version = 0
        self._groups = max(1, config.asynchronous.groups)
        self._share = self._rule.group_share(self._groups)

    def _on_begin(self, message: Message) -> None:
        assert message.tensor is not None
        self._base = message.tensor.clone()
        super()._on_begin(message)

    def _on_push(self, message: Message) -> None:
        super()._on_push(message)
        self._count_update()

    def _on_commit(self, message: Message) -> None:
        super()._on_commit(message)
        self._count_update()

    def _on_flush(self, message: Message) -> None:
        self._exchange(flush=True)

    def _count_update(self) -> None:
        self._updates += 1
        if self._updates >= self._workers:
            self._exchange(flush=False)

    def _exchange(self, *, flush: bool) -> None:
        """Send how far the group moved, and take the weights of the top master."""
        self._updates = 0
        values = self.master.values
        update = (self._base - values).mul_(self._share)
        update[self.master.parameter_count :] = values[self.master.parameter_count :]
        fields = {"version": self._top_version, "flush": flush, "workers": self._groups}
        self.transport.send(COORDINATOR, "push", fields, update, stable=True)
        later = []
        while True:
            message = self.transport.receive()
            assert message is not None
            if message.peer == COORDINATOR and message.kind == "weights":
                break
            later.append(message)
        assert message.tensor is not None
        self._top_version = int(message.fields["version"])
        values.copy_(message.tensor)
        self._base.copy_(message.tensor)
        for waiting in later:
            self._handle(waiting)
