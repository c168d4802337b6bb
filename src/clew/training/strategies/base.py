"""The contract of a strategy: how replicas agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clew.data.dataset.batch import Batch
from clew.metrics import Metric
from clew.recipe import Loss, Recipe

Parameters = Mapping[str, Sequence[nn.Parameter]]
Losses = Mapping[str, "Tensor | Loss"] | Iterable[tuple[str, "Tensor | Loss"]]


class LossSum(NamedTuple):
    """A loss over all ranks: what `Loss` is on one."""

    total: Tensor
    weight: Tensor | float


class Strategy:
    """How replicas agree; this one is alone, and the others say only what they do differently.

    Every rank calls the same methods in the same order; a loss may have weight 0 on some.
    """

    replicas: ClassVar[bool] = True
    """Whether ranks share the data; those of a pipeline all work on the same."""
    alike: ClassVar[bool] = True
    """Whether every rank has the whole gradient, so that all find the same faults in it."""

    def __init__(self, *, rank: int = 0, ranks: int = 1) -> None:
        self.rank, self.ranks = rank, ranks
        self.waited = 0.0
        """Seconds spent on communication so far."""
        self.order = 0
        """What rank 0 wants all to do; sent along with the next `backward`."""
        self.alarm = False
        """Whether this rank must stop; sent likewise."""
        self.counts = True
        """Whether the batch under way counts (see `Batch.counts`)."""
        self.size = 1
        """Samples of the batch under way, over all ranks."""
        self.whole = False
        """Whether the one optimiser there is has all parameters that want a gradient."""
        self._sums: dict[str, LossSum] = {}

    @property
    def share(self) -> tuple[int, int]:
        """This rank's place among those that share the data, and their number."""
        return (self.rank, self.ranks) if self.replicas else (0, 1)

    def place(self, model: nn.Module) -> nn.Module:
        """Make the model this rank's: equal to rank 0's, or a part of it. Before any optimiser is made."""
        return model

    def losses(self, recipe: Recipe, model: nn.Module, batch: Batch) -> Losses:
        """The recipe's training step."""
        return recipe.step(model, batch)

    def backward(self, losses: Mapping[str, Loss], parameters: Parameters, *, last: bool) -> dict[str, LossSum]:
        """Add to each named set of parameters the gradient of its loss.

        After the `last` part of a batch they hold that of the mean over the batch and all ranks, and the sums
        over both are returned; before it, nothing is.
        """
        for name, own in parameters.items():
            total, weight = losses[name]
            before = self._sums.get(name)
            if before is None:
                for parameter in own:
                    parameter.grad = None
            once = last and before is None
            self.descend(total, own, reciprocal_seed(weight if once else 1.0, total), keep=len(parameters) > 1)
            self._sums[name] = LossSum(total.detach(), weight) if before is None else _added(before, total, weight)
            if last:
                _fill(own)
                if before is not None:
                    divide_gradients(own, self._sums[name].weight)
        return self._finished() if last else {}

    def descend(self, total: Tensor, own: Sequence[nn.Parameter], unit: Tensor | None, *, keep: bool) -> None:
        """Backward of a loss into these parameters alone."""
        if self.whole:
            torch.autograd.backward(total, unit)  # nothing else wants a gradient, and naming them takes time
        else:
            torch.autograd.backward(total, unit, inputs=list(own), retain_graph=keep)

    def heard(self) -> tuple[int, bool]:
        """Rank 0's order at the last `backward`, and whether any rank raised the alarm; the same on each."""
        return self.order, self.alarm

    def clip(self, parameters: Sequence[nn.Parameter], norm: float) -> None:
        """Bound the norm of the whole gradient."""
        nn.utils.clip_grad_norm_(parameters, norm)

    def agree(self, model: nn.Module) -> None:
        """Give every rank the same buffers: the average over ranks."""

    def behind(self) -> int:
        """Nanoseconds by which rank 0's clock is ahead of this one's."""
        return 0

    def gather(self, item: Any) -> list[Any]:
        """What every rank has, in the order of ranks, on every rank."""
        return [item]

    def add(self, tallies: Mapping[str, Metric]) -> dict[str, Metric]:
        """Tallies added over all ranks, the same on each."""
        return dict(tallies)

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        """The whole model's state, on rank 0 at least. Every rank must ask."""
        return model.state_dict()

    def fill(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        """Put a whole model's state back."""
        model.load_state_dict(state)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The whole optimiser's state, on rank 0 at least. Every rank must ask."""
        return optimizer.state_dict()

    def fill_optimizer(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Put a whole optimiser's state back."""
        optimizer.load_state_dict(state)

    def close(self) -> None:
        """Leave the group."""

    def _finished(self) -> dict[str, LossSum]:
        """The sums of a batch that is done."""
        found, self._sums = self._sums, {}
        return found


@lru_cache(maxsize=64)
def _unit(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(value, dtype=dtype, device=device)


def backward_seed(value: float, like: Tensor) -> Tensor:
    """A gradient to begin backward with: dividing there costs nothing."""
    return _unit(value, like.dtype, like.device)


def reciprocal_seed(weight: Tensor | float, like: Tensor) -> Tensor:
    """One over a weight, to begin backward with; nothing stays nothing."""
    if isinstance(weight, Tensor):
        return torch.where(weight == 0, 1, weight).reciprocal().to(like.dtype)
    return backward_seed(1.0 / (weight or 1.0), like)


def _added(before: LossSum, total: Tensor, weight: Tensor | float) -> LossSum:
    return LossSum(before.total + total.detach(), before.weight + weight)


def _fill(parameters: Sequence[nn.Parameter]) -> None:
    """A zero where a loss does not depend on a parameter, as a sum over ranks would give."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def divide_gradients(parameters: Sequence[nn.Parameter], weight: Tensor | float) -> None:
    """Sums of gradients to means; nothing stays nothing."""
    by = torch.where(weight == 0, 1.0, weight) if isinstance(weight, Tensor) else (weight or 1.0)
    torch._foreach_div_([local_part(parameter.grad) for parameter in parameters], by)


def local_part(tensor: Tensor | None) -> Tensor:
    """A tensor, or this rank's part of a distributed one."""
    assert tensor is not None
    found: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found
