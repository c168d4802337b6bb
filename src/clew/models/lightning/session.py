"""A LightningModule in training: its steps, logged values, optimisers, schedulers and hooks.

A session belongs to one module. It replaces the methods of the module that would need Lightning's Trainer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clew.data.dataset.batch import Batch
from clew.errors import RecipeError
from clew.metrics import Mean, Metric
from clew.models.lightning.logged_metrics import (
    as_scalar,
    check_reduction,
    is_torch_metric,
    logged_metric,
    register_metrics,
)
from clew.models.lightning.refusals import check_plan, is_overridden, module_place
from clew.models.lightning.schedulers import Scheduler, read_optimizers
from clew.models.lightning.trainer import TrainerFacts
from clew.recipe import Loss, TakenSteps, TrainingHooks, TrainingPlan

_SESSION = "_clew_session"
_REPLACED = ("log", "log_dict", "optimizers", "lr_schedulers", "manual_backward", "clip_gradients", "print")
"""Methods of a module that would use the Trainer."""
_STEPS = ("training_step", "validation_step", "test_step", "predict_step")


def session_of(module: nn.Module) -> LightningSession:
    """Return the session of a module. The first call makes it."""
    session = module.__dict__.get(_SESSION)
    if session is None:
        session = LightningSession(module)
        for name in _REPLACED:
            module.__dict__[name] = getattr(session, name)
        module.__dict__[_SESSION] = session
        register_metrics(module)
        module.trainer = TrainerFacts(session)  # type: ignore[assignment]
    assert isinstance(session, LightningSession)
    return session


class LightningSession(TrainingHooks):
    """What a LightningModule finds instead of Lightning's Trainer."""

    def __init__(self, module: Any) -> None:
        self.module, self.plan = module, TrainingPlan()
        self.optimizer_list: list[Optimizer] = []
        self.schedulers: list[Scheduler] = []
        self._backward: Callable[[Tensor, Batch], Loss] | None = None
        self._stage, self._batch = "validate", Batch(1, {})
        self._inputs: Any = None
        self._returned: Any = None
        self._epoch = self._epoch_step = self._global_step = 0
        """Epochs done, steps done in this epoch, steps of optimisers."""
        self._calls = {"train": 0, "validate": 0, "test": 0, "predict": 0}
        """Number of batches so far, by stage: what a step gets as `batch_idx`."""
        self._values: dict[str, Tensor | float] = {}
        """Values logged since the last optimiser step."""
        self._metrics: dict[str, Metric] = {}
        """Values logged for the current batch of a validation."""
        self._known: dict[str, float | Tensor] = {}
        """The newest value of everything that was logged."""
        self._loss: Loss | None = None
        self._step_arguments = {name: _positional(getattr(module, name)) for name in _STEPS}

    def facts(self) -> dict[str, Any]:
        """Return what `self.trainer` gives."""
        plan = self.plan
        return {
            "current_epoch": self._epoch,
            "global_step": self._global_step,
            "max_epochs": plan.epochs,
            "max_steps": plan.steps,
            "num_training_batches": plan.steps_per_epoch * plan.accumulate,
            "estimated_stepping_batches": plan.steps,
            "accumulate_grad_batches": plan.accumulate,
            "world_size": plan.ranks,
            "num_devices": plan.ranks,
            "global_rank": plan.rank,
            "is_global_zero": plan.rank == 0,
            "is_last_batch": self._epoch_step + 1 == plan.steps_per_epoch,
            "training": self._stage == "train",
            "validating": self._stage == "validate",
            "testing": self._stage == "test",
            "optimizers": self.optimizer_list,
            "lightning_module": self.module,
            "model": self.module,
            "callback_metrics": self._known_tensors(),
            "logged_metrics": self._known_tensors(),
        }

    def _known_tensors(self) -> dict[str, Tensor]:
        return {name: torch.as_tensor(value) for name, value in self._known.items()}

    # what the module calls

    def log(self, name: str, value: Any, *_: Any, reduce_fx: Any = "mean", batch_size: Any = None, **__: Any) -> None:
        """Record a value: during training with the losses, during a validation as a metric."""
        check_reduction(name, reduce_fx)
        if self._stage == "train":
            self._values[name] = as_scalar(name, value)
        else:
            self._metrics[name] = logged_metric(name, value, batch_size or self._batch.size)

    def log_dict(self, dictionary: Mapping[str, Any], *_: Any, **settings: Any) -> None:
        """Record several values."""
        for name, value in dictionary.items():
            self.log(name, value, **settings)

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """Return the optimiser, or a list if there are several."""
        return self.optimizer_list[0] if len(self.optimizer_list) == 1 else list(self.optimizer_list)

    def lr_schedulers(self) -> Any:
        """Return the scheduler, a list if there are several, or None."""
        schedulers = [each.scheduler for each in self.schedulers]
        return (schedulers[0] if len(schedulers) == 1 else schedulers) if schedulers else None

    def manual_backward(self, loss: Tensor, *arguments: Any, **options: Any) -> None:
        """Add the gradient of a loss of the current batch, summed over all ranks."""
        if arguments or options:
            raise RecipeError("manual_backward() takes only the loss in clew; call it once per loss")
        if self.module.automatic_optimization:
            raise RecipeError("manual_backward() needs self.automatic_optimization = False")
        assert self._backward is not None
        added = self._backward(loss, self._batch)
        self._loss = added if self._loss is None else Loss(self._loss.total + added.total, added.weight)

    def clip_gradients(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Limit the gradients of an optimiser, by norm or by value."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if gradient_clip_val and str(gradient_clip_algorithm or "norm").lower() == "value":
            nn.utils.clip_grad_value_(parameters, gradient_clip_val)
        elif gradient_clip_val:
            nn.utils.clip_grad_norm_(parameters, gradient_clip_val)

    def print(self, *values: Any, **options: Any) -> None:
        """Print on rank 0."""
        if self.plan.rank == 0:
            print(*values, **options)  # noqa: T201

    # what the recipe calls

    def begin(self, plan: TrainingPlan) -> LightningSession:
        """Prepare for a training: make optimisers and schedulers.

        Raises:
            ConfigError: A setting cannot be used with the module.
        """
        self.plan = plan
        self.optimizer_list, self.schedulers = read_optimizers(self.module)
        check_plan(self.module, plan, self.schedulers)
        for optimizer in self.optimizer_list:
            optimizer.register_step_post_hook(self._count_step)
        return self

    def _count_step(self, *_: Any) -> None:
        self._global_step += 1

    def train(self, batch: Batch, inputs: Any) -> Mapping[str, Tensor | Loss]:
        """Perform the training step of the module.

        Args:
            batch: The batch.
            inputs: What the step gets.

        Returns:
            The loss, or, with manual optimisation, the losses of the steps that were taken.

        Raises:
            RecipeError: The step returned no loss.
        """
        self._batch, self._inputs, self._loss = batch, inputs, None
        number = self._enter("train")
        if self.module.on_train_batch_start(inputs, number) == -1:
            raise RecipeError("on_train_batch_start() returned -1; clew does not skip the rest of an epoch")
        self._returned = self._call("training_step", number)
        if not self.module.automatic_optimization:
            return self._taken_steps()
        return {"loss": self._as_loss(self._returned, batch)}

    def _taken_steps(self) -> TakenSteps:
        if self._loss is None:
            raise RecipeError(
                f"{module_place(self.module)}.training_step() did not call self.manual_backward(loss), "
                "and optimisation is manual"
            )
        return TakenSteps(loss=self._loss)

    def _as_loss(self, returned: Any, batch: Batch) -> Loss:
        loss = returned.get("loss") if isinstance(returned, Mapping) else returned
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            place = f"{module_place(self.module)}.training_step()"
            shown = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise RecipeError(
                f"{place} returned {shown}; return the mean loss of the batch, or a dictionary with 'loss'"
            )
        return Loss(loss.reshape(()) * batch.size, float(batch.size) if batch.counts else 0.0)

    def evaluate(self, batch: Batch, inputs: Any, *, test: bool) -> dict[str, Metric]:
        """Perform the validation or test step of the module.

        Returns:
            The loss, and what the step logged.

        Raises:
            RecipeError: There is no loss.
        """
        self._batch, self._metrics = batch, {}
        name = "test_step" if test and is_overridden("test_step", self.module) else "validation_step"
        overridden = is_overridden(name, self.module)
        if not overridden and not self.module.automatic_optimization:
            hint = "define it, and return or log the loss"
            raise RecipeError(
                f"{module_place(self.module)} has no validation_step(), which manual optimisation needs; {hint}"
            )
        self._inputs = inputs
        number = self._enter("test" if test else "validate")
        returned = self._call(name if overridden else "training_step", number)
        logged, self._metrics = (self._metrics if overridden else {}), {}
        return {"loss": self._validation_loss(returned, logged, batch), **logged}

    def _validation_loss(self, returned: Any, logged: Mapping[str, Metric], batch: Batch) -> Metric:
        loss = returned.get("loss") if isinstance(returned, Mapping) else returned
        if isinstance(loss, Tensor) and loss.numel() == 1:
            return Mean(float(loss) * batch.size, float(batch.size))
        names = [name for name in logged if name.lower().endswith("loss")]
        if "loss" in logged or len(names) == 1:
            return logged["loss" if "loss" in logged else names[0]]
        hint = "return the loss, or log one value whose name ends with 'loss'"
        raise RecipeError(f"{module_place(self.module)}.validation_step() gives no loss; {hint}")

    def predict(self, inputs: Any) -> Any:
        """Perform the prediction step of the module."""
        self._inputs = inputs
        return self._call("predict_step", self._enter("predict"))

    def _enter(self, stage: str) -> int:
        """Enter a stage, and return the number of its batch."""
        self._stage = stage
        number = self._calls[stage]
        self._calls[stage] += 1
        return number

    def _call(self, name: str, number: int) -> Any:
        arguments = (self._inputs, number)[: self._step_arguments[name]]
        return getattr(self.module, name)(*arguments)

    # what the training loop calls

    def attach(self, backward: Callable[[Tensor, Batch], Loss]) -> None:
        self._backward = backward

    def start(self) -> None:
        self.module.on_fit_start()
        self.module.on_train_start()

    def start_epoch(self, epoch: int) -> None:
        self._epoch, self._epoch_step, self._calls["train"], self._stage = epoch, 0, 0, "train"
        self.module.on_train_epoch_start()

    def end_step(self) -> Mapping[str, Tensor | float]:
        self._epoch_step += 1
        self._known.update(self._values)
        self._step_schedulers("step", self._epoch_step, plateau=False)
        self.module.on_train_batch_end(self._returned, self._inputs, self._calls["train"] - 1)
        self._step_schedulers("step", self._epoch_step, plateau=True)
        self._returned = self._inputs = None
        values, self._values = self._values, {}
        return values

    def start_validation(self) -> None:
        self._stage, self._calls["validate"] = "validate", 0
        self.module.on_validation_start()
        self.module.on_validation_epoch_start()

    def end_validation(self) -> Mapping[str, Metric]:
        self._metrics, self._batch = {}, Batch(1, {})
        self.module.on_validation_epoch_end()
        self.module.on_validation_end()
        self._stage = "train"
        logged, self._metrics = self._metrics, {}
        return logged

    def end_epoch(self, metrics: Mapping[str, float]) -> None:
        self._known.update(metrics)
        self._step_schedulers("epoch", self._epoch + 1, plateau=False)
        self.module.on_train_epoch_end()
        self._known.update(self._values)
        self._values = {}
        for metric in self.module.modules():
            if is_torch_metric(metric):
                metric.reset()
        self._step_schedulers("epoch", self._epoch + 1, plateau=True)
        self._epoch += 1

    def _step_schedulers(self, interval: str, count: int, *, plateau: bool) -> None:
        if not self.module.automatic_optimization:
            return
        for each in self.schedulers:
            if each.plateau is not plateau or not each.is_due(interval, count):
                continue
            value = None if each.monitor is None else self._known.get(each.monitor)
            if each.plateau and value is None:
                if each.strict:
                    known = ", ".join(self._known) or "nothing"
                    raise RecipeError(f"a scheduler follows '{each.monitor}', which was not logged; there is {known}")
                continue
            self.module.lr_scheduler_step(each.scheduler, value if each.plateau else None)

    def state(self) -> dict[str, Any]:
        return {
            "schedulers": [each.scheduler.state_dict() for each in self.schedulers],
            "place": [self._epoch, self._epoch_step, self._global_step, self._calls["train"]],
            "known": {name: float(value) for name, value in self._known.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        for each, saved in zip(self.schedulers, state["schedulers"], strict=True):
            each.scheduler.load_state_dict(saved)
        self._epoch, self._epoch_step, self._global_step, self._calls["train"] = state["place"]
        self._known = dict(state["known"])


def _positional(step: Callable[..., Any]) -> int:
    """Return how many of (batch, batch_idx) a step takes."""
    kinds = [each.kind for each in inspect.signature(step).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return 2
    return min(2, sum(kind is not inspect.Parameter.KEYWORD_ONLY for kind in kinds))
