"""How workers combine their updates: the `Strategy` classes, and functions that select one from the settings.

The training loop calls the methods of a `Strategy` and never asks which one it is. The names and the settings of all
strategies are in `clew.training.strategy_table`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from clew.core.entry_points import load_entry_point
from clew.errors import ConfigError
from clew.training.config import TrainConfig
from clew.training.strategies.base import LossSum, Strategy
from clew.training.strategies.process_group import ProcessGroupStrategy

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

__all__ = ["LossSum", "ProcessGroupStrategy", "Strategy", "entry_point", "make_strategy"]


def entry_point(config: TrainConfig) -> Callable[..., None]:
    """Return the function that every process of a training with these settings calls."""
    function: Callable[..., None] = importlib.import_module(config.traits.entry_module).run_rank
    return function


def make_strategy(config: TrainConfig, *, rank: int, ranks: int, store: Store | None, device: torch.device) -> Strategy:
    """Make the strategy that the settings select.

    Args:
        config: The settings; `config.strategy` is the name.
        rank: Number of this process, from 0.
        ranks: Number of processes.
        store: The store through which the processes find each other; None for a single process.
        device: The device on which this process computes.

    Returns:
        The strategy. With one process this is `Strategy` itself, whatever the settings say.

    Raises:
        ConfigError: The strategy cannot be used with several workers, or is not a `Strategy`.
    """
    if ranks == 1:
        return Strategy()
    if not config.traits.implementation:
        raise ConfigError(f"train.strategy {config.strategy} cannot use {ranks} workers; choose allreduce")
    assert store is not None
    location = config.traits.implementation
    strategy_class = load_entry_point("strategy", config.strategy, location)
    if not (isinstance(strategy_class, type) and issubclass(strategy_class, Strategy)):
        raise ConfigError(f"strategy '{config.strategy}' ({location}) is not a subclass of clew.strategies.Strategy")
    settings = {setting: getattr(config, setting) for setting in strategy_class.settings}
    make: Callable[..., Strategy] = strategy_class
    return make(rank=rank, ranks=ranks, store=store, device=device, **settings)
