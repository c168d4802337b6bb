"""The training strategies by name: where each one is implemented, and which settings it supports.

`clew.training.config` checks settings against this table, and `clew.training.strategies` starts a training from it, so
a strategy that can be chosen can also be run. A new strategy is one entry here and one file. This module does not
import torch: the command line checks settings without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class StrategyTraits:
    """What the rest of clew needs to know about a strategy."""

    implementation: str = ""
    """`module:Class` of the `Strategy` subclass. Empty for one that has no subclass: a single worker, and the
    asynchronous strategies."""
    settings: tuple[str, ...] = ()
    """Settings of `train` that are passed to the class."""
    entry_module: str = "clew.training.loop"
    """The module whose `run_rank` every process of the training calls."""
    asynchronous: bool = False
    """Whether workers exchange with masters that hold the central weights, instead of with each other."""
    averages_steps: bool = False
    """Whether the steps of all workers are averaged, so that the learning rate follows their number."""
    exchange_interval: int = 1
    """Batches between two exchanges of a worker, unless `central.sync_every` is set."""
    overlap: bool = False
    """Whether a worker may continue while an exchange is under way (`central.overlap`)."""
    staleness: bool = False
    """Whether the age of an update can be limited (`central.staleness`)."""
    groups: bool = False
    """Whether sub-masters are supported (`central.groups`)."""


def _asynchronous(
    *,
    averages_steps: bool = False,
    exchange_interval: int = 1,
    overlap: bool = False,
    staleness: bool = False,
    groups: bool = False,
) -> StrategyTraits:
    return StrategyTraits(
        entry_module="clew.training.asynchronous.roles",
        asynchronous=True,
        averages_steps=averages_steps,
        exchange_interval=exchange_interval,
        overlap=overlap,
        staleness=staleness,
        groups=groups,
    )


STRATEGIES: dict[str, StrategyTraits] = {
    "single": StrategyTraits(),
    "allreduce": StrategyTraits("clew.training.strategies.allreduce:AllReduce", settings=("compress", "buffers")),
    "sharded": StrategyTraits("clew.training.strategies.sharded:Sharded", settings=("buffers",)),
    "pipeline": StrategyTraits("clew.training.strategies.pipeline:Pipeline", settings=("microbatches",)),
    "downpour": _asynchronous(overlap=True, staleness=True, groups=True),
    "easgd": _asynchronous(averages_steps=True, exchange_interval=4, overlap=True, staleness=True, groups=True),
    "gem": _asynchronous(groups=True),
    "diloco": _asynchronous(averages_steps=True, exchange_interval=20),
    "backup": _asynchronous(averages_steps=True),
}
"""All strategies, by the name used in settings."""


def names_with(condition: Callable[[StrategyTraits], bool]) -> str:
    """The names of the strategies that meet a condition, for messages: `downpour, easgd and gem`."""
    names = [name for name, traits in STRATEGIES.items() if condition(traits)]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


ASYNCHRONOUS = tuple(name for name, traits in STRATEGIES.items() if traits.asynchronous)
"""The names of the asynchronous strategies."""
