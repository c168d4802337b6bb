"""Settings of a training that a strategy does not support."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from clew.training.strategy_table import ASYNCHRONOUS, names_with

if TYPE_CHECKING:
    from clew.training.config import TrainConfig


def synchronous_problem(config: TrainConfig) -> str:
    """Why these settings of a strategy without masters cannot be combined; empty if they can."""
    names = ", ".join(ASYNCHRONOUS)
    if config.workers == 0:
        return "workers must be at least 1"
    if config.replicas is not None and config.workers != 1:
        return f"replicas are trained in packs, one process per pack: workers cannot be {config.workers}"
    if config.replicas is not None and config.freeze:
        return "freeze cannot be used with replicas"
    if config.validation == "thread":
        return f"validation thread can be used only with {names}; use background"
    if config.asynchronous != type(config.asynchronous)():
        return f"asynchronous can be used only with {names}; strategy is {config.strategy}"
    return ""


def asynchronous_problem(config: TrainConfig) -> str:
    """Why these settings of a strategy with masters cannot be combined; empty if they can."""
    settings, strategy, traits = config.asynchronous, config.strategy, config.traits
    traits_to_name = ("overlap", "staleness", "groups", "gradients")
    overlap, staleness, groups, gradients = (names_with(attrgetter(trait)) for trait in traits_to_name)
    problems = {
        "asynchronous.masters 0 can be used only with one worker": settings.masters == 0
        and (config.workers != 1 or settings.groups or settings.listen),
        "workers 0 needs asynchronous.listen, an address at which workers can join": config.workers == 0
        and not settings.listen,
        f"asynchronous.overlap can be used only with {overlap}": settings.overlap and not traits.overlap,
        f"asynchronous.updates gradients can be used only with {gradients}, and with sync_every 1": settings.updates
        == "gradients"
        and (not traits.gradients or config.exchange_interval > 1),
        f"asynchronous.groups can be used only with {groups}, and with one master": settings.groups
        and (not traits.groups or settings.masters != 1),
        f"asynchronous.groups is {settings.groups}, but there are {config.workers} workers": settings.groups
        > config.workers,
        f"asynchronous.staleness can be used only with {staleness}, one master and no groups": settings.staleness
        and (not traits.staleness or settings.masters != 1 or settings.groups),
        "asynchronous.listen needs one master and no groups": settings.listen
        and (settings.masters != 1 or settings.groups),
        "asynchronous.wait_for can be used only with asynchronous.listen": settings.wait_for > 1
        and not settings.listen,
        f"ema cannot be used with {strategy}": config.ema,
        f"freeze cannot be used with {strategy}; use allreduce": config.freeze,
        f"replicas cannot be used with {strategy}": config.replicas,
        "buffers synchronize can be used only with allreduce and sharded": config.buffers == "synchronize",
        f"precision fp16 cannot be used with {strategy}; use bf16": config.precision == "fp16",
    }
    return next((message for message, applies in problems.items() if applies), "")
