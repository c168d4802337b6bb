"""DiLoCo: many local steps, then one outer step on the mean of what all workers moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.training.asynchronous.rules.base import Rule
from clew.training.asynchronous.rules.worker_side import DifferenceSender, WorkerSide

if TYPE_CHECKING:
    from clew.training.asynchronous.flat_model import FlatModel
    from clew.training.asynchronous.messaging.transport import Allocate
    from clew.training.config import OptimizerConfig


class DiLoCo(Rule):
    """A worker sends w0 - w after `sync_every` local steps; the master waits for all workers and averages.

    The mean is the gradient of an outer step: SGD with Nesterov momentum 0.9 and rate 0.7.
    """

    exchange_interval = 20
    averages_steps = True
    waits_for_round = True

    def default_master_optimizer(self) -> OptimizerConfig:
        from clew.training.config import OptimizerConfig

        return OptimizerConfig(name="sgd", lr=0.7, lr_rule="none", parameters={"momentum": 0.9, "nesterov": True})

    def worker_side(self, model: FlatModel, allocate: Allocate) -> WorkerSide:
        return DifferenceSender(model, self.config, allocate)
