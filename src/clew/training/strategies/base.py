"""The contract of a strategy: how the workers of a training combine their gradients."""

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
"""The parameters of each optimiser, by its name."""
Losses = Mapping[str, "Tensor | Loss"] | Iterable[tuple[str, "Tensor | Loss"]]
"""What `Recipe.step` returns."""


class LossSum(NamedTuple):
    """A loss summed over the parts of a batch and over all ranks."""

    total: Tensor
    weight: Tensor | float


class Strategy:
    """How ranks combine their gradients. This class is for a single process; subclasses override what differs.

    Every rank calls the same methods in the same order. The weight of a loss may be 0 on some ranks.
    """

    settings: ClassVar[tuple[str, ...]] = ()
    """Settings of `train` that the constructor takes as keyword arguments, by name."""
    splits_data: ClassVar[bool] = True
    """Whether each rank gets its own share of a batch. The ranks of a pipeline all work on the same batch."""
    same_gradient: ClassVar[bool] = True
    """Whether every rank holds the complete gradient, so that all ranks detect the same non-finite values."""
    differentiates_loss: ClassVar[bool] = True
    """Whether `backward` computes gradients from the loss. The losses of a pipeline come with their gradients."""

    def __init__(self, *, rank: int = 0, ranks: int = 1) -> None:
        self.rank, self.ranks = rank, ranks
        self.communication_seconds = 0.0
        """Seconds spent on communication so far."""
        self.command = 0
        """A number that rank 0 sends to all ranks with the next `backward`."""
        self.stop_requested = False
        """Whether this rank must stop. Sent with the next `backward`."""
        self.batch_counts = True
        """Whether the current batch counts (see `Batch.counts`)."""
        self.batch_samples = 1
        """Number of samples of the current batch, over all ranks."""
        self.alternates = False
        """Whether the recipe's `step` alternates between optimisers, and calls the networks in a model one by one."""
        self.single_optimizer = False
        """Whether there is one optimiser, and it has all parameters that require a gradient."""
        self._sums: dict[str, LossSum] = {}

    @property
    def share(self) -> tuple[int, int]:
        """Position of this rank among the ranks that share the data, and their number."""
        return (self.rank, self.ranks) if self.splits_data else (0, 1)

    def distribute(self, model: nn.Module) -> nn.Module:
        """Return the model of this rank: a copy of the one on rank 0, or a part of it.

        It is called before any optimiser is made.
        """
        return model

    def losses(self, recipe: Recipe, model: nn.Module, batch: Batch) -> Losses:
        """Compute the losses of a training step."""
        return recipe.step(model, batch)

    def backward(self, losses: Mapping[str, Loss], parameters: Parameters, *, last: bool) -> dict[str, LossSum]:
        """Add the gradient of each loss to its parameters.

        Args:
            losses: The losses of one part of a batch, by name.
            parameters: The parameters of each loss.
            last: Whether this is the last part of the batch. Then the parameters must afterwards hold the gradient of
                the mean over the batch and all ranks.

        Returns:
            With `last`, the sums over all parts and ranks; otherwise nothing.
        """
        for name, own_parameters in parameters.items():
            total, weight = losses[name]
            before = self._sums.get(name)
            if before is None:
                for parameter in own_parameters:
                    parameter.grad = None
            only_part = last and before is None
            seed = reciprocal_seed(weight if only_part else 1.0, total)
            self.run_backward(total, own_parameters, seed, keep=len(parameters) > 1)
            self._sums[name] = LossSum(total.detach(), weight) if before is None else _add(before, total, weight)
            if last:
                _fill_missing_gradients(own_parameters)
                if before is not None:
                    divide_gradients(own_parameters, self._sums[name].weight)
        return self._take_sums() if last else {}

    def can_record(self, choice: bool | str) -> bool:
        """Whether steps may be recorded with this value of `train.record`. Only what overrides it supports ranks."""
        return type(self) is Strategy and bool(choice)

    def start_recorded_step(self) -> None:
        """Prepare for a step that is computed by `record_backward`, or replayed. Called outside a recording."""

    def record_backward(self, losses: Mapping[str, Loss], parameters: Parameters) -> dict[str, LossSum]:
        """Add gradients as `backward` does for a whole batch, without communication, so that it can be recorded.

        Returns:
            The sums of this rank.
        """
        return self.backward(losses, parameters, last=True)

    def combine_recorded(self, sums: Mapping[str, LossSum], parameters: Parameters) -> dict[str, LossSum]:
        """Combine gradients and sums of `record_backward` over all ranks, after it was computed or replayed."""
        return dict(sums)

    def run_backward(
        self, total: Tensor, parameters: Sequence[nn.Parameter], seed: Tensor | None, *, keep: bool
    ) -> None:
        """Compute the gradient of a loss for these parameters only.

        Args:
            total: The loss.
            parameters: The parameters.
            seed: The factor with which backward starts.
            keep: Whether the graph is needed again.
        """
        if self.single_optimizer:
            torch.autograd.backward(total, seed)  # no other parameter needs a gradient, and naming them takes time
        else:
            torch.autograd.backward(total, seed, inputs=list(parameters), retain_graph=keep)

    def received_signals(self) -> tuple[int, bool]:
        """Return the command of rank 0 at the last `backward`, and whether any rank must stop. Equal on all ranks."""
        return self.command, self.stop_requested

    def clip(self, parameters: Sequence[nn.Parameter], norm: float) -> None:
        """Limit the norm of the complete gradient."""
        nn.utils.clip_grad_norm_(parameters, norm)

    def average_buffers(self, model: nn.Module) -> None:
        """Set the buffers of the model to their average over all ranks."""

    def clock_offset(self) -> int:
        """Return the nanoseconds by which the clock of rank 0 is ahead of the clock of this rank."""
        return 0

    def gather(self, item: Any) -> list[Any]:
        """Return the items of all ranks, in the order of ranks, on every rank."""
        return [item]

    def sum_metrics(self, metrics: Mapping[str, Metric]) -> dict[str, Metric]:
        """Return the metrics added over all ranks. Equal on all ranks."""
        return dict(metrics)

    def full_weights(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the state of the complete model, at least on rank 0. Every rank must call it."""
        return model.state_dict()

    def load_weights(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        """Load the state of the complete model."""
        model.load_state_dict(state)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the state of the complete optimiser, at least on rank 0. Every rank must call it."""
        return optimizer.state_dict()

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load the state of the complete optimiser."""
        optimizer.load_state_dict(state)

    def close(self) -> None:
        """Leave the process group."""

    def _take_sums(self) -> dict[str, LossSum]:
        """Return the sums of the finished batch, and forget them."""
        sums, self._sums = self._sums, {}
        return sums


@lru_cache(maxsize=64)
def _constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(value, dtype=dtype, device=device)


def backward_seed(value: float, like: Tensor) -> Tensor:
    """Return a gradient to start backward with. A division there costs no pass over the gradients."""
    return _constant(value, like.dtype, like.device)


def reciprocal_seed(weight: Tensor | float, like: Tensor) -> Tensor:
    """Return one over a weight, to start backward with. A weight of 0 gives 1."""
    if isinstance(weight, Tensor):
        return torch.where(weight == 0, 1, weight).reciprocal().to(like.dtype)
    return backward_seed(1.0 / (weight or 1.0), like)


def _add(before: LossSum, total: Tensor, weight: Tensor | float) -> LossSum:
    return LossSum(before.total + total.detach(), before.weight + weight)


def _fill_missing_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Set the gradient to zero where the loss does not depend on a parameter, as a sum over ranks would."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def divide_gradients(parameters: Sequence[nn.Parameter], weight: Tensor | float) -> None:
    """Divide summed gradients by a weight. A weight of 0 leaves them unchanged."""
    divisor = torch.where(weight == 0, 1.0, weight) if isinstance(weight, Tensor) else (weight or 1.0)
    torch._foreach_div_([local_part(parameter.grad) for parameter in parameters], divisor)


def local_part(tensor: Tensor | None) -> Tensor:
    """Return a tensor, or the part of a distributed tensor that this rank holds."""
    assert tensor is not None
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part
