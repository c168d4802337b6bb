"""What the hooks of a recipe know about a training before its first step."""

from __future__ import annotations

from clew.recipe import TrainingPlan
from clew.training.config import TrainConfig
from clew.training.strategies import Strategy


def training_plan(config: TrainConfig, steps_per_epoch: int, strategy: Strategy) -> TrainingPlan:
    """Return the plan of a training.

    Args:
        config: The settings.
        steps_per_epoch: Steps per epoch.
        strategy: The strategy of this rank.
    """
    return TrainingPlan(
        epochs=config.epochs,
        steps_per_epoch=steps_per_epoch,
        steps=min(config.steps or steps_per_epoch * config.epochs, steps_per_epoch * config.epochs),
        rank=strategy.rank,
        ranks=strategy.ranks,
        accumulate=config.accumulate,
        asynchronous=config.traits.asynchronous,
        background_validation=config.validation == "background",
        schedule=config.schedule.name,
        clip=config.clip,
        precision=config.precision,
        seed=config.seed,
    )
