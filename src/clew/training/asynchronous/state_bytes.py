"""States of workers and optimisers as tensors of bytes, so that they can be sent."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor


def state_to_bytes(state: dict[str, Any]) -> Tensor:
    """Return a state as a flat tensor of bytes."""
    out = io.BytesIO()
    torch.save(state, out)
    return torch.frombuffer(bytearray(out.getbuffer()), dtype=torch.uint8)


def state_from_bytes(tensor: Tensor) -> dict[str, Any]:
    """Return the state that `state_to_bytes` packed. Only tensors and plain values are read; no code is executed."""
    state: dict[str, Any] = torch.load(io.BytesIO(tensor.numpy().tobytes()), weights_only=True, map_location="cpu")
    return state
