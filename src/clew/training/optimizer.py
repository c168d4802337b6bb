"""The optimiser of the settings, and how its learning rate follows the batch size and the number of workers."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from clew.errors import ConfigError, nearest
from clew.training.config import OPTIMIZERS, OptimizerConfig, TrainConfig

PRELOADED = ("torch.distributed", "torch.fx.experimental.symbolic_shapes")
"""Modules that torch imports during the first step of a training. Import them once, before processes fork."""
_GUARDED = ("step", "add_param_group", "zero_grad", "state_dict", "load_state_dict")


def make_optimizer(parameters: list[nn.Parameter], config: TrainConfig) -> Optimizer:
    """Make the optimiser of the settings, with the learning rate for this batch size.

    The fused implementation is used if torch has one.

    Args:
        parameters: The parameters to optimise.
        config: The settings; `config.optimizer` selects the optimiser.

    Raises:
        ConfigError: The optimiser does not have a parameter that the settings name, or rejects a value.
    """
    chosen = config.optimizer
    kind: type[Optimizer] = getattr(torch.optim, OPTIMIZERS[chosen.name])
    kind = kind if config.compile else without_compiler(kind)
    accepted = inspect.signature(kind).parameters
    names = accepted.keys() - {"params", "lr", "weight_decay", "fused", "foreach"}
    for name in chosen.parameters.keys() - names:
        raise ConfigError(f"train.optimizer.parameters: {chosen.name} has no '{name}'{nearest(name, names)}")
    factor = batch_size_scaling(chosen, config.size) * worker_scaling(config)
    arguments: dict[str, Any] = {"lr": chosen.lr * factor, **chosen.parameters}
    if "weight_decay" in accepted:
        arguments["weight_decay"] = chosen.weight_decay
    elif chosen.weight_decay:
        raise ConfigError(f"train.optimizer.weight_decay: {chosen.name} has none")
    if "fused" in accepted:
        arguments["fused"] = True
    try:
        return kind(parameters, **arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"train.optimizer: {chosen.name} does not accept these settings ({error})") from error


def without_compiler(kind: type[Optimizer]) -> type[Optimizer]:
    """Return a class of optimisers that does the same and does not import torch's compiler.

    torch wraps methods of optimisers in guards for programs that are compiled. The first call of a guard imports
    `torch._dynamo`, which takes two seconds of CPU time. The class returned has the methods inside the guards.
    """
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(kind, name)) for name in _GUARDED}
    update = methods["step"]

    def step(self: Optimizer, closure: Any = None) -> Any:
        with torch.set_grad_enabled(bool(self.defaults.get("differentiable"))):
            return update(self, closure)

    return type(
        kind.__name__, (kind,), {**methods, "step": step, "__module__": kind.__module__, "__doc__": kind.__doc__}
    )


def batch_size_scaling(config: OptimizerConfig, batch_size: int) -> float:
    """Return the factor of the learning rate for this batch size (`lr_batch` and `lr_rule`)."""
    if config.lr_batch is None or lr_rule(config) == "none":
        return 1.0
    ratio = batch_size / config.lr_batch
    return ratio if lr_rule(config) == "linear" else ratio**0.5


def worker_scaling(config: TrainConfig) -> float:
    """Return the factor of the learning rate for the number of workers.

    It differs from 1 only for strategies that average the steps of the workers. There `batch_size` is that of one
    worker, and the average has the size of one step with less noise, so the rate is scaled as for the joint batch.
    """
    rule = lr_rule(config.optimizer)
    if not config.traits.averages_steps or rule == "none":
        return 1.0
    return float(max(1, config.workers) if rule == "linear" else math.sqrt(max(1, config.workers)))


def lr_rule(config: OptimizerConfig) -> str:
    """Return the rule in use, with `auto` replaced by the rule that it selects."""
    if config.lr_rule != "auto":
        return config.lr_rule
    return "linear" if config.name == "sgd" else "sqrt"
