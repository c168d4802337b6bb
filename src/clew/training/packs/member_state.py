"""The checkpoint of one member, in the format of any other run: it can be resumed in another pack, or alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from clew.training.config import TrainConfig
from clew.training.optimizer import make_optimizer
from clew.training.packs.engine import PackEngine
from clew.training.packs.optimizer import PackOptimizer


def member_state(engine: PackEngine, row: int, config: TrainConfig, step: int) -> dict[str, Any]:
    """Return the weights, the optimiser and the random state of a member after `step` steps."""
    buffers = {name: tensor[row].cpu().clone() for name, tensor in engine.stack.untrained.items()}
    return {
        "ranks": [{"random": torch.get_rng_state(), "buffers": buffers}],
        "model": {name: tensor.detach().cpu().clone() for name, tensor in engine.stack.state_dict(row).items()},
        "optimizers": {"loss": _optimizer_state(engine, row, config, step)},
        "scaler": None,
        "average": None,
        "pending": [],
    }


def load_member_state(engine: PackEngine, row: int, state: dict[str, Any]) -> None:
    """Put the state of a checkpoint into a row of the pack."""
    engine.stack.load_state_dict(row, state["model"])
    saved = state["optimizers"]["loss"]["state"]
    for name, table in zip(_state_names(engine.optimizer), engine.optimizer.state, strict=False):
        for place, part in enumerate(engine.stack.split_row(table[row])):
            tensor = saved.get(place, {}).get(name)
            if tensor is not None:
                part.copy_(tensor)


def _optimizer_state(engine: PackEngine, row: int, config: TrainConfig, step: int) -> dict[str, Any]:
    """Return the state as the optimiser of torch would."""
    packed, stack = engine.optimizer, engine.stack
    weights = [nn.Parameter(part.detach().cpu().clone()) for part in stack.split_row(stack.weights[row])]
    optimizer = make_optimizer(weights, config)
    for name, table in zip(_state_names(packed), packed.state, strict=False):
        for weight, part in zip(weights, stack.split_row(table[row].detach().cpu().clone()), strict=True):
            optimizer.state[weight][name] = part
    if packed.name != "sgd":
        for weight in weights:
            optimizer.state[weight]["step"] = torch.tensor(float(step))
    return optimizer.state_dict()


def _state_names(optimizer: PackOptimizer) -> tuple[str, ...]:
    return ("momentum_buffer",) if optimizer.name == "sgd" else ("exp_avg", "exp_avg_sq")
