"""Synchronous SGD with backup workers: do not wait for the slowest ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from clew.core.config import Section
from clew.training.asynchronous.rules.base import Rule
from clew.training.asynchronous.rules.worker_side import GradientSender, WorkerSide

if TYPE_CHECKING:
    from clew.training.asynchronous.flat_model import FlatModel
    from clew.training.asynchronous.messaging.transport import Allocate


class BackupSettings(Section):
    """Settings of backup."""

    quorum: Annotated[float, Field(gt=0, le=1)] = 0.95
    """backup: fraction of the workers whose updates are awaited."""


class Backup(Rule):
    """A worker sends the gradient of its batch; the master averages `quorum` of them and takes one optimiser step.

    A gradient of older weights is refused, and its batches are trained on again.
    """

    averages_steps = True
    waits_for_round = True
    refuses_stale = True

    @property
    def sends_gradients(self) -> bool:
        return True

    def worker_side(self, model: FlatModel, allocate: Allocate) -> WorkerSide:
        return GradientSender(model, self.config, allocate)

    def round_size(self, busy_workers: int) -> int:
        return math.ceil(busy_workers * self.config.asynchronous.quorum)
