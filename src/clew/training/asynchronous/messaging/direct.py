"""A transport between a master and its only worker in the same thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from torch import Tensor

from clew.training.asynchronous.messaging.transport import Fields, Message, MessageTransport


class DirectTransport(MessageTransport):
    """The receiver handles each message while it is sent."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.inbox: deque[Message] = deque()
        self.deliver: Callable[[Message], None] = self.inbox.append
        """Called with each message that is sent; set it to the receiver's handler."""
        self.idle: Callable[[], None] | None = None
        """Called about ten times per second while messages are received."""
        self._last_idle = time.monotonic()

    def _send(self, peer: int, kind: str, fields: Fields, tensor: Tensor | None, *, stable: bool) -> None:
        self.deliver(Message(self.number, kind, dict(fields), tensor))

    def receive(self, timeout: float | None = None) -> Message | None:
        """Return the answer, which has already arrived."""
        if self.idle is not None and time.monotonic() - self._last_idle > 0.1:
            self._last_idle = time.monotonic()
            self.idle()
        return self.inbox.popleft() if self.inbox else None

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
