"""What every process of a training is started with."""

from __future__ import annotations

from dataclasses import dataclass

from clew.jobs.lease import Lease
from clew.recipe import Recipe
from clew.training.config import TrainConfig


@dataclass(frozen=True)
class TrainingStart:
    """The recipe and the settings of a training. It is sent to worker processes."""

    recipe: Recipe
    config: TrainConfig
    resume: bool = False
    """Whether to continue from the newest checkpoint."""
    lease: Lease | None = None
    """The lease of the run, if any. Rank 0 renews it, and all ranks stop at the same step if it asks for that."""
