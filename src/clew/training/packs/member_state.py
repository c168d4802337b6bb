"""The state of one model of a pack, in the form of any other run's: it can go on in another pack, or alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from clew.training.config import TrainConfig
from clew.training.optimizer import make_optimizer
from clew.training.packs.engine import PackEngine
from clew.training.packs.optimizer import Rows


def take(engine: PackEngine, row: int, config: TrainConfig, step: int) -> dict[str, Any]:
    """Weights, optimiser and random numbers of a model after so many steps."""
    buffers = {name: each[row].cpu().clone() for name, each in engine.stack.fixed.items()}
    return {
        "ranks": [{"random": torch.get_rng_state(), "buffers": buffers}],
        "model": {name: each.detach().cpu().clone() for name, each in engine.stack.state_dict(row).items()},
        "optimizers": {"loss": _optimizer(engine, row, config, step)},
        "scaler": None,
        "average": None,
        "pending": [],
    }


def fill(engine: PackEngine, row: int, state: dict[str, Any]) -> None:
    """Put a state into a row."""
    engine.stack.fill(row, state["model"])
    kept = state["optimizers"]["loss"]["state"]
    for name, table in zip(_names(engine.optimizer), engine.optimizer.state, strict=False):
        for place, own in enumerate(engine.stack.split(table[row])):
            found = kept.get(place, {}).get(name)
            if found is not None:
                own.copy_(found)


def _optimizer(engine: PackEngine, row: int, config: TrainConfig, step: int) -> dict[str, Any]:
    """As torch's own optimiser would give it."""
    rows, stack = engine.optimizer, engine.stack
    weights = [nn.Parameter(each.detach().cpu().clone()) for each in stack.split(stack.weights[row])]
    made = make_optimizer(weights, config)
    for name, table in zip(_names(rows), rows.state, strict=False):
        for weight, own in zip(weights, stack.split(table[row].detach().cpu().clone()), strict=True):
            made.state[weight][name] = own
    if rows.name != "sgd":
        for weight in weights:
            made.state[weight]["step"] = torch.tensor(float(step))
    return made.state_dict()


def _names(rows: Rows) -> tuple[str, ...]:
    return ("momentum_buffer",) if rows.name == "sgd" else ("exp_avg", "exp_avg_sq")
