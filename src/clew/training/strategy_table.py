"""The training strategies by name: where each one is implemented, and which settings it supports.

`clew.training.config` checks settings against this table, and `clew.training.strategies` starts a training from it, so
a strategy that can be chosen can also be run. A new strategy is one entry here and one file. The asynchronous
strategies come from their own table, `clew.training.asynchronous.rules.RULES`. Other packages add theirs as entry
points of the groups `clew.strategies` and `clew.rules`. This module does not import torch: the command line checks
settings without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from clew.core.entry_points import installed_entry_points
from clew.errors import ConfigError, nearest
from clew.training.asynchronous import rules
from clew.training.asynchronous.rules import RULES, rule_class
from clew.training.asynchronous.rules.base import Rule


@dataclass(frozen=True)
class StrategyTraits:
    """What the rest of clew needs to know about a strategy."""

    implementation: str = ""
    """`module:Class` of the `Strategy` subclass. Empty for one that has no subclass: a single worker, and the
    asynchronous strategies."""
    entry_module: str = "clew.training.loop"
    """The module whose `run_rank` every process of the training calls."""
    asynchronous: bool = False
    """Whether workers exchange with masters that hold the central weights, instead of with each other."""
    model_passes: int = 0
    """How often a worker sends its share of all values of the model per step or exchange; 0: not known."""
    averages_steps: bool = False
    """Whether the steps of all workers are averaged, so that the learning rate follows their number."""
    exchange_interval: int = 1
    """Batches between two exchanges of a worker, unless `asynchronous.sync_every` is set."""
    overlap: bool = False
    """Whether a worker may continue while an exchange is under way (`asynchronous.overlap`)."""
    staleness: bool = False
    """Whether the age of an update can be limited (`asynchronous.staleness`)."""
    gradients: bool = False
    """Whether workers can send gradients (`asynchronous.updates`)."""
    groups: bool = False
    """Whether sub-masters are supported (`asynchronous.groups`)."""


def _asynchronous(rule: type[Rule]) -> StrategyTraits:
    """The traits of an asynchronous strategy, which its rule declares."""
    return StrategyTraits(
        entry_module="clew.training.asynchronous.rank_entry",
        asynchronous=True,
        model_passes=1,
        averages_steps=rule.averages_steps,
        exchange_interval=rule.exchange_interval,
        overlap=rule.allows_overlap,
        staleness=rule.allows_staleness,
        gradients=rule.allows_gradients,
        groups=rule.allows_groups,
    )


STRATEGIES: dict[str, StrategyTraits] = {
    "single": StrategyTraits(),
    "allreduce": StrategyTraits("clew.training.strategies.allreduce:AllReduce", model_passes=2),
    "sharded": StrategyTraits("clew.training.strategies.sharded:Sharded", model_passes=3),
    "pipeline": StrategyTraits("clew.training.strategies.pipeline:Pipeline"),
    **{name: _asynchronous(rule_class(name)) for name in RULES},
}
"""The strategies of clew, by the name used in settings."""
ENTRY_POINTS = "clew.strategies"
"""The group of entry points with which other packages add synchronous strategies."""


@cache
def installed_strategies() -> dict[str, str]:
    """Return the `module:Class` of the strategies and rules of other packages, by name. They cannot replace clew's."""
    installed = {**installed_entry_points(ENTRY_POINTS), **installed_entry_points(rules.ENTRY_POINTS)}
    return {name: location for name, location in installed.items() if name not in STRATEGIES}


@cache
def strategy_traits(name: str) -> StrategyTraits:
    """Return what a strategy supports. The strategies of other packages are looked up only for an unknown name.

    Raises:
        ConfigError: There is no such strategy.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]
    if name not in installed_strategies():
        raise ConfigError(f"no strategy '{name}'{nearest(name, [*STRATEGIES, *installed_strategies()])}")
    if name in installed_entry_points(rules.ENTRY_POINTS):
        return _asynchronous(rule_class(name))
    return StrategyTraits(installed_strategies()[name])


def names_with(condition: Callable[[StrategyTraits], bool]) -> str:
    """The names of the strategies that meet a condition, for messages: `downpour, easgd and gem`."""
    names = [name for name, traits in STRATEGIES.items() if condition(traits)]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


ASYNCHRONOUS = tuple(name for name, traits in STRATEGIES.items() if traits.asynchronous)
"""The names of the asynchronous strategies."""
