"""The forward pass of many models at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from clew.data.dataset.batch import Batch, RaggedTensor
from clew.recipe import Recipe
from clew.training.packs import grouping, stacked_layers
from clew.training.packs.stacked_weights import Stack


class _Whole(nn.Module):
    """A network with the recipe's way to call it, so that weights can be put in its place from outside."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, recipe: Recipe, batch: Batch) -> Any:
        return recipe.forward(self.model, batch)


class PackForward:
    """Stacked models, ready to be asked.

    Networks are vectorised by vmap. Where every layer has a form that works on all models at once (`lift`) that is used
    instead, if it gives what vmap gives on a few samples.
    """

    def __init__(
        self, recipes: Sequence[Recipe], models: Sequence[nn.Module], seeds: Sequence[int], device: torch.device
    ) -> None:
        self.recipe, self.device = recipes[0], device
        self.stack = Stack(models, seeds, device)
        kind = self.stack.weights.dtype
        self._numbers = {k: torch.tensor(v, dtype=kind, device=device) for k, v in grouping.numbers(recipes).items()}
        self._whole = _Whole(self.stack.base)
        self._lifted: nn.Module | None = None

    def keep(self, places: Tensor) -> None:
        """Only these models are left."""
        self.stack.keep(places)
        self._numbers = {key: each[places.to(self.device)] for key, each in self._numbers.items()}
        if self._lifted is not None:
            stacked_layers.fill(self._lifted, self.stack)

    def train(self, mode: bool = True) -> None:
        """Learn, or judge."""
        self.stack.base.train(mode)
        if self._lifted is not None:
            self._lifted.train(mode)

    def find_short_cut(self, few: Batch, *, judging: bool = False) -> Any:
        """Find out, on a few samples, whether the network can be lifted; what vmap gives for them while learning (or,
        for networks that only judge, then).

        Raises whatever vmap or the model raise.
        """
        before = self.stack.snapshot()
        self.train(not judging)
        with torch.no_grad():
            outputs = self._vmapped(few)
        self._restore(before)
        self._lifted = None if any(isinstance(c, RaggedTensor) for c in few.columns.values()) else self._plain()
        if self._lifted is not None:
            self._lifted.train(not judging)
            if not self._same(lambda: self.outputs(few), outputs, before) or not self._same_judging(few, before):
                self._lifted = None
        self.train(not judging)
        return outputs

    def _same_judging(self, few: Batch, before: Any) -> bool:
        self.train(False)
        try:
            with torch.no_grad():
                wanted = self._vmapped(few)
            return self._same(lambda: self.outputs(few), wanted, before)
        finally:
            self.train()

    def _plain(self) -> nn.Module | None:
        found = stacked_layers.lift(self.stack.base)
        if found is not None:
            stacked_layers.fill(found, self.stack)
        return found

    def _same(self, work: Callable[[], Any], wanted: Any, before: Any) -> bool:
        """Whether something gives the same, in each of its tensors."""
        try:
            with torch.no_grad():
                found = work()
        except Exception:  # whatever a network does with a shape it does not expect
            return False
        finally:
            self._restore(before)
        mine, theirs = _leaves(found), _leaves(wanted)
        if len(mine) != len(theirs) or any(a.shape != b.shape for a, b in zip(mine, theirs, strict=True)):
            return False
        pairs = zip(mine, theirs, strict=True)
        return all(torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5, equal_nan=True) for a, b in pairs)

    def _restore(self, before: tuple[Tensor, dict[str, Tensor]]) -> None:
        with torch.no_grad():
            self.stack.weights.copy_(before[0])
            for name, tensor in before[1].items():
                self.stack.fixed[name].copy_(tensor)

    def outputs(self, batch: Batch) -> Any:
        """What the networks give, with a first axis of models."""
        if self._lifted is None:
            return self._vmapped(batch)
        models = len(self.stack)
        columns = {name: fixed(column).expand(models, *fixed(column).shape) for name, column in batch.columns.items()}
        seen = Batch(batch.size, dict(columns), batch.weights)
        return self.recipe.forward(self._lifted, seen)

    def _vmapped(self, batch: Batch) -> Any:
        leaves = {f"model.{name}": each for name, each in self.stack.leaves.items()}
        states = {f"model.{name}": each for name, each in self.stack.states.items()}

        def one(leaves: Any, states: Any, numbers: Any) -> Any:
            recipe = grouping.with_numbers(self.recipe, numbers) if numbers else self.recipe
            return functional_call(self._whole, {**leaves, **states}, (recipe, batch))

        return vmap(one, randomness="different")(leaves, states, self._numbers)


def fixed(column: Any) -> Tensor:
    assert isinstance(column, Tensor), "networks over ragged columns are not lifted"
    return column


def _leaves(given: Any) -> list[Tensor]:
    if isinstance(given, Tensor):
        return [given]
    values = given.values() if isinstance(given, Mapping) else given
    return [each for value in values for each in _leaves(value)]
