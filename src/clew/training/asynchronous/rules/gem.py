"""GEM, gradient energy matching: all workers together move as far as one worker with momentum would."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from clew.core.config import Section
from clew.training.asynchronous.rules.base import Rule
from clew.training.asynchronous.rules.worker_side import WorkerSide

if TYPE_CHECKING:
    from torch import Tensor

    from clew.training.asynchronous.flat_model import FlatModel
    from clew.training.asynchronous.messaging.transport import Allocate
    from clew.training.asynchronous.rules.worker_side import Request
    from clew.training.config import TrainConfig

_LARGEST_SCALE = 5.0
"""A step is multiplied by at most this."""
_EPSILON = 1e-12
"""Added to the step before dividing by it."""


class GemSettings(Section):
    """Settings of gem."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """gem: the momentum of the steps whose energy is matched."""
    kappa: Annotated[float, Field(gt=0)] = 1.0
    """gem: energy that the steps of all workers together may have, relative to one worker with momentum."""


class Gem(Rule):
    """A worker scales each element of its step, so that what others have moved meanwhile counts; the master adds."""

    allows_groups = True

    def worker_side(self, model: FlatModel, allocate: Allocate) -> WorkerSide:
        return _EnergyWorkerSide(model, self.config, allocate)

    def apply_update(
        self, weights: Tensor, update: Tensor, fields: Mapping[str, Any], step: Callable[[Tensor], None]
    ) -> None:
        weights.add_(update)


class _EnergyWorkerSide(WorkerSide):
    restarts_from_master = False

    def __init__(self, model: FlatModel, config: TrainConfig, allocate: Allocate) -> None:
        super().__init__(model, config, allocate)
        self._base = model.weights.new_empty(model.weights.shape)
        """The weights after the last exchange: the step is the difference to them."""
        self._last_central = model.weights.new_empty(model.weights.shape)
        self._momentum = model.weights.new_zeros(model.weights.shape)

    def start(self, central: Tensor) -> None:
        super().start(central)
        self._base.copy_(self.model.weights)
        self._last_central.copy_(self.model.weights)

    def state(self) -> dict[str, Tensor]:
        return {
            "momentum": self._momentum,
            "last_central": self._last_central,
            "base": self._base,
            "weights": self.model.weights,
        }

    def exchange(self, request: Request, fields: dict[str, Any]) -> None:
        import torch

        settings = self.config.asynchronous
        delta = self.model.weights - self._base
        self._momentum.mul_(settings.momentum).add_(delta)
        central = request("pull", None).to(delta.device)
        moved = (central[: self.model.parameter_count] - self._last_central).abs_()
        energy = self._momentum.abs().mul_(settings.kappa).sub_(moved)
        scale = energy.div_(delta.add(_EPSILON).abs_()).clamp_(0.0, _LARGEST_SCALE)
        step = scale.mul_(delta)
        self._update.copy_(step)
        self.model.write_buffers(self.outgoing)
        self._last_central.copy_(central[: self.model.parameter_count])
        torch.add(self._last_central, step, out=self.model.weights)
        self.model.read_buffers(central)
        self._base.copy_(self.model.weights)
        request("commit", self.outgoing)
