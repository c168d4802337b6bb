"""The settings of a study. This module imports neither torch nor Optuna, so that the command line stays fast."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from clew.core.config import Section
from clew.core.metric_direction import Direction, metric_direction
from clew.storage.locations import mask_secrets

Count = Annotated[int, Field(ge=1)]
Number = int | float
Scalar = bool | int | float | str | None
FORMS = ("uniform", "log", "choice")
_ONE_OF = f"choose one of {', '.join(FORMS)}, as {{log: [1e-5, 1e-1]}} or {{choice: [64, 128]}}"
MAX_GRID = 100_000
"""Points of a grid. Optuna holds all of them in memory."""
SAMPLERS = ("tpe", "cmaes", "gp", "nsga2", "random", "grid", "qmc")
PRUNERS = ("none", "asha", "hyperband", "median", "wilcoxon")
FACTS = ("parameters", "seconds", "cpu_seconds", "samples_per_second")
"""The names that `run/NAME` may have in an objective."""


_SCIENTIFIC = re.compile(r"[+-]?\d+[eE][+-]?\d+")


def _numbers(values: Any) -> Any:
    """Convert numbers such as 1e-3, which YAML reads as text."""
    if not isinstance(values, (list, tuple)):
        return values
    return tuple(float(item) if isinstance(item, str) and _SCIENTIFIC.fullmatch(item) else item for item in values)


Pair = Annotated[tuple[Number, Number], BeforeValidator(_numbers)]
Choices = Annotated[tuple[Any, ...], Field(min_length=1, max_length=10_000), BeforeValidator(_numbers)]


_OTHER_TOOLS = {"low", "high", "min", "max", "minval", "maxval", "lower", "upper", "values", "categories"}
"""Names of bounds and choices in Optuna, Ray Tune, Determined and other tools."""


def _same_range(value: Mapping[str, Any]) -> str:
    """Return the values of a parameter in the words of another tool as clew writes them."""
    choices = next((value[name] for name in ("values", "categories") if name in value), None)
    if choices is not None:
        listed = ", ".join(map(str, choices)) if isinstance(choices, (list, tuple)) else choices
        return f"write {{choice: [{listed}]}}"
    low = next((value[name] for name in ("low", "min", "minval", "lower") if name in value), "LOWEST")
    high = next((value[name] for name in ("high", "max", "maxval", "upper") if name in value), "HIGHEST")
    return f"write {{{'log' if value.get('log') else 'uniform'}: [{low}, {high}]}}"


class Parameter(Section):
    """The values of one setting: one of `uniform`, `log` (both: lowest and highest value) and `choice`."""

    uniform: Pair | None = None
    log: Pair | None = None
    choice: Choices | None = None
    step: Annotated[Number, Field(gt=0)] | None = None
    """Distance between two values of `uniform`, counted from the lowest value."""
    integer: bool = False
    """Whole numbers only."""
    when: dict[str, Any] = {}
    """Conditions: the values of other parameters (one value or a list each) under which this one is used."""

    @model_validator(mode="before")
    @classmethod
    def _is_mapping(cls, value: Any) -> Any:
        if not isinstance(value, (Mapping, cls)):
            raise ValueError(_ONE_OF)
        if isinstance(value, Mapping) and _OTHER_TOOLS & set(value):
            raise ValueError(f"choose one of {', '.join(FORMS)}: {_same_range(value)}")
        return value

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        forms = [name for name in FORMS if getattr(self, name) is not None]
        if len(forms) != 1:
            raise ValueError(_ONE_OF)
        bounds = self.bounds
        if bounds is not None and not bounds[0] < bounds[1]:
            raise ValueError(f"the lowest value must be below the highest: {list(bounds)}")
        if self.log is not None and (self.log[0] <= 0 or self.step is not None):
            raise ValueError("log needs values above 0 and takes no step")
        if self.choice is not None and (self.integer or self.step is not None):
            raise ValueError("choice takes neither integer nor step")
        if self.integer and any(float(number) != int(number) for number in (*(bounds or ()), self.step or 1)):
            raise ValueError("with integer, bounds and step must be whole numbers")
        return self

    @property
    def bounds(self) -> tuple[Number, Number] | None:
        """Lowest and highest value; None for `choice`."""
        return self.uniform if self.uniform is not None else self.log

    def is_active(self, values: Mapping[str, Any]) -> bool:
        """Return whether its conditions hold for these values of the other parameters."""
        for name, condition in self.when.items():
            allowed = condition if isinstance(condition, list) else [condition]
            if name not in values or values[name] not in allowed:
                return False
        return True

    @property
    def grid_size(self) -> int:
        """The number of values on a grid. They are not built: a range can have any number of them."""
        if self.bounds is None:
            return len(self.choice or ())
        return int((self.bounds[1] - self.bounds[0]) / (self.step or 1) + 1e-9) + 1

    def labels(self) -> list[Scalar]:
        """Return the choices as Optuna stores them: values that are not scalars as JSON."""
        return [self.label(value) for value in self.choice or ()]

    def value(self, label: Any) -> Any:
        """Return the value of a label."""
        if self.choice is None:
            return label
        return self.choice[self.labels().index(label)]

    def label(self, value: Any) -> Any:
        """Return the value as Optuna stores it."""
        return value if self.choice is None or isinstance(value, Scalar) else json.dumps(value)


class Objective(Section):
    """One objective of a study."""

    metric: str
    """`val/NAME` for a metric of the validation; `run/NAME` for parameters, seconds, cpu_seconds or
    samples_per_second."""
    direction: Direction | None = None
    """Default: that of the metric, if its name tells it: minimize for losses and errors, maximize for accuracies."""

    @model_validator(mode="after")
    def _check_metric(self) -> Self:
        kind, slash, name = self.metric.partition("/")
        if not slash or not name or kind not in ("val", "run"):
            raise ValueError(f"write val/METRIC or run/{{{','.join(FACTS)}}}, not '{self.metric}'")
        if kind == "run" and name not in FACTS:
            raise ValueError(f"run/{name}: choose from {', '.join(FACTS)}")
        metric_direction(self.metric, self.direction)
        return self

    @property
    def goal(self) -> Direction:
        """The direction in which the metric improves."""
        return metric_direction(self.metric, self.direction)

    def with_direction(self) -> Self:
        """Return the same objective with the direction set."""
        return self.model_copy(update={"direction": self.goal})

    @property
    def validated(self) -> str | None:
        """The name of the validation metric; None for `run/NAME`."""
        kind, _, name = self.metric.partition("/")
        return name if kind == "val" else None


class SamplerConfig(Section):
    """The algorithm that proposes the values of trials."""

    name: Literal["tpe", "cmaes", "gp", "nsga2", "random", "grid", "qmc"] = "tpe"
    """The algorithm."""
    seed: int | None = None
    """Seed of the proposals. null: another one in every study."""
    startup: Count | None = None
    """Random trials before it uses the results of earlier ones (tpe, cmaes, gp)."""
    population: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Population size of nsga2 and cmaes."""


