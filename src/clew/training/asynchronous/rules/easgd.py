"""EASGD, elastic averaging SGD: workers and the central weights pull at each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from clew.core.config import Section
from clew.training.asynchronous.rules.base import Rule
from clew.training.asynchronous.rules.worker_side import PushWorkerSide, WorkerSide

if TYPE_CHECKING:
    from torch import Tensor

    from clew.training.asynchronous.flat_model import FlatModel
    from clew.training.asynchronous.messaging.transport import Allocate
    from clew.training.config import TrainConfig


class EasgdSettings(Section):
    """Settings of easgd."""

    elasticity: Annotated[float, Field(gt=0)] = 0.9
    """easgd: strength of the coupling between all workers together and the central weights."""


class Easgd(Rule):
    """A worker sends its weights x. The centre c moves towards x by alpha (x - c), and is sent back. Then x moves
    towards the new c by alpha (x - c).

    alpha is `elasticity` divided by the number of workers, at most 0.5.
    """

    exchange_interval = 4
    allows_overlap = allows_groups = allows_staleness = True
    averages_steps = True

    def worker_side(self, model: FlatModel, allocate: Allocate) -> WorkerSide:
        return _ElasticWorkerSide(model, self.config, allocate)

    def apply_update(
        self, weights: Tensor, update: Tensor, fields: Mapping[str, Any], step: Callable[[Tensor], None]
    ) -> None:
        weights.lerp_(update, float(fields["alpha"]))

    def group_share(self, groups: int) -> float:
        return 1 / max(1, groups)


class _ElasticWorkerSide(PushWorkerSide):
    restarts_from_master = False

    def __init__(self, model: FlatModel, config: TrainConfig, allocate: Allocate) -> None:
        super().__init__(model, config, allocate)
        self._alpha = 0.0

    def state(self) -> dict[str, Tensor]:
        return {"weights": self.model.weights}

    def write_update(self, fields: dict[str, Any]) -> None:
        elasticity, workers = self.config.asynchronous.elasticity, max(1, int(fields["workers"]))
        fields["alpha"] = self._alpha = min(0.5, elasticity / workers)
        self._update.copy_(self.model.weights)

    def take_answer(self, central: Tensor) -> None:
        sent = self._previous if self.config.asynchronous.overlap else self.outgoing
        difference = sent[: self.model.parameter_count] - central[: self.model.parameter_count]
        self.model.weights.sub_(difference.to(self.model.weights.device), alpha=self._alpha)
        self.model.read_buffers(central)
