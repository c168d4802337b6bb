"""What `configure_optimizers` returns, in all shapes that Lightning accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from clew.errors import RecipeError, nearest
from clew.models.lightning.refusals import is_overridden, module_place

_KEYS = ("scheduler", "interval", "frequency", "monitor", "strict", "reduce_on_plateau", "name")
"""Keys of a dictionary that describes a scheduler."""


@dataclass(frozen=True)
class Scheduler:
    """A learning-rate scheduler, and when it steps."""

    scheduler: Any
    interval: str = "epoch"
    frequency: int = 1
    monitor: str | None = None
    strict: bool = True
    plateau: bool = False
    """Whether its step takes a metric."""

    def is_due(self, interval: str, count: int) -> bool:
        """Return whether it steps now, after `count` steps or epochs."""
        return self.interval == interval and count % self.frequency == 0


def read_optimizers(module: Any) -> tuple[list[Optimizer], list[Scheduler]]:
    """Call `configure_optimizers` and return the optimisers and schedulers.

    Raises:
        RecipeError: It returned something that Lightning does not accept either.
    """
    optimizers, entries, monitor = _split(module, module.configure_optimizers())
    place = f"{module_place(module)}.configure_optimizers()"
    if module.automatic_optimization and len(optimizers) != 1:
        hint = "set self.automatic_optimization = False and step them in training_step()"
        raise RecipeError(f"{place} returned {len(optimizers)} optimisers, and optimisation is automatic; {hint}")
    schedulers = [_scheduler(entry, monitor, place, manual=not module.automatic_optimization) for entry in entries]
    for each in schedulers:
        if getattr(each.scheduler, "optimizer", optimizers[0] if optimizers else None) not in optimizers:
            raise RecipeError(f"{place}: a scheduler belongs to an optimiser that was not returned")
        if not hasattr(each.scheduler, "step") and not is_overridden("lr_scheduler_step", module):
            raise RecipeError(f"{place}: {type(each.scheduler).__name__} has no step(); define lr_scheduler_step()")
    return optimizers, schedulers


def _split(module: Any, returned: Any) -> tuple[list[Optimizer], list[Any], str | None]:
    """Return optimisers, schedulers or their dictionaries, and the metric that a plain scheduler follows."""
    if isinstance(returned, Optimizer):
        return [returned], [], None
    if isinstance(returned, Mapping):
        return [_optimizer(module, returned)], _of_dictionary(returned), returned.get("monitor")
    if _is_pair_of_lists(returned):
        schedulers = returned[1] if isinstance(returned[1], list) else [returned[1]]
        return list(returned[0]), schedulers, None
    if isinstance(returned, Sequence) and returned and all(isinstance(each, Mapping) for each in returned):
        optimizers = [_optimizer(module, each) for each in returned]
        return optimizers, [entry for each in returned for entry in _of_dictionary(each)], None
    if isinstance(returned, Sequence) and _all_optimizers(returned):
        return list(returned), [], None
    shown = "None" if returned is None else f"a {type(returned).__name__}"
    known = (
        "return an optimiser, a list of them, ([optimisers], [schedulers]) or {'optimizer': ..., 'lr_scheduler': ...}"
    )
    raise RecipeError(f"{module_place(module)}.configure_optimizers() returned {shown}; {known}")


def _is_pair_of_lists(returned: Any) -> bool:
    is_pair = isinstance(returned, Sequence) and len(returned) == 2 and isinstance(returned[0], list)
    return is_pair and _all_optimizers(returned[0])


def _all_optimizers(items: Sequence[Any]) -> bool:
    return all(isinstance(each, Optimizer) for each in items)


def _optimizer(module: Any, entry: Mapping[str, Any]) -> Optimizer:
    optimizer = entry.get("optimizer")
    if not isinstance(optimizer, Optimizer):
        keys = ", ".join(map(str, entry))
        place = module_place(module)
        raise RecipeError(f"{place}.configure_optimizers() returned a dictionary without an 'optimizer'; it has {keys}")
    return optimizer


def _of_dictionary(entry: Mapping[str, Any]) -> list[Any]:
    return [entry["lr_scheduler"]] if "lr_scheduler" in entry else []


def _scheduler(entry: Any, monitor: str | None, place: str, *, manual: bool) -> Scheduler:
    settings = dict(entry) if isinstance(entry, Mapping) else {"scheduler": entry}
    for key in settings.keys() - {*_KEYS}:
        raise RecipeError(f"{place}: a scheduler has no '{key}'{nearest(str(key), _KEYS)}")
    scheduler = settings.get("scheduler")
    if scheduler is None:
        raise RecipeError(f"{place}: a dictionary of a scheduler needs the key 'scheduler'")
    interval, frequency = settings.get("interval", "epoch"), settings.get("frequency", 1)
    if interval not in ("step", "epoch"):
        raise RecipeError(f"{place}: interval '{interval}' of a scheduler must be 'step' or 'epoch'")
    plateau = bool(settings.get("reduce_on_plateau", isinstance(scheduler, ReduceLROnPlateau)))
    monitor = settings.get("monitor", monitor)
    if plateau and monitor is None and not manual:
        raise RecipeError(f"{place}: {type(scheduler).__name__} needs 'monitor', the name of the metric it follows")
    return Scheduler(scheduler, interval, frequency, monitor, bool(settings.get("strict", True)), plateau)
