"""The search space of a study: the order of its parameters, their values, and whether the settings accept them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from clew.data.prepare.config import PrepareConfig
from clew.errors import ConfigError
from clew.recipe import Recipe
from clew.runs.folder import find_run_path
from clew.storage import absolute_locations, is_url
from clew.training.config import TrainConfig
from clew.tuning.config import Parameter, TuneConfig

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

Space = Mapping[str, Parameter]
_FIXED = ("recipe", "prepare", "tune")
"""Sections that a trial cannot change, because its data is prepared already."""
_PATHS = {"prepare": ("input", "output", "cache"), "train": ("dataset", "start_from")}
_EXAMPLE = "tune: {space: {train.optimizer.lr: {log: [...]}}}"


class Template(Protocol):
    """The settings that a study varies, as returned by `clew.settings.load_settings`."""

    @property
    def recipe(self) -> Recipe:
        """The recipe that is trained."""

    @property
    def prepare(self) -> PrepareConfig:
        """How the data was prepared."""

    @property
    def train(self) -> TrainConfig:
        """How a model is trained."""

    @property
    def tune(self) -> TuneConfig | None:
        """The study."""

    @property
    def data(self) -> dict[str, Any]:
        """All settings as plain YAML types."""

    def changed(self, values: Mapping[str, Any], source: str) -> Template:
        """Return a copy with other values at dotted keys. Raises ConfigError if they are not valid."""


def absolute_paths(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the paths in the settings of a study as absolute ones, by key: its trials are started in other folders.

    Args:
        data: The settings.
    """
    places = {f"{section}.{name}": data[section].get(name) for section, names in _PATHS.items() for name in names}
    paths = {key: absolute_locations(place) for key, place in places.items() if place is not None}
    start = places["train.start_from"]
    if start is not None and not is_url(start):  # a run may be named without its folder
        paths["train.start_from"] = str(find_run_path(start).absolute())
    return paths


def dependency_order(space: Space) -> list[str]:
    """Return the keys so that each comes after those that its conditions name.

    Raises:
        ConfigError: The conditions form a cycle.
    """
    order: list[str] = []
    while len(order) < len(space):
        ready = [key for key, each in space.items() if key not in order and all(name in order for name in each.when)]
        if not ready:
            cycle = ", ".join(key for key in space if key not in order)
            raise ConfigError(f"tune.space: the conditions of {cycle} form a cycle")
        order += ready
    return order


def planned_trials(config: TuneConfig) -> int:
    """Return the number of trials that a study runs: as many as requested, of a grid at most all its points."""
    if config.sampler.name != "grid":
        return config.trials
    return min(config.trials, math.prod(len(values) for values in grid_values(config.space).values()))


def suggest_values(trial: Any, space: Space) -> dict[str, Any]:
    """Return a value for every parameter whose conditions hold. Values that an Optuna trial already has are kept."""
    values: dict[str, Any] = {}
    for key in dependency_order(space):
        if space[key].is_active(values):
            values[key] = _suggest(trial, key, space[key])
    return values


def _suggest(trial: Any, key: str, parameter: Parameter) -> Any:
    bounds = parameter.bounds
    if bounds is None:
        return parameter.value(trial.suggest_categorical(key, parameter.labels()))
    low, high = bounds
    log = parameter.log is not None
    if parameter.integer:
        return trial.suggest_int(key, int(low), int(high), step=int(parameter.step or 1), log=log)
    step = None if parameter.step is None else float(parameter.step)
    return trial.suggest_float(key, float(low), float(high), step=step, log=log)


def settings_from_params(params: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """Return the parameters of an Optuna trial as settings."""
    return {key: space[key].value(params[key]) for key in space if key in params}


def frozen_trial(
    space: Space, settings: Mapping[str, Any], values: Sequence[float] | None, **extra: Any
) -> FrozenTrial | None:
    """Return an Optuna trial with these settings and objectives.

    Args:
        space: The search space.
        settings: Values by key. Keys that are not in the space are left out.
        values: The objectives; None for a trial that has not ended.
        extra: More arguments of `optuna.trial.create_trial`.

    Returns:
        The trial, or None if the settings are not in the space.
    """
    import optuna

    labels = {key: space[key].label(value) for key, value in settings.items() if key in space}
    fixed = optuna.trial.FixedTrial(labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            suggest_values(fixed, space)
            objectives: dict[str, Any] = {} if values is None else {"values": list(values)}
            return optuna.trial.create_trial(
                params=fixed.params, distributions=fixed.distributions, **objectives, **extra
            )
        except ValueError:
            return None


def grid_values(space: Space) -> dict[str, list[Any]]:
    """Return all values of every parameter in the form that Optuna stores."""
    grid: dict[str, list[Any]] = {}
    for key, parameter in space.items():
        bounds = parameter.bounds
        if bounds is None:
            grid[key] = parameter.labels()
            continue
        step = parameter.step or 1
        count = int((bounds[1] - bounds[0]) / step + 1e-9) + 1
        points = [bounds[0] + index * step for index in range(count)]
        grid[key] = [int(value) if parameter.integer else float(value) for value in points]
    return grid


def check_space(template: Template, config: TuneConfig, prepared: Mapping[str, Any]) -> None:
    """Try the bounds of every range and every choice on the settings, before the first trial.

    Args:
        template: The settings of the study.
        config: The section `tune`.
        prepared: The settings that the dataset depends on. They cannot be searched without preparing again.

    Raises:
        ConfigError: A key is unknown, cannot be searched, or does not accept a value.
    """
    if not config.space:
        raise ConfigError(f"tune.space is empty; name the settings to search: {_EXAMPLE}")
    dependency_order(config.space)
    for key, parameter in config.space.items():
        section = key.partition(".")[0]
        if section in _FIXED:
            raise ConfigError(f"tune.space: {key} cannot be searched; a trial only trains")
        if section in prepared:
            reason = "the dataset was prepared with it; prepare one dataset per value and search train.dataset"
            raise ConfigError(f"tune.space: {key} cannot be searched: {reason}")
        conditions = _conditions(config.space, key)
        for value in _samples(parameter):
            _try_values(template, {**conditions, key: value}, key, parameter)


def _try_values(template: Template, values: Mapping[str, Any], key: str, parameter: Parameter) -> None:
    try:
        template.changed(values, f"tune.space.{key}")
    except ConfigError as error:
        needs_integer = parameter.bounds is not None and "valid integer" in str(error)
        hint = "; add `integer: true` or a whole `step`" if needs_integer else ""
        raise ConfigError(f"{error}{hint}") from None


def _conditions(space: Space, key: str) -> dict[str, Any]:
    """Return values of other parameters under which a parameter is used."""
    values: dict[str, Any] = {}
    for name, allowed in space[key].when.items():
        values |= _conditions(space, name)
        values[name] = allowed[0] if isinstance(allowed, list) else allowed
    return values


def _samples(parameter: Parameter) -> Iterator[Any]:
    bounds = parameter.bounds
    if bounds is None:
        yield from parameter.choice or ()
        return
    kind = int if parameter.integer else float
    yield from (kind(bounds[0]), kind(bounds[1]))
    if not parameter.integer:
        step = parameter.step
        yield float(bounds[0]) + float(step if step is not None else (bounds[1] - bounds[0]) / 2.718281828)


def trial_document(data: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the values of a trial, without the section `tune`."""
    from clew.core.config import Document, with_values

    changed = with_values(Document(dict(data)), values, "the trial").data
    return {name: section for name, section in changed.items() if name != "tune"}
