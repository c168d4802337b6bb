"""The other masters as the coordinator sees them: those that hold a part of the weights, and the heads of groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from clew.training.asynchronous.messaging import Message, Post
from clew.training.asynchronous.worker import Part


@dataclass
class Others:
    """Asks and tells them. While it waits for one, heads of groups that wait for an answer get it (they could not
    answer otherwise), and what workers say is kept in `later`."""

    post: Post
    shards: Sequence[Part] = ()
    heads: Sequence[int] = ()
    take: Callable[[Message], None] = lambda message: None
    """What is done with an update of a head."""
    later: deque[Message] = field(default_factory=deque)
    optimizers: Sequence[Tensor] = ()
    """States for those that hold a part to go on from."""

    @property
    def peers(self) -> list[int]:
        """All of them."""
        return [*(shard.peer for shard in self.shards), *self.heads]

    def begin(self, values: Tensor) -> None:
        """Wait until all are there, and give them their parts."""
        missing = set(self.peers)
        while missing:  # in whatever order they come
            message = self._next()
            if message.kind == "hello" and message.peer in missing:
                missing.remove(message.peer)
            else:
                self.later.append(message)
        for peer, first, stop in self.shards:
            self.post.send(peer, "begin", {"first": first}, values[first:stop])
        for peer in self.heads:
            self.post.send(peer, "begin", {"first": 0}, values)
        for shard, packed in zip(self.shards, self.optimizers, strict=False):
            self.post.send(shard.peer, "optimizer", {}, packed)

    def gather(self, values: Tensor) -> None:
        """Bring the coordinator's weights up to date with everything the others have."""
        for peer in self.heads:
            self.post.send(peer, "flush")
            self._answer(peer, "push")
        for peer, first, stop in self.shards:
            self.post.send(peer, "collect")
            values[first:stop].copy_(self._part(peer))

    def states(self) -> list[Tensor]:
        """The optimisers of those that hold a part."""
        found = []
        for shard in self.shards:
            self.post.send(shard.peer, "collect", {"optimizer": True})
            found.append(self._part(shard.peer).clone())
        return found

    def end(self) -> None:
        """It is over."""
        for peer in self.peers:
            self.post.send(peer, "end")

    def _part(self, peer: int) -> Tensor:
        tensor = self._answer(peer, "part").tensor
        assert tensor is not None
        return tensor

    def _answer(self, peer: int, kind: str) -> Message:
        """The next such message of a master; of a head, the update that it was asked for."""
        while True:
            message = self._next()
            if message.kind == "push" and message.peer in self.heads:
                self.take(message)
                if message.peer == peer and message.facts.get("flush"):
                    return message
            elif message.peer == peer and message.kind == kind:
                return message
            else:
                self.later.append(message)

    def _next(self) -> Message:
        message = self.post.receive()
        assert message is not None
        return message
