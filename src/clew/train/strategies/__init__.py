"""How replicas agree. The loop talks to a `Strategy` and never asks which one it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from clew.errors import ConfigError
from clew.recipe import Loss
from clew.tally import Tally
from clew.train.strategies.allreduce import AllReduce
from clew.train.strategies.single import Single


class Strategy(Protocol):
    """Contract: every rank calls the same methods in the same order; a loss may have weight 0 on some."""

    rank: int
    ranks: int
    waited: float
    """Seconds spent on communication so far."""
    signal: int
    """A number this rank wants the others to hear; sent along with the next `backward`."""
    heard: int
    """The sum of all ranks' signals at the last `backward`, the same on each."""

    def start(self, model: nn.Module) -> None:
        """Give every rank the weights and buffers of rank 0."""

    def backward(self, losses: Mapping[str, Loss], parameters: Mapping[str, Sequence[nn.Parameter]]) -> Tensor:
        """Leave in each named set of parameters the gradient of its loss's mean over all ranks.

        Returns (total, weight) of each loss over all ranks, shape (names, 2), in the order of `parameters`.
        """

    def gather(self, item: Any) -> list[Any]:
        """What every rank has, in the order of ranks, on every rank."""

    def add(self, tallies: Mapping[str, Tally]) -> dict[str, Tally]:
        """Tallies added over all ranks, the same on each."""

    def close(self) -> None:
        """Leave the group."""


def make(name: str, *, rank: int, ranks: int, meeting: str) -> Strategy:
    """The strategy called `name` for this rank; `meeting` is a file path all ranks share.

    Raises:
        ConfigError: it does not exist, or cannot serve several workers.
    """
    if ranks == 1:
        return Single()
    if name == "single":
        raise ConfigError(f"train.strategy single cannot use {ranks} workers; choose allreduce")
    return AllReduce(rank=rank, ranks=ranks, meeting=meeting)
