"""Posts of threads in one process: for tests, and for a master that lives with its only worker."""

from __future__ import annotations

import queue

from torch import Tensor

from clew.errors import LostPeerError
from clew.training.asynchronous.messaging.transport import Facts, Message, Post


def posts(count: int) -> list[Post]:
    """Posts numbered from 0 that reach each other."""
    boxes: list[queue.Queue[Message]] = [queue.Queue() for _ in range(count)]
    return [_InProcess(number, boxes) for number in range(count)]


class _InProcess(Post):
    def __init__(self, here: int, boxes: list[queue.Queue[Message]]) -> None:
        super().__init__()
        self.here, self._boxes = here, boxes

    def _post(self, peer: int, kind: str, facts: Facts, tensor: Tensor | None, *, lent: bool) -> None:
        if not 0 <= peer < len(self._boxes):
            raise LostPeerError(f"there is no peer {peer}")
        given = tensor if lent or tensor is None else tensor.clone()
        self._boxes[peer].put(Message(self.here, kind, dict(facts), given))

    def receive(self, timeout: float | None = None) -> Message | None:
        try:
            message = self._boxes[self.here].get(timeout=timeout)
        except queue.Empty:
            return None
        self._count(message.tensor, out=False)
        return message

    def close(self) -> None:
        pass
