"""States of workers as bytes that can be sent, and read without running anybody's code."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor


def to_bytes(state: dict[str, Any]) -> Tensor:
    """Pack."""
    out = io.BytesIO()
    torch.save(state, out)
    return torch.frombuffer(bytearray(out.getbuffer()), dtype=torch.uint8)


def from_bytes(tensor: Tensor) -> dict[str, Any]:
    """Unpack; nothing but tensors and plain values."""
    found: dict[str, Any] = torch.load(io.BytesIO(tensor.numpy().tobytes()), weights_only=True, map_location="cpu")
    return found
