"""A transport between threads of one process, built on queues: the reference for the contract tests."""

from __future__ import annotations

import queue

from torch import Tensor

from clew.errors import LostPeerError
from clew.training.asynchronous.messaging.transport import Fields, Message, MessageTransport


def in_process_transports(count: int) -> list[MessageTransport]:
    """Return transports numbered from 0 that reach each other."""
    queues: list[queue.Queue[Message]] = [queue.Queue() for _ in range(count)]
    return [InProcessTransport(number, queues) for number in range(count)]


class InProcessTransport(MessageTransport):
    def __init__(self, number: int, queues: list[queue.Queue[Message]]) -> None:
        super().__init__()
        self.number, self._queues = number, queues

    def _send(self, peer: int, kind: str, fields: Fields, tensor: Tensor | None, *, stable: bool) -> None:
        if not 0 <= peer < len(self._queues):
            raise LostPeerError(f"there is no peer {peer}")
        copied = tensor if stable or tensor is None else tensor.clone()
        self._queues[peer].put(Message(self.number, kind, dict(fields), copied))

    def receive(self, timeout: float | None = None) -> Message | None:
        try:
            message = self._queues[self.number].get(timeout=timeout)
        except queue.Empty:
            return None
        self._count(message.tensor, outgoing=False)
        return message

    def close(self) -> None:
        pass
