"""Synchronous SGD with backup workers: do not wait for the slowest ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from clew.core.config import Section
from clew.training.asynchronous.rules.base import Rule
from clew.training.asynchronous.rules.worker_side import DifferenceSender, GradientSender, WorkerSide

if TYPE_CHECKING:
    from clew.training.asynchronous.flat_model import FlatModel
    from clew.training.asynchronous.messaging.transport import Allocate


class BackupSettings(Section):
    """Settings of backup."""

    quorum: Annotated[float, Field(gt=0, le=1)] = 0.95
    """backup: fraction of the workers whose updates are awaited."""


class Backup(Rule):
    """A worker sends the gradient of its batch; the master averages `quorum` of them and takes one optimiser step.

    With `sync_every` above 1, or if the recipe's optimisers differ from one another (`updates: steps`), workers take
    their own steps and send w0 - w, and the master subtracts the mean. An update of older weights is refused, and its
    batches are trained on again.
    """

    allows_gradients = True
    averages_steps = True
    waits_for_round = True
    refuses_stale = True

    def worker_side(self, model: FlatModel, allocate: Allocate) -> WorkerSide:
        kind = GradientSender if self.sends_gradients else DifferenceSender
        return kind(model, self.config, allocate)

    def round_size(self, busy_workers: int) -> int:
        return math.ceil(busy_workers * self.config.asynchronous.quorum)
