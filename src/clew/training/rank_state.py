"""The part of a training state that belongs to one rank: random numbers, and buffers that are not averaged yet."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from clew.training.strategies import Strategy


def capture_rank_state(strategy: Strategy, model: nn.Module, device: torch.device) -> dict[str, Any]:
    """Return what only this rank has."""
    state: dict[str, Any] = {"random": torch.get_rng_state()}
    if device.type != "cpu":
        state["device_random"] = torch.get_device_module(device).get_rng_state(device)
    if strategy.splits_data:
        state["buffers"] = {name: buffer.cpu() for name, buffer in model.named_buffers()}
    return state


def restore_rank_state(state: dict[str, Any], model: nn.Module, device: torch.device) -> None:
    """Set random numbers and buffers to a captured state."""
    torch.set_rng_state(state["random"])
    if "device_random" in state and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(state["device_random"], device)
    for name, buffer in model.named_buffers():
        if name in state.get("buffers", {}):
            buffer.copy_(state["buffers"][name])
