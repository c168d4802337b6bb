"""What a recipe may do during a training, besides computing losses: hooks, which the training loop calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clew.recipe.contract import Loss

if TYPE_CHECKING:
    from torch import Tensor

    from clew.data.dataset.batch import Batch
    from clew.metrics import Metric


@dataclass(frozen=True)
class TrainingPlan:
    """What is known about a training before its first step."""

    epochs: int = 1
    steps_per_epoch: int = 1_000_000
    steps: int = 1_000_000
    """Steps of all epochs."""
    rank: int = 0
    ranks: int = 1
    accumulate: int = 1
    """Parts of a batch."""
    asynchronous: bool = False
    """Whether workers have no common epochs and steps."""
    background_validation: bool = False
    """Whether another process validates, and reports later."""
    schedule: str = "constant"
    """The setting `train.schedule.name`."""
    clip: float | None = None
    precision: str = "float32"
    seed: int = 0
    """The setting `train.seed`."""


class TakenSteps(dict[str, Loss]):
    """What `Recipe.step` returns if it has taken the steps of its optimisers itself: the losses, by name."""


class TrainingHooks:
    """Called during a training. This class does nothing.

    All ranks of a synchronous training make the same calls. An asynchronous worker has no epochs: it calls `attach` and
    `end_step` only.
    """

    def attach(self, backward: Callable[[Tensor, Batch], Loss]) -> None:
        """Called once, when the optimisers exist.

        Args:
            backward: Adds the gradient of a mean loss to the parameters, summed over all ranks.
        """

    def start(self) -> None:
        """Called before the first step of this process."""

    def start_epoch(self, epoch: int) -> None:
        """Called before the first step of an epoch, counted from 0."""

    def end_step(self) -> Mapping[str, Tensor | float]:
        """Called after every step. Return values to record besides the losses."""
        return {}

    def start_validation(self) -> None:
        """Called before a validation, after the last step of an epoch."""

    def end_validation(self) -> Mapping[str, Metric]:
        """Called after the batches of a validation. Return metrics of this rank to add to those of the batches."""
        return {}

    def end_epoch(self, metrics: Mapping[str, float]) -> None:
        """Called at the end of a complete epoch, with the metrics of its validation as far as they are known."""

    def state(self) -> dict[str, Any]:
        """Return what a resumed training needs: numbers, text, tensors, and lists and dictionaries of them."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
