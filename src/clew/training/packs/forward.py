"""The forward pass of all members of a pack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from clew.data.dataset.batch import Batch, RaggedTensor
from clew.recipe import Recipe
from clew.training.packs import grouping, stacked_layers
from clew.training.packs.stacked_weights import StackedWeights


class _RecipeForward(nn.Module):
    """A network with the recipe's `forward`, as one module whose weights `functional_call` can replace."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, recipe: Recipe, batch: Batch) -> Any:
        return recipe.forward(self.model, batch)


class PackForward:
    """Stacked models and their forward pass.

    Networks are vectorised by vmap. If every layer has a stacked form, the stacked network is used instead, provided
    that it gives the same outputs as vmap on a few samples.
    """

    def __init__(
        self, recipes: Sequence[Recipe], models: Sequence[nn.Module], seeds: Sequence[int], device: torch.device
    ) -> None:
        """Stack models.

        Args:
            recipes: The recipe of each member, or one recipe for all.
            models: The model of each member; all have the same shape.
            seeds: The seed of each member, for dropout.
            device: Where the models are.
        """
        self.recipe, self.device = recipes[0], device
        self.stack = StackedWeights(models, seeds, device)
        dtype = self.stack.weights.dtype
        self._numbers = {
            key: torch.tensor(values, dtype=dtype, device=device)
            for key, values in grouping.differing_numbers(recipes).items()
        }
        """Numbers of the recipes' settings that differ between members."""
        self._recipe_forward = _RecipeForward(self.stack.base)
        self._stacked_model: nn.Module | None = None

    def keep_members(self, rows: Tensor) -> None:
        """Remove all members but these."""
        self.stack.keep_members(rows)
        self._numbers = {key: values[rows.to(self.device)] for key, values in self._numbers.items()}
        if self._stacked_model is not None:
            stacked_layers.load_stack(self._stacked_model, self.stack)

    def train(self, mode: bool = True) -> None:
        """Switch to training (True) or evaluation (False)."""
        self.stack.base.train(mode)
        if self._stacked_model is not None:
            self._stacked_model.train(mode)

    def choose_implementation(self, samples: Batch, *, evaluation: bool = False) -> Any:
        """Find out, on a few samples, whether the stacked network can be used.

        Args:
            samples: A few samples.
            evaluation: Whether the network is only evaluated, not trained.

        Returns:
            The outputs of vmap for these samples.

        Raises:
            Exception: Whatever vmap or the model raises.
        """
        snapshot = self.stack.snapshot()
        self.train(not evaluation)
        with torch.no_grad():
            outputs = self._vmapped(samples)
        self._restore(snapshot)
        ragged = any(isinstance(column, RaggedTensor) for column in samples.columns.values())
        self._stacked_model = None if ragged else self._make_stacked_model()
        if self._stacked_model is not None:
            self._stacked_model.train(not evaluation)
            same = self._gives(lambda: self.outputs(samples), outputs, snapshot)
            if not same or not self._same_in_evaluation(samples, snapshot):
                self._stacked_model = None
        self.train(not evaluation)
        return outputs

    def _same_in_evaluation(self, samples: Batch, snapshot: Any) -> bool:
        self.train(False)
        try:
            with torch.no_grad():
                expected = self._vmapped(samples)
            return self._gives(lambda: self.outputs(samples), expected, snapshot)
        finally:
            self.train()

    def _make_stacked_model(self) -> nn.Module | None:
        model = stacked_layers.make_stacked_model(self.stack.base)
        if model is not None:
            stacked_layers.load_stack(model, self.stack)
        return model

    def _gives(self, compute: Callable[[], Any], expected: Any, snapshot: Any) -> bool:
        """Return whether `compute` gives the expected tensors. Weights and statistics are restored afterwards."""
        try:
            with torch.no_grad():
                outputs = compute()
        except Exception:  # whatever a network does with a shape it does not expect
            return False
        finally:
            self._restore(snapshot)
        tensors, expected_tensors = _flat_tensors(outputs), _flat_tensors(expected)
        if len(tensors) != len(expected_tensors):
            return False
        pairs = list(zip(tensors, expected_tensors, strict=True))
        if any(a.shape != b.shape for a, b in pairs):
            return False
        return all(torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5, equal_nan=True) for a, b in pairs)

    def _restore(self, snapshot: tuple[Tensor, dict[str, Tensor]]) -> None:
        with torch.no_grad():
            self.stack.weights.copy_(snapshot[0])
            for name, tensor in snapshot[1].items():
                self.stack.untrained[name].copy_(tensor)

    def outputs(self, batch: Batch) -> Any:
        """Return the outputs of the networks, with a first axis of members."""
        if self._stacked_model is None:
            return self._vmapped(batch)
        members = len(self.stack)
        columns = {
            name: plain_column(column).expand(members, *plain_column(column).shape)
            for name, column in batch.columns.items()
        }
        return self.recipe.forward(self._stacked_model, Batch(batch.size, dict(columns), batch.weights))

    def _vmapped(self, batch: Batch) -> Any:
        leaves = {f"model.{name}": tensor for name, tensor in self.stack.leaves.items()}
        states = {f"model.{name}": tensor for name, tensor in self.stack.states.items()}

        def member_outputs(leaves: Any, states: Any, numbers: Any) -> Any:
            recipe = grouping.with_numbers(self.recipe, numbers) if numbers else self.recipe
            return functional_call(self._recipe_forward, {**leaves, **states}, (recipe, batch))

        return vmap(member_outputs, randomness="different")(leaves, states, self._numbers)


def plain_column(column: Any) -> Tensor:
    """Return a column that is not ragged."""
    assert isinstance(column, Tensor), "networks with ragged columns are not stacked"
    return column


def _flat_tensors(outputs: Any) -> list[Tensor]:
    if isinstance(outputs, Tensor):
        return [outputs]
    values = outputs.values() if isinstance(outputs, Mapping) else outputs
    return [tensor for value in values for tensor in _flat_tensors(value)]
