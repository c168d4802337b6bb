"""The base class of an asynchronous rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from clew.core.config import Document, Section, validate

if TYPE_CHECKING:
    from torch import Tensor

    from clew.training.asynchronous.flat_model import FlatModel
    from clew.training.asynchronous.messaging.transport import Allocate
    from clew.training.asynchronous.rules.worker_side import WorkerSide
    from clew.training.config import OptimizerConfig, TrainConfig


class Rule(ABC):
    """One asynchronous rule: its defaults, its worker side and its master side.

    The class attributes describe the rule. The check of the settings reads them, and so do the coordinator and the
    workers, which never compare names of rules.
    """

    exchange_interval: ClassVar[int] = 1
    """Batches between two exchanges if `asynchronous.sync_every` is not set."""
    allows_overlap: ClassVar[bool] = False
    """Whether workers can train on the next batches while an exchange is in progress."""
    allows_groups: ClassVar[bool] = False
    """Whether workers can be divided into groups, each with its own master."""
    allows_staleness: ClassVar[bool] = False
    """Whether `asynchronous.staleness` can be set."""
    allows_gradients: ClassVar[bool] = False
    """Whether workers can send gradients, to which the master applies `train.optimizer`."""
    averages_steps: ClassVar[bool] = False
    """Whether the master averages the steps of all workers. The learning rate then scales with their number."""
    waits_for_round: ClassVar[bool] = False
    """Whether the master collects the updates of several workers and applies their mean."""
    refuses_stale: ClassVar[bool] = False
    """Whether an update is refused if it was computed from weights older than the current ones."""

    Parameters: ClassVar[type[Section]] = Section
    """The settings of a rule of another package: a section with the keys of `asynchronous.parameters`."""

    def __init__(self, config: TrainConfig) -> None:
        """Make a rule.

        Args:
            config: The settings of the training.

        Raises:
            ConfigError: `asynchronous.parameters` has an unknown key or a wrong value.
        """
        self.config = config
        document = Document(dict(config.asynchronous.parameters), source="train.asynchronous.parameters")
        self.parameters: Any = validate(self.Parameters, document)

    @property
    def sends_gradients(self) -> bool:
        """Whether workers send gradients, so that only the master has an optimiser; else they send weights or steps.

        A gradient is that of one batch, so there must be an exchange after every batch.
        """
        settings = self.config.asynchronous
        return self.allows_gradients and settings.updates != "steps" and self.config.exchange_interval == 1

    def master_optimizer(self) -> OptimizerConfig:
        """Return the settings of the master's optimiser.

        If workers send gradients, this is `train.optimizer`, unless `asynchronous.optimizer` is set. Otherwise the
        workers' optimisers have already applied the learning rate, so the master's rate is not scaled again.
        """
        chosen = self.config.asynchronous.optimizer
        if self.sends_gradients:
            return self.config.optimizer if chosen is None else chosen
        return self.default_master_optimizer() if chosen is None else chosen.model_copy(update={"lr_rule": "none"})

    def default_master_optimizer(self) -> OptimizerConfig:
        """Return the master's optimiser for updates that are steps: subtract each update as it is."""
        return plain_sum()

    @abstractmethod
    def worker_side(self, model: FlatModel, allocate: Allocate) -> WorkerSide:
        """Return what a worker does at an exchange.

        Args:
            model: The worker's model as one flat tensor.
            allocate: Allocates the memory of tensors that are sent to the masters.
        """

    def apply_update(
        self, weights: Tensor, update: Tensor, fields: Mapping[str, Any], step: Callable[[Tensor], None]
    ) -> None:
        """Change the central weights in place by one update. By default the update is a gradient.

        Args:
            weights: The central weights, or the part of them that this master holds.
            update: What the worker sent, without the buffers behind it.
            fields: The other values of the worker's message.
            step: Performs one step of the master's optimiser with a tensor as the gradient.
        """
        step(update)

    def round_size(self, busy_workers: int) -> int:
        """Return how many updates make a round, if the master waits for rounds."""
        return busy_workers

    def group_share(self, groups: int) -> float:
        """Return the factor by which the change of one group counts at the top master."""
        return 1.0


def plain_sum() -> OptimizerConfig:
    """Return the settings of SGD with rate 1, which subtracts each update as it is."""
    from clew.training.config import OptimizerConfig

    return OptimizerConfig(name="sgd", lr=1.0, lr_rule="none")
