"""One step of all models of a pack: losses, gradients, optimisers. Knows no files and no epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import vmap

from clew.data.dataset.batch import Batch
from clew.recipe import Recipe
from clew.training.config import TrainConfig
from clew.training.engine import as_loss
from clew.training.packs import grouping
from clew.training.packs.forward import PackForward, fixed
from clew.training.packs.optimizer import Rows

AHEAD = 256
"""Steps that are planned at a time."""


class Told(NamedTuple):
    """Losses of a batch: the sum of each model, (models,), and over how much."""

    totals: Tensor
    weights: Tensor


class Plan(NamedTuple):
    """What is known of coming steps before they are done."""

    first: int
    scalars: Tensor
    """(steps, 4, models): see `Rows`."""
    keys: Tensor | None
    """(steps, layers, models): of dropout."""

    @property
    def last(self) -> int:
        """The first step behind them."""
        return self.first + len(self.scalars)


class PackEngine(PackForward):
    """Stacked models, their optimiser and their losses. Where a loss has one value an event, that of all models is
    computed as of one long batch, if it gives what vmap gives."""

    def __init__(
        self,
        recipes: Sequence[Recipe],
        models: Sequence[nn.Module],
        configs: Sequence[TrainConfig],
        device: torch.device,
    ) -> None:
        super().__init__(recipes, models, [each.seed for each in configs], device)
        self.optimizer = Rows(self.stack.weights, self.stack.gradients, configs)
        self._clips = [each.clip for each in configs]
        self._flat = False
        self._compiled: Callable[[Batch], Any] | None = None
        self._size = 0
        self._ready()

    @property
    def fast(self) -> str:
        """Which short cuts are taken."""
        return "+".join([*(["layers"] if self._lifted is not None else []), *(["loss"] if self._flat else [])])

    def keep(self, places: Tensor) -> None:
        super().keep(places)
        self.optimizer.keep(places, self.stack.weights, self.stack.gradients)
        self._clips = [self._clips[row] for row in places.tolist()]
        self._compiled = None  # compiling again would take longer than it saves
        self._ready()

    def _ready(self) -> None:
        self._clip, self._known = None, dict[int, tuple[Tensor, Tensor]]()
        if any(each is not None for each in self._clips):
            bounds = [float("inf") if each is None else each for each in self._clips]
            self._clip = self.stack.weights.new_tensor(bounds).unsqueeze(1)

    def prepare(self, few: Batch) -> None:
        """Find out, on a few samples, whether vmap can do it, and which short cuts can be taken.

        Raises whatever vmap, the model or the loss raise.
        """
        before = self.stack.snapshot()
        outputs = self.find_short_cut(few)
        with torch.no_grad():
            told = self._vmapped_losses(outputs, few)
        self._flat = all(
            self._same(lambda: self._summed(self._each(recipe, outputs, few)), told, before)  # noqa: B023
            for recipe in (self.recipe, self._nameless())
        )
        self.gradient(few)
        self._restore(before)

    def compile(self, batch: Batch) -> None:
        """Compile the losses for batches of this size, as long as all models are there.

        Raises whatever torch.compile raises.
        """
        before = self.stack.snapshot()
        self._compiled, self._size = torch.compile(self._losses, dynamic=False), batch.size
        try:
            self.gradient(batch)
        except Exception:
            self._compiled = None
            raise
        finally:
            self._restore(before)

    def _nameless(self) -> Recipe:
        """The recipe with no number where models differ: whoever uses one of those gets nothing."""
        return grouping.with_numbers(self.recipe, dict.fromkeys(self._numbers, float("nan")))

    def losses(self, outputs: Any, batch: Batch) -> Told:
        """Of every model."""
        if not self._flat:
            return self._vmapped_losses(outputs, batch)
        return self._summed(self._each(self.recipe, outputs, batch))

    def _each(self, recipe: Recipe, outputs: Any, batch: Batch) -> Tensor:
        """Those of every event, (models, events): the events of all models one after the other, as one long batch."""
        models = len(self.stack)
        long = Batch(batch.size * models, cast(Any, _Repeated(batch, models)))
        each = recipe.loss(_flattened(outputs), long)
        if not isinstance(each, Tensor) or each.shape != (long.size,):
            raise ValueError("not one loss an event")
        each = each.view(models, batch.size)
        return each if batch.weights is None else each * batch.weights

    def _summed(self, each: Tensor) -> Told:
        return Told(each.sum(1), self._of_size(each)[0])

    def _of_size(self, each: Tensor) -> tuple[Tensor, Tensor]:
        """What is the same for all batches of a size: how much losses weigh, and the slope of their mean by each."""
        models, size = each.shape
        if size not in self._known:
            self._known[size] = each.new_full((models,), float(size)), torch.full_like(each, 1.0 / size)
        return self._known[size]

    def _vmapped_losses(self, outputs: Any, batch: Batch) -> Told:
        def one(outputs: Any, numbers: Any) -> tuple[Tensor, Tensor]:
            recipe = grouping.with_numbers(self.recipe, numbers) if numbers else self.recipe
            total, weight = as_loss(recipe.loss(outputs, batch), batch)
            return total, torch.as_tensor(weight, dtype=total.dtype, device=total.device)

        return Told(*vmap(one, randomness="different")(outputs, self._numbers))

    def gradient(self, batch: Batch) -> Told:
        """Losses of a batch, and the gradient of each model's mean loss, in the stack."""
        usual = self._compiled is not None and batch.size == self._size
        found = (self._compiled if usual else self._losses)(batch)  # type: ignore[misc]
        if self._flat:
            told, value, slope = self._summed(found.detach()), found, self._of_size(found)[1]
        else:
            told, value = Told(found.totals.detach(), found.weights), found.totals
            slope = 1.0 / torch.where(told.weights == 0, 1.0, told.weights)
        leaves = list(self.stack.leaves.values())
        self.stack.collect(torch.autograd.grad(value, leaves, slope, materialize_grads=True))
        return told

    def _losses(self, batch: Batch) -> Any:
        """Those of every event, (models, events), or else what `losses` gives."""
        outputs = self.outputs(batch)
        return self._each(self.recipe, outputs, batch) if self._flat else self.losses(outputs, batch)

    def learn(self, batch: Batch, scalars: Tensor) -> Told:
        """One step."""
        told = self.gradient(batch)
        if self._clip is not None:
            gradients = self.stack.gradients
            norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
            gradients.mul_((self._clip / (norms + 1e-6)).clamp_(max=1.0))
        self.optimizer.apply(scalars)
        return told

    def plan(self, first: int, factors: Tensor) -> Plan:
        """The numbers of steps from `first` (counted from 0) on: `factors` (steps, models) of the learning rates."""
        keys = [self.stack.keys.at(first + place) for place in range(len(factors))] if self.stack.dropouts else []
        drawn = torch.stack(keys).to(self.device) if keys else None
        return Plan(first, self.optimizer.scalars(first, factors), drawn)

    def step(self, batch: Batch, plan: Plan, number: int) -> Told:
        """Learn from a batch in the step with this number, which is in the plan."""
        place = number - plan.first
        self.optimizer.step = number + 1
        if plan.keys is not None:
            self.stack.key.copy_(plan.keys[place])
        return self.learn(batch, plan.scalars[place])


class _Repeated(Mapping[str, Tensor]):
    """Columns of a batch, as many times as there are models; those that nobody asks for are not made."""

    def __init__(self, batch: Batch, models: int) -> None:
        self._batch, self._models = batch, models

    def __getitem__(self, name: str) -> Tensor:
        whole = fixed(self._batch.columns[name])
        return whole.expand(self._models, *whole.shape).flatten(0, 1)

    def __iter__(self) -> Iterator[str]:
        return iter(self._batch.columns)

    def __len__(self) -> int:
        return len(self._batch.columns)


def _flattened(outputs: Any) -> Any:
    if isinstance(outputs, Mapping):
        return {name: value.flatten(0, 1) for name, value in outputs.items()}
    return outputs.flatten(0, 1)
