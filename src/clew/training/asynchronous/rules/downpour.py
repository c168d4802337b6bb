"""Downpour SGD: every update changes the central weights as soon as it arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.training.asynchronous.rules.base import Rule
from clew.training.asynchronous.rules.worker_side import DifferenceSender, GradientSender, WorkerSide

if TYPE_CHECKING:
    from clew.training.asynchronous.flat_model import FlatModel
    from clew.training.asynchronous.messaging.transport import Allocate


class Downpour(Rule):
    """A worker sends the gradient of its batch; the master performs one step of its optimiser with it.

    With `sync_every` above 1, with an optimiser for the master, or if the recipe's optimisers differ from one another
    (`updates: steps`), workers take their own steps. They send w0 - w, the difference since the last exchange, which
    the master uses as the gradient.
    """

    allows_overlap = allows_groups = allows_staleness = allows_gradients = True

    @property
    def sends_gradients(self) -> bool:
        settings = self.config.asynchronous
        return super().sends_gradients and (settings.optimizer is None or settings.updates == "gradients")

    def worker_side(self, model: FlatModel, allocate: Allocate) -> WorkerSide:
        kind = GradientSender if self.sends_gradients else DifferenceSender
        return kind(model, self.config, allocate)
