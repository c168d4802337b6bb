"""The contract of a transport: messages with small headers and flat tensors between numbered processes."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

TYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "uint8": torch.uint8}
"""The types of tensors that can be sent."""
Fields: TypeAlias = Mapping[str, Any]
"""The values of a message besides its tensor. They must be valid JSON."""
Shape: TypeAlias = tuple[torch.dtype, int]
"""Type and length of a flat tensor."""
Allocate: TypeAlias = Callable[[Shape], Tensor]
"""Allocates memory for a flat tensor."""
_NAMES = {dtype: name for name, dtype in TYPES.items()}


class Message(NamedTuple):
    """A message that was received."""

    peer: int
    """The number of the sender."""
    kind: str
    fields: dict[str, Any]
    tensor: Tensor | None = None


class MessageTransport(ABC):
    """Sends and receives the messages of one process.

    Messages of one peer arrive in the order in which it sent them, complete or not at all. A tensor is flat and in CPU
    memory. A received tensor stays valid until the next tensor of the same peer is received. A tensor is only sent to a
    peer that is waiting for messages: as a request, or as the answer to one. Unsolicited messages have no tensor.
    Only one thread at a time may use a transport.
    """

    number: int
    """The number of this process."""

    def __init__(self) -> None:
        self.sent = self.received = 0
        """Messages so far."""
        self.bytes = 0
        """Bytes of all tensors sent and received so far."""
        self.receive_buffers: dict[int, Tensor] = {}
        """Where the next tensor of a peer may be written, to avoid a copy. Used only if type and length match."""
        self.busy_process = False
        """Whether other threads of this process need the core while this one waits for messages."""
        self.last_heartbeat: dict[int, float] = {}
        """When each peer last sent a heartbeat (`time.monotonic`); empty for transports without heartbeats."""

    def allocate(self, shape: Shape) -> Tensor:
        """Allocate a tensor that is sent repeatedly or used as a receive buffer. Peers may get direct access to it."""
        return empty(shape)

    def send(
        self,
        peer: int,
        kind: str,
        fields: Fields | None = None,
        tensor: Tensor | None = None,
        *,
        stable: bool = False,
    ) -> None:
        """Send a message. The tensor may be changed once this returns, unless it is stable.

        Args:
            peer: The number of the receiver.
            kind: What the message is about.
            fields: Other values, valid JSON.
            tensor: A flat tensor in CPU memory.
            stable: Whether the tensor does not change until the peer has answered; this can avoid a copy.

        Raises:
            LostPeerError: The peer is known to be gone.
        """
        self._send(peer, kind, fields or {}, tensor, stable=stable)
        self._count(tensor, outgoing=True)

    def disconnect(self, peer: int) -> None:
        """Accept no more messages from a peer. Transports with a fixed set of peers do nothing."""
        return

    @abstractmethod
    def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message, or None after `timeout` seconds."""

    @abstractmethod
    def close(self) -> None:
        """Send what is still queued, and receive nothing more."""

    @abstractmethod
    def _send(self, peer: int, kind: str, fields: Fields, tensor: Tensor | None, *, stable: bool) -> None:
        """Do what `send` does, without counting."""

    def _count(self, tensor: Tensor | None, *, outgoing: bool) -> None:
        self.sent, self.received = self.sent + outgoing, self.received + (not outgoing)
        if tensor is not None:
            self.bytes += tensor.numel() * tensor.element_size()


class Header(NamedTuple):
    """What is sent before a tensor."""

    kind: str
    fields: dict[str, Any]
    shape: Shape | None = None
    extra: Any = None
    """Values of the transport itself."""


def pack_header(kind: str, fields: Fields | None, tensor: Tensor | None, extra: Any = None) -> bytes:
    """Return a header as bytes."""
    return json.dumps([kind, fields or {}, None if tensor is None else describe_shape(tensor), extra]).encode()


def unpack_header(header: bytes | bytearray) -> Header:
    """Return the header that `pack_header` packed.

    Raises:
        ValueError: The bytes are not a header.
    """
    try:
        kind, fields, shape, extra = json.loads(header)
        parsed = None if shape is None else parse_shape(shape)
    except (TypeError, KeyError, IndexError, RecursionError, OverflowError) as error:
        raise ValueError(f"not a header ({type(error).__name__})") from None
    if not isinstance(kind, str) or not isinstance(fields, dict):
        raise ValueError("not a header")
    return Header(kind, fields, parsed, extra)


def describe_shape(tensor: Tensor) -> tuple[str, int]:
    """Return the type and length of a tensor as JSON values."""
    return _NAMES[tensor.dtype], tensor.numel()


def parse_shape(description: Sequence[Any]) -> Shape:
    """Return the shape that `describe_shape` described.

    Raises:
        ValueError, KeyError, TypeError: It is something else.
    """
    name, length = description
    if type(length) is not int or length < 0:
        raise ValueError("not a length")
    return TYPES[name], length


def as_bytes(tensor: Tensor) -> memoryview:
    """Return the memory of a flat tensor."""
    return memoryview(tensor.detach().view(torch.uint8).numpy())  # type: ignore[arg-type]


def empty(shape: Shape) -> Tensor:
    """Allocate a tensor of this type and length in ordinary memory."""
    return torch.empty(shape[1], dtype=shape[0])
