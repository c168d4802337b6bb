"""The contract of a post: small headers and flat tensors from one numbered peer to another."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

TYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "uint8": torch.uint8}
"""Of the numbers that can be sent."""
Facts: TypeAlias = Mapping[str, Any]
Shape: TypeAlias = tuple[torch.dtype, int]
"""Type and size of a flat tensor."""
_NAMES = {dtype: name for name, dtype in TYPES.items()}


class Message(NamedTuple):
    """What came, and from whom."""

    peer: int
    kind: str
    facts: dict[str, Any]
    tensor: Tensor | None = None


class Post(ABC):
    """A process's letter box.

    Messages of one peer come in the order it sent them, whole or not at all. A tensor is flat and in memory; one that
    was received stays as it is until the next tensor of the same peer is received. Tensors travel only to a peer that
    waits for messages: who sends one asks or answers, and everything unasked for goes without.
    One thread at a time may use a post.
    """

    here: int
    """This process's number."""

    def __init__(self) -> None:
        self.sent = self.received = 0
        """Messages so far."""
        self.bytes = 0
        """Of all tensors sent and received so far."""
        self.landing: dict[int, Tensor] = {}
        """Where the next tensor of a peer may be put, to spare a copy: a wish, for tensors that fit."""
        self.patient = False
        """Whether other threads have work for the core while this one waits."""

    def room(self, shape: Shape) -> Tensor:
        """Where to keep what is lent again and again, or what lands: peers that see it need not be sent it."""
        return empty(shape)

    def send(
        self,
        peer: int,
        kind: str,
        facts: Facts | None = None,
        tensor: Tensor | None = None,
        *,
        lent: bool = False,
    ) -> None:
        """Send; the tensor may be changed once this returns. One that is `lent` stays as it is until the peer has
        answered, which may spare a copy.

        Raises:
            LostPeerError: it is known to be gone.
        """
        self._post(peer, kind, facts or {}, tensor, lent=lent)
        self._count(tensor, out=True)

    @abstractmethod
    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message, or None after `timeout` seconds."""

    @abstractmethod
    def close(self) -> None:
        """Send what is still to be sent, and take no more."""

    @abstractmethod
    def _post(self, peer: int, kind: str, facts: Facts, tensor: Tensor | None, *, lent: bool) -> None:
        """What `send` does, but for counting."""

    def _count(self, tensor: Tensor | None, *, out: bool) -> None:
        self.sent, self.received = self.sent + out, self.received + (not out)
        if tensor is not None:
            self.bytes += tensor.numel() * tensor.element_size()


class Header(NamedTuple):
    """What goes before a tensor."""

    kind: str
    facts: dict[str, Any]
    shape: Shape | None = None
    more: Any = None
    """What a kind of post has to say to its like."""


def pack(kind: str, facts: Facts | None, tensor: Tensor | None, more: Any = None) -> bytes:
    """A header as it travels."""
    return json.dumps([kind, facts or {}, None if tensor is None else told_shape(tensor), more]).encode()


def unpack(header: bytes | bytearray) -> Header:
    """What `pack` packed.

    Raises:
        ValueError: these bytes are no header.
    """
    kind, facts, shape, more = json.loads(header)
    if not isinstance(kind, str) or not isinstance(facts, dict):
        raise ValueError("no header")
    return Header(kind, facts, None if shape is None else heard_shape(shape), more)


def told_shape(tensor: Tensor) -> tuple[str, int]:
    """A shape as it travels."""
    return _NAMES[tensor.dtype], tensor.numel()


def heard_shape(told: Sequence[Any]) -> Shape:
    """What `told_shape` told."""
    return TYPES[told[0]], int(told[1])


def as_bytes(tensor: Tensor) -> memoryview:
    """The memory of a flat tensor."""
    return memoryview(tensor.detach().view(torch.uint8).numpy())  # type: ignore[arg-type]


def empty(shape: Shape) -> Tensor:
    """Room for a tensor of this type and size."""
    return torch.empty(shape[1], dtype=shape[0])
