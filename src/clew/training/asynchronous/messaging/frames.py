"""Messages as frames of ZeroMQ: a header, then the memory of the tensor. What a peer sent is checked here."""

from __future__ import annotations

from typing import Any

import torch
import zmq
from torch import Tensor

from clew.training.asynchronous.messaging.transport import as_bytes, unpack_header

MAX_BYTES = 1 << 30
"""The largest part of a message if the size of the model is not known."""
_MAX_HEADER = 16 << 20
_MAX_NUMBER = 1 << 31


def send_frames(
    to: zmq.Socket[bytes], identity: list[bytes], header: bytes, tensor: Tensor | None, stable: bool
) -> None:
    """Send a header and a tensor. A stable tensor is not copied."""
    frames: list[Any] = [*identity, header]
    if tensor is None:
        to.send_multipart(frames)
        return
    to.send_multipart(frames, flags=zmq.SNDMORE)
    to.send(as_bytes(tensor), 0, copy=not stable)


def parse_frames(frames: list[zmq.Frame]) -> tuple[str, dict[str, Any], Tensor | None]:
    """Return kind, fields and tensor of a message.

    Raises:
        ValueError: The frames are not a message.
    """
    if not frames or len(frames[0].buffer) > _MAX_HEADER:
        raise ValueError("no header, or one that is too long")
    kind, fields, shape, _ = unpack_header(frames[0].bytes)
    if shape is None:
        return kind, fields, None
    dtype, count = shape
    if len(frames) < 2 or len(frames[1].buffer) != count * dtype.itemsize:
        raise ValueError("a tensor was cut")
    return kind, fields, torch.frombuffer(frames[1].buffer, dtype=dtype)


def requested_number(fields: dict[str, Any]) -> int | None:
    """Return the number of a client in its hello or heartbeat.

    Raises:
        ValueError: It is not a number.
    """
    number = fields.get("number")
    if number is not None and (type(number) is not int or not 0 <= number < _MAX_NUMBER):
        raise ValueError("not a number of a client")
    return number


def message_limit(weights: int) -> int:
    """Return the largest message, in bytes, of the training of a model with this many weights.

    The largest is the state of a worker: its weights and what its optimisers store for each.
    """
    return (64 << 20) + 128 * weights
