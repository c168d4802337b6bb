"""One step of all members of a pack: losses, gradients, optimiser. It knows nothing of files and epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import vmap

from clew.core.private_files import keep_compiled_code_private
from clew.data.dataset.batch import Batch
from clew.recipe import Recipe
from clew.training.config import TrainConfig
from clew.training.engine import as_loss
from clew.training.packs import grouping
from clew.training.packs.forward import PackForward, plain_column
from clew.training.packs.optimizer import PackOptimizer

MAX_PLANNED_STEPS = 256
"""Steps that are planned at a time."""


class StepLosses(NamedTuple):
    """The losses of a batch: the sum for each member, (members,), and its weight."""

    totals: Tensor
    weights: Tensor


class StepPlan(NamedTuple):
    """The numbers of coming steps, which are known before the steps are done."""

    first: int
    """The number of the first step, counted from 0."""
    scalars: Tensor
    """(steps, 4, members): see `PackOptimizer`."""
    keys: Tensor | None
    """(steps, layers, members): the keys of dropout."""

    @property
    def stop(self) -> int:
        """The number of the step after the last."""
        return self.first + len(self.scalars)


class PackEngine(PackForward):
    """Stacked models, their optimiser and their losses.

    If the recipe's loss has one value per event, the loss of all members is computed as that of one long batch,
    provided that this gives the same as vmap.
    """

    def __init__(
        self,
        recipes: Sequence[Recipe],
        models: Sequence[nn.Module],
        configs: Sequence[TrainConfig],
        device: torch.device,
    ) -> None:
        """Stack models.

        Args:
            recipes: The recipe of each member.
            models: The model of each member; all have the same shape.
            configs: The settings of each member.
            device: Where the models are trained.
        """
        super().__init__(recipes, models, [config.seed for config in configs], device)
        self.optimizer = PackOptimizer(self.stack.weights, self.stack.gradients, configs)
        self._clip_limits = [config.clip for config in configs]
        self._loss_per_event = False
        """Whether the loss is computed per event, for all members as one batch."""
        self._compiled: Callable[[Batch], Any] | None = None
        self._compiled_size = 0
        self.prepare_step()

    @property
    def fast_paths(self) -> str:
        """The faster implementations that are used: `layers`, `loss`, `layers+loss` or ''."""
        layers = ["layers"] if self._stacked_model is not None else []
        return "+".join([*layers, *(["loss"] if self._loss_per_event else [])])

    def keep_members(self, rows: Tensor) -> None:
        super().keep_members(rows)
        self.optimizer.keep_members(rows, self.stack.weights, self.stack.gradients)
        self._clip_limits = [self._clip_limits[row] for row in rows.tolist()]
        self._compiled = None  # compiling again would take longer than it saves
        self.prepare_step()

    def prepare_step(self) -> None:
        """Set what depends on the members, before the first step and whenever they change."""
        self._clip, self._constants = None, dict[int, tuple[Tensor, Tensor]]()
        if any(limit is not None for limit in self._clip_limits):
            limits = [float("inf") if limit is None else limit for limit in self._clip_limits]
            self._clip = self.stack.weights.new_tensor(limits).unsqueeze(1)

    def prepare(self, samples: Batch) -> None:
        """Find out, on a few samples, whether vmap works, and which faster implementations can be used.

        Raises:
            Exception: Whatever vmap, the model or the loss raises.
        """
        snapshot = self.stack.snapshot()
        outputs = self.choose_implementation(samples)
        with torch.no_grad():
            expected = self._vmapped_losses(outputs, samples)
        self._loss_per_event = all(
            self._gives(lambda: self._sum_events(self._event_losses(recipe, outputs, samples)), expected, snapshot)  # noqa: B023
            for recipe in (self.recipe, self._recipe_without_numbers())
        )
        self.compute_gradients(samples)
        self._restore(snapshot)

    def compile(self, batch: Batch) -> None:
        """Compile the losses for batches of this size, for as long as no member is removed.

        Raises:
            Exception: Whatever torch.compile raises.
        """
        keep_compiled_code_private()
        snapshot = self.stack.snapshot()
        self._compiled, self._compiled_size = torch.compile(self._raw_losses, dynamic=False), batch.size
        try:
            self.compute_gradients(batch)
        except Exception:
            self._compiled = None
            raise
        finally:
            self._restore(snapshot)

    def _recipe_without_numbers(self) -> Recipe:
        """Return the recipe with NaN for each number that differs between members: a loss that uses one becomes NaN."""
        return grouping.with_numbers(self.recipe, dict.fromkeys(self._numbers, float("nan")))

    def losses(self, outputs: Any, batch: Batch) -> StepLosses:
        """Return the losses of every member."""
        if not self._loss_per_event:
            return self._vmapped_losses(outputs, batch)
        return self._sum_events(self._event_losses(self.recipe, outputs, batch))

    def _event_losses(self, recipe: Recipe, outputs: Any, batch: Batch) -> Tensor:
        """Return the loss of every event, (members, events), computed as one batch of all members' events."""
        members = len(self.stack)
        long_batch = Batch(batch.size * members, cast(Any, _RepeatedColumns(batch, members)))
        losses = recipe.loss(_merge_members(outputs), long_batch)
        if not isinstance(losses, Tensor) or losses.shape != (long_batch.size,):
            raise ValueError("the loss does not have one value per event")
        losses = losses.view(members, batch.size)
        return losses if batch.weights is None else losses * batch.weights

    def _sum_events(self, losses: Tensor) -> StepLosses:
        return StepLosses(losses.sum(1), self._batch_constants(losses)[0])

    def _batch_constants(self, losses: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of the losses, and the derivative of their mean: the same for all batches of a size."""
        members, size = losses.shape
        if size not in self._constants:
            self._constants[size] = losses.new_full((members,), float(size)), torch.full_like(losses, 1.0 / size)
        return self._constants[size]

    def _vmapped_losses(self, outputs: Any, batch: Batch) -> StepLosses:
        def member_loss(outputs: Any, numbers: Any) -> tuple[Tensor, Tensor]:
            recipe = grouping.with_numbers(self.recipe, numbers) if numbers else self.recipe
            total, weight = as_loss(recipe.loss(outputs, batch), batch)
            return total, torch.as_tensor(weight, dtype=total.dtype, device=total.device)

        return StepLosses(*vmap(member_loss, randomness="different")(outputs, self._numbers))

    def compute_gradients(self, batch: Batch) -> StepLosses:
        """Compute the gradient of each member's mean loss into the stack, and return the losses."""
        compiled = self._compiled is not None and batch.size == self._compiled_size
        raw = (self._compiled if compiled else self._raw_losses)(batch)  # type: ignore[misc]
        if self._loss_per_event:
            losses, value, derivative = self._sum_events(raw.detach()), raw, self._batch_constants(raw)[1]
        else:
            losses, value = StepLosses(raw.totals.detach(), raw.weights), raw.totals
            derivative = 1.0 / torch.where(losses.weights == 0, 1.0, losses.weights)
        leaves = list(self.stack.leaves.values())
        self.stack.collect_gradients(torch.autograd.grad(value, leaves, derivative, materialize_grads=True))
        return losses

    def _raw_losses(self, batch: Batch) -> Any:
        """Return the losses per event, (members, events), or else what `losses` returns."""
        outputs = self.outputs(batch)
        if self._loss_per_event:
            return self._event_losses(self.recipe, outputs, batch)
        return self.losses(outputs, batch)

    def train_on(self, batch: Batch, scalars: Tensor) -> StepLosses:
        """Perform one step on a batch; `scalars` (4, members) are the numbers of the step."""
        losses = self.compute_gradients(batch)
        if self._clip is not None:
            gradients = self.stack.gradients
            norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
            gradients.mul_((self._clip / (norms + 1e-6)).clamp_(max=1.0))
        self.optimizer.apply(scalars)
        return losses

    def plan(self, first: int, factors: Tensor) -> StepPlan:
        """Return the numbers of coming steps.

        Args:
            first: The number of the first step, counted from 0.
            factors: The factors of the learning rates, (steps, members).
        """
        numbers = range(first, first + len(factors))
        keys = [self.stack.keys.at(number) for number in numbers] if self.stack.dropouts else []
        stacked_keys = torch.stack(keys).to(self.device) if keys else None
        return StepPlan(first, self.optimizer.scalars(first, factors), stacked_keys)

    def step(self, batch: Batch, plan: StepPlan, number: int) -> StepLosses:
        """Perform the step with this number, which is in the plan."""
        place = number - plan.first
        self.optimizer.step = number + 1
        if plan.keys is not None:
            self.stack.key.copy_(plan.keys[place])
        return self.train_on(batch, plan.scalars[place])


class _RepeatedColumns(Mapping[str, Tensor]):
    """The columns of a batch, repeated for each member. A column is made only when it is used."""

    def __init__(self, batch: Batch, members: int) -> None:
        self._batch, self._members = batch, members

    def __getitem__(self, name: str) -> Tensor:
        column = plain_column(self._batch.columns[name])
        return column.expand(self._members, *column.shape).flatten(0, 1)

    def __iter__(self) -> Iterator[str]:
        return iter(self._batch.columns)

    def __len__(self) -> int:
        return len(self._batch.columns)


def _merge_members(outputs: Any) -> Any:
    if isinstance(outputs, Mapping):
        return {name: value.flatten(0, 1) for name, value in outputs.items()}
    return outputs.flatten(0, 1)
