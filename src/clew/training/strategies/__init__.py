"""How replicas agree. The loop talks to a `Strategy` and never asks which one it is."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from clew.errors import ConfigError
from clew.training.config import CENTRAL, TrainConfig
from clew.training.strategies.base import Strategy, Sum

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

STRATEGIES = {
    "allreduce": ("clew.training.strategies.allreduce", "AllReduce", ("compress", "buffers")),
    "sharded": ("clew.training.strategies.sharded", "Sharded", ("buffers",)),
    "pipeline": ("clew.training.strategies.pipeline", "Pipeline", ("microbatches",)),
}
"""Where each is, and the settings it takes. `single` is `Strategy` itself."""

RUNNERS = {"clew.training.asynchronous.roles": CENTRAL, "clew.training.loop": ("single", *STRATEGIES)}
"""Where a rank of each begins."""

__all__ = ["STRATEGIES", "Strategy", "Sum", "make", "runner"]


def runner(config: TrainConfig) -> Callable[..., None]:
    """What every process of a training with these settings does."""
    module = next(module for module, names in RUNNERS.items() if config.strategy in names)
    found: Callable[..., None] = importlib.import_module(module).run_rank
    return found


def make(config: TrainConfig, *, rank: int, ranks: int, store: Store | None, device: torch.device) -> Strategy:
    """The strategy of the settings for this rank; `store` is where the ranks meet.

    Raises:
        ConfigError: it cannot serve several workers.
    """
    if ranks == 1:
        return Strategy()
    if config.strategy == "single":
        raise ConfigError(f"train.strategy single cannot use {ranks} workers; choose allreduce")
    assert store is not None
    module, name, settings = STRATEGIES[config.strategy]
    kind = getattr(importlib.import_module(module), name)
    chosen = {each: getattr(config, each) for each in settings}
    made: Strategy = kind(rank=rank, ranks=ranks, store=store, device=device, **chosen)
    return made
