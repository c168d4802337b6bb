"""Which rank has which role, and which master holds which slice of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from clew.training.config import TrainConfig

COORDINATOR = 0
"""The rank of the coordinator."""


class WeightSlice(NamedTuple):
    """The part of the flat weights that one master holds: from `start` up to, not including, `stop`."""

    master: int
    start: int
    stop: int


def split_weights(length: int, masters: Sequence[int]) -> list[WeightSlice]:
    """Divide a flat tensor of this length equally among masters."""
    edges = [length * place // len(masters) for place in range(len(masters) + 1)]
    return [WeightSlice(master, edges[place], edges[place + 1]) for place, master in enumerate(masters)]


class Roles:
    """The ranks in order: the coordinator, the other masters that hold shards, the masters of groups, the workers."""

    def __init__(self, config: TrainConfig, ranks: int) -> None:
        settings = config.asynchronous
        masters = max(1, settings.masters)
        self.masters = list(range(masters))
        self.group_masters = list(range(masters, masters + settings.groups))
        self.workers = list(range(masters + settings.groups, ranks)) if settings.masters else [0]

    def slices_for(self, worker: int, length: int) -> list[WeightSlice]:
        """Return the masters that a worker exchanges with, and the slice of the weights each holds."""
        if not self.group_masters:
            return split_weights(length, self.masters)
        group = self.workers.index(worker) % len(self.group_masters)
        return [WeightSlice(self.group_masters[group], 0, length)]

    def group_size(self, group_master: int) -> int:
        """Return how many workers a group has."""
        place = self.group_masters.index(group_master)
        return len(self.workers[place :: len(self.group_masters)])


@dataclass
class ClusterLayout:
    """The processes around the coordinator."""

    coordinator_slice: WeightSlice
    """The slice of the weights that the coordinator holds."""
    workers: int = 0
    """How many workers the launcher starts. At the end the coordinator waits until all of them have left."""
    shards: list[WeightSlice] = field(default_factory=list)
    """The slices of the other masters."""
    group_masters: list[int] = field(default_factory=list)
