"""What a LightningModule must have, and what clew cannot do for it. Each is refused by name."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from clew.errors import ConfigError, RecipeError
from clew.recipe import TrainingPlan
from clew.recipe_errors import short_path

_REFUSED_HOOKS = {
    "backward": "clew runs backward; use manual optimisation",
    "optimizer_step": "clew steps the optimiser; use manual optimisation",
    "optimizer_zero_grad": "clew clears gradients; use manual optimisation",
    "configure_gradient_clipping": "set train.clip, or use manual optimisation",
    "configure_sharded_model": "use configure_model",
    "configure_callbacks": "callbacks need Lightning's Trainer; see train.early_stopping and train.best",
    "transfer_batch_to_device": "clew moves batches",
    "on_before_batch_transfer": "change the batch in training_step",
    "on_after_batch_transfer": "change the batch in training_step",
    "on_save_checkpoint": "keep such values in buffers (register_buffer), which checkpoints hold",
    "on_load_checkpoint": "keep such values in buffers (register_buffer), which checkpoints hold",
    "on_before_zero_grad": "use manual optimisation",
    "on_before_backward": "use manual optimisation",
    "on_after_backward": "use manual optimisation",
    "on_before_optimizer_step": "set train.clip, or use manual optimisation",
}
"""Hooks that clew does not call, by name, and what to do instead."""
_ASYNCHRONOUS_HOOKS = (
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_validation_epoch_start",
    "on_validation_epoch_end",
)


def lightning_classes(name: str) -> tuple[type, ...]:
    """Return the classes of this name in the loaded packages of Lightning: `lightning`, `pytorch_lightning`."""
    packages = (sys.modules.get(package) for package in ("lightning.pytorch", "pytorch_lightning"))
    return tuple(getattr(package, name) for package in packages if hasattr(package, name))


def is_overridden(name: str, module: Any) -> bool:
    """Return whether a module defines a method itself, or its base class is not Lightning's."""
    method = inspect.unwrap(getattr(type(module), name, None) or (lambda: None))
    return all(method is not getattr(base, name, None) for base in lightning_classes("LightningModule")) and hasattr(
        type(module), name
    )


def module_place(module: Any) -> str:
    """Return the file, line and name of the class of a module."""
    kind = type(module)
    try:
        return f"{short_path(inspect.getfile(kind))}:{inspect.getsourcelines(kind)[1]}: {kind.__name__}"
    except (OSError, TypeError):
        return kind.__name__


def check_module(module: Any) -> None:
    """Check that clew can train a LightningModule.

    Raises:
        RecipeError: It lacks a method that is needed, or overrides one that clew does not call.
    """
    place = module_place(module)
    for name, task in (("training_step", "returns the loss of a batch"), ("configure_optimizers", "makes optimisers")):
        if not is_overridden(name, module):
            raise RecipeError(f"{place} has no {name}(), which {task}; define it in the LightningModule")
    for name, advice in _REFUSED_HOOKS.items():
        if is_overridden(name, module):
            raise RecipeError(f"{place} overrides {name}(), which clew does not call: {advice}")
    parameters = inspect.signature(module.training_step).parameters
    for name in ("dataloader_iter", "optimizer_idx"):
        if name in parameters:
            raise RecipeError(
                f"{place}: training_step() takes {name}, which clew does not pass; take (batch, batch_idx)"
            )


def check_plan(module: Any, plan: TrainingPlan, schedulers: list[Any]) -> None:
    """Check that the settings of a training fit a LightningModule.

    Raises:
        ConfigError: A setting cannot be used with it.
    """
    name = type(module).__name__
    if schedulers and plan.schedule != "constant":
        raise ConfigError(f"train.schedule {plan.schedule}: {name} has schedulers of its own; leave the setting out")
    if not module.automatic_optimization:
        manual = f"{name} uses manual optimisation"
        if plan.accumulate > 1:
            raise ConfigError(f"train.accumulate {plan.accumulate}: {manual}; accumulate in training_step()")
        if plan.clip is not None:
            raise ConfigError(f"train.clip {plan.clip:g}: {manual}; call self.clip_gradients() in training_step()")
        if plan.precision == "fp16":
            raise ConfigError(f"train.precision fp16: {manual}, which has no scaling of the loss; use bf16")
    if plan.asynchronous and schedulers:
        raise ConfigError(f"{name} has learning-rate schedulers, which need common steps; use allreduce, or sharded")
    for hook in _ASYNCHRONOUS_HOOKS:
        if plan.asynchronous and is_overridden(hook, module):
            raise ConfigError(
                f"{name} overrides {hook}(): an asynchronous training has no common epochs; use allreduce"
            )
        if plan.background_validation and "validation" in hook and is_overridden(hook, module):
            raise ConfigError(f"train.validation background: {name} overrides {hook}(); use shared")
    if plan.background_validation and any(each.plateau for each in schedulers):
        raise ConfigError(f"train.validation background: {name} has a scheduler that needs its result; use shared")