class PrunerConfig(Section):
    """The algorithm that stops poor trials early. A step is an epoch, or a fold if there are folds."""

    name: Literal["none", "asha", "hyperband", "median", "wilcoxon"] = "none"
    """asha is asynchronous successive halving."""
    startup: Annotated[int, Field(ge=0)] = 5
    """Trials that must end before median prunes."""
    warmup: Annotated[int, Field(ge=0)] = 1
    """First steps of every trial in which nothing is pruned."""
    reduction: Annotated[int, Field(ge=2)] = 3
    """asha and hyperband continue one of this many trials."""
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """p-value threshold of wilcoxon."""


class FoldsConfig(Section):
    """Cross-validation: each trial is trained on several splits of train and val; the objective is the mean."""

    count: Annotated[int, Field(ge=2)]
    """Number of folds."""
    by: Literal["event", "file"] = "event"
    """What stays together in one fold."""
    seed: int = 0
    """Seed of the folds."""


class TuneConfig(Section):
    """A study: the settings to search, the objectives, and how trials are executed."""

    space: Annotated[dict[str, Parameter], Field(max_length=1000)] = {}
    """Parameters by key of the settings, for example `train.optimizer.lr: {log: [1e-5, 1e-1]}`."""
    objective: str | tuple[Objective, ...] = "val/loss"
    """One metric, with `direction`; or a list of {metric, direction} for a Pareto front."""
    direction: Direction | None = None
    """`minimize` or `maximize`. Default: that of the metric, if its name tells it."""
    trials: Count = 20
    """Number of trials in total."""
    sampler: SamplerConfig = SamplerConfig()
    pruner: PrunerConfig = PrunerConfig()
    folds: FoldsConfig | None = None
    """Cross-validation. null: one training per trial."""
    storage: str = "journal"
    """journal: a file in the study's folder; sqlite: a database in it; or a URL such as postgresql://user@host/name."""
    parallel: Count | None = None
    """Trials at a time. Default: as many as fit on the machine."""
    ranks: Count = 1
    """Processes per trial."""
    packed: Count | Literal["auto"] | None = None
    """Largest number of small models that one process trains together; auto: 16 on a processor, 256 on an accelerator.
    Trials that cannot share a pack are trained alone."""
    lease_seconds: Annotated[float, Field(gt=0)] = 300.0
    """Seconds without a heartbeat after which a trial is assigned again."""
    retries: Annotated[int, Field(ge=0)] = 3
    """How often a trial is restarted after its processes died or stopped responding."""
    failures: Count = 10
    """Number of failed trials in a row that ends the study."""

    @field_validator("storage")
    @classmethod
    def _no_secrets(cls, storage: str) -> str:
        if mask_secrets(storage) != storage:
            raise ValueError("contains a password, and settings are saved with the study; use PGPASSWORD or ~/.pgpass")
        return storage

    @model_validator(mode="before")
    @classmethod
    def _expand_short_forms(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        data = dict(value)
        for name, key in (("sampler", "name"), ("pruner", "name"), ("folds", "count")):
            if isinstance(data.get(name), (str, int)) and not isinstance(data[name], bool):
                data[name] = {key: data[name]}
        return data

    @model_validator(mode="after")
    def _check(self) -> Self:
        goals = self.objectives  # validates them
        if len(goals) > 1 and self.pruner.name != "none":
            raise ValueError("pruning needs one objective; remove the pruner or the other objectives")
        if self.pruner.name != "none" and goals[0].validated is None:
            raise ValueError(
                f"pruning needs a val/ objective, which is measured during training, not {goals[0].metric}"
            )
        if self.packed is not None and self.ranks > 1:
            raise ValueError(f"packed trials share one process: ranks cannot be {self.ranks}")
        for key, parameter in self.space.items():
            for name in parameter.when:
                if name not in self.space:
                    raise ValueError(f"space.{key}.when: '{name}' is not in the space")
        if self.sampler.name == "grid":
            for key, parameter in self.space.items():
                if parameter.choice is None and parameter.step is None and not parameter.integer:
                    raise ValueError(f"a grid needs choices, steps or integers; space.{key} has none of them")
                if parameter.when:
                    raise ValueError(f"a grid takes no conditions: remove space.{key}.when")
            points = math.prod(parameter.grid_size for parameter in self.space.values())
            if points > MAX_GRID:
                raise ValueError(
                    f"the grid has {points:.3g} points; at most {MAX_GRID:,} are allowed, use larger steps"
                )
        return self

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives as a tuple, with their directions set."""
        if isinstance(self.objective, str):
            return (Objective(metric=self.objective, direction=self.direction).with_direction(),)
        return tuple(objective.with_direction() for objective in self.objective)
