"""The space of a study: in which order its parameters are asked for, and whether the settings can take them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from clew.data.prepare.config import PrepareConfig
from clew.errors import ConfigError
from clew.recipe import Recipe
from clew.training.config import TrainConfig
from clew.tuning.config import Parameter, TuneConfig

Space = Mapping[str, Parameter]
_FIXED = ("recipe", "prepare", "tune")
"""Sections that a trial cannot change: its data is there already."""


class Template(Protocol):
    """The settings that a study varies: what `clew.settings.load_settings` gives."""

    @property
    def recipe(self) -> Recipe:
        """What is trained."""

    @property
    def prepare(self) -> PrepareConfig:
        """How its data was made."""

    @property
    def train(self) -> TrainConfig:
        """How it is trained."""

    @property
    def tune(self) -> TuneConfig | None:
        """The study."""

    @property
    def data(self) -> dict[str, Any]:
        """All of it as plain YAML types."""

    def changed(self, values: Mapping[str, Any], source: str) -> Template:
        """The same with other values at dotted keys; raises ConfigError where they do not fit."""


def dependency_order(space: Space) -> list[str]:
    """The keys, each behind those it depends on.

    Raises:
        ConfigError: conditions go round in a circle.
    """
    found: list[str] = []
    while len(found) < len(space):
        ready = [key for key, each in space.items() if key not in found and all(name in found for name in each.when)]
        if not ready:
            circle = ", ".join(key for key in space if key not in found)
            raise ConfigError(f"tune.space: the conditions of {circle} go round in a circle")
        found += ready
    return found


def suggest_values(trial: Any, space: Space) -> dict[str, Any]:
    """A value for every parameter whose conditions hold, from a trial of Optuna's: values it has already stay."""
    values: dict[str, Any] = {}
    for key in dependency_order(space):
        if space[key].holds(values):
            values[key] = _suggested(trial, key, space[key])
    return values


def _suggested(trial: Any, key: str, parameter: Parameter) -> Any:
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
    """What Optuna kept of a trial, as settings."""
    return {key: space[key].value(params[key]) for key in space if key in params}


def grid_values(space: Space) -> dict[str, list[Any]]:
    """All values of every parameter, as Optuna keeps them."""
    found: dict[str, list[Any]] = {}
    for key, parameter in space.items():
        bounds = parameter.bounds
        if bounds is None:
            found[key] = parameter.labels()
            continue
        step = parameter.step or 1
        count = int((bounds[1] - bounds[0]) / step + 1e-9) + 1
        each = [bounds[0] + place * step for place in range(count)]
        found[key] = [int(value) if parameter.integer else float(value) for value in each]
    return found


def check_space(template: Template, config: TuneConfig, prepared: Mapping[str, Any]) -> None:
    """Try every end of every range and every choice on the settings, before the first trial.

    `prepared` are the settings that the dataset depends on: they cannot be searched without preparing anew.

    Raises:
        ConfigError: a key is unknown, cannot be searched, or does not take a value.
    """
    if not config.space:
        raise ConfigError(
            "tune.space is empty; say what is searched: tune: {space: {train.optimizer.lr: {log: [...]}}}"
        )
    dependency_order(config.space)
    for key, parameter in config.space.items():
        section = key.partition(".")[0]
        if section in _FIXED:
            raise ConfigError(f"tune.space: {key} cannot be searched; a trial only trains")
        if section in prepared:
            told = "the dataset was prepared with it; make a dataset for each value and search train.dataset"
            raise ConfigError(f"tune.space: {key} cannot be searched: {told}")
        given = _conditions(config.space, key)
        for value in _samples(parameter):
            _try(template, {**given, key: value}, key, parameter)


def _try(template: Template, values: Mapping[str, Any], key: str, parameter: Parameter) -> None:
    try:
        template.changed(values, f"tune.space.{key}")
    except ConfigError as error:
        whole = parameter.bounds is not None and "valid integer" in str(error)
        raise ConfigError(f"{error}{'; add `integer: true` or a whole `step`' if whole else ''}") from None


def _conditions(space: Space, key: str) -> dict[str, Any]:
    """Values under which a parameter is asked for."""
    given: dict[str, Any] = {}
    for name, wanted in space[key].when.items():
        given |= _conditions(space, name)
        given[name] = wanted[0] if isinstance(wanted, list) else wanted
    return given


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
    """A document with the values of a trial, and without its study."""
    from clew.core.config import Document, replaced

    changed = replaced(Document(dict(data)), values, "the trial").data
    return {name: each for name, each in changed.items() if name != "tune"}
