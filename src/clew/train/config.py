"""Settings of train. No torch here: the command line shows and checks them without it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from clew.config import Section

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class OptimizerConfig(Section):
    """An optimiser by name. Settings that it does not have must stay at their default."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    lr: Positive = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """For sgd."""


class BestConfig(Section):
    """Which validated weights are kept as `best`."""

    metric: str = "loss"
    direction: Literal["minimize", "maximize"] = "minimize"


class TrainConfig(Section):
    """How a run trains."""

    dataset: str = "dataset"
    epochs: Count = 10
    batch_size: Count = 64
    """Samples a step over all workers together, so that the result does not depend on how many there are."""
    workers: Count = 1
    strategy: Literal["single", "allreduce"] = "allreduce"
    """How workers agree; one worker alone needs no agreement."""
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: Literal["constant", "cosine"] = "constant"
    """Of the learning rate; cosine falls to 1% of it over the run."""
    clip: Positive | None = None
    """Largest norm of the gradient."""
    seed: int = 0
    best: BestConfig = BestConfig()
    threads: Count | None = None
    """Per worker; default: the cores there are, shared among the workers of this machine."""
    checkpoint_minutes: Positive = 5.0
    """Between two states to go on from; there is always one at the end of an epoch, and when told to stop."""
    keep_checkpoints: Count = 2
    time_limit_minutes: Positive | None = None
    """Stop, ready to be resumed, after so long. The end of a Slurm job counts by itself."""
    log_every: Count = 10
    """Steps between two records."""
