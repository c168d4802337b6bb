"""Settings of tune. No torch and no Optuna here: the command line shows and checks them without."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from clew.core.config import Section

Direction = Literal["minimize", "maximize"]
Count = Annotated[int, Field(ge=1)]
Number = int | float
Scalar = bool | int | float | str | None
FORMS = ("uniform", "log", "choice")
_ONE_OF = f"give one of {', '.join(FORMS)}, as {{log: [1e-5, 1e-1]}} or {{choice: [64, 128]}}"
SAMPLERS = ("tpe", "cmaes", "gp", "nsga2", "random", "grid", "qmc")
PRUNERS = ("none", "asha", "hyperband", "median", "wilcoxon")
FACTS = ("parameters", "seconds", "cpu_seconds", "samples_per_second")
"""What `run/NAME` may be in an objective."""


_POWER = re.compile(r"[+-]?\d+[eE][+-]?\d+")


def _numbers(given: Any) -> Any:
    """YAML takes 1e-3 for text."""
    if not isinstance(given, (list, tuple)):
        return given
    return tuple(float(each) if isinstance(each, str) and _POWER.fullmatch(each) else each for each in given)


Pair = Annotated[tuple[Number, Number], BeforeValidator(_numbers)]
Choices = Annotated[tuple[Any, ...], Field(min_length=1), BeforeValidator(_numbers)]


class Parameter(Section):
    """What values a setting may take: one of `uniform`, `log` (both: lowest and highest) and `choice`."""

    uniform: Pair | None = None
    log: Pair | None = None
    choice: Choices | None = None
    step: Annotated[Number, Field(gt=0)] | None = None
    """Between two values of `uniform`, counted from the lowest."""
    integer: bool = False
    """Whole numbers only."""
    when: dict[str, Any] = {}
    """Only where other parameters of the space have these values (one each, or a list of them)."""

    @model_validator(mode="before")
    @classmethod
    def _a_form(cls, given: Any) -> Any:
        if not isinstance(given, (Mapping, cls)):
            raise ValueError(_ONE_OF)
        return given

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        given = [name for name in FORMS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(_ONE_OF)
        bounds = self.bounds
        if bounds is not None and not bounds[0] < bounds[1]:
            raise ValueError(f"the lowest value must be below the highest: {list(bounds)}")
        if self.log is not None and (self.log[0] <= 0 or self.step is not None):
            raise ValueError("log needs values above 0, and no step")
        if self.choice is not None and (self.integer or self.step is not None):
            raise ValueError("integer and step do not go with choice")
        if self.integer and any(float(each) != int(each) for each in (*(bounds or ()), self.step or 1)):
            raise ValueError("with integer, bounds and step are whole numbers")
        return self

    @property
    def bounds(self) -> tuple[Number, Number] | None:
        """Lowest and highest, where it is a number."""
        return self.uniform if self.uniform is not None else self.log

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether it is asked for, given the values of the parameters it depends on."""
        for name, wanted in self.when.items():
            allowed = wanted if isinstance(wanted, list) else [wanted]
            if name not in values or values[name] not in allowed:
                return False
        return True

    def labels(self) -> list[Scalar]:
        """The choices as Optuna keeps them: what is no scalar as JSON."""
        return [each if isinstance(each, Scalar) else json.dumps(each) for each in self.choice or ()]

    def value(self, label: Any) -> Any:
        """What a label of Optuna's stands for."""
        if self.choice is None:
            return label
        return self.choice[self.labels().index(label)]

    def label(self, value: Any) -> Any:
        """The label of a value."""
        return value if self.choice is None or isinstance(value, Scalar) else json.dumps(value)


class Objective(Section):
    """What is searched for."""

    metric: str
    """`val/NAME`: a metric of validation; `run/NAME`: parameters, seconds, cpu_seconds or samples_per_second."""
    direction: Direction = "minimize"

    @model_validator(mode="after")
    def _known(self) -> Self:
        kind, slash, name = self.metric.partition("/")
        if not slash or not name or kind not in ("val", "run"):
            raise ValueError(f"write val/METRIC or run/{{{','.join(FACTS)}}}, not '{self.metric}'")
        if kind == "run" and name not in FACTS:
            raise ValueError(f"run/{name}: choose from {', '.join(FACTS)}")
        return self

    @property
    def validated(self) -> str | None:
        """The name among metrics of validation, where it is one."""
        kind, _, name = self.metric.partition("/")
        return name if kind == "val" else None


class SamplerConfig(Section):
    """Who proposes what to try next."""

    name: Literal["tpe", "cmaes", "gp", "nsga2", "random", "grid", "qmc"] = "tpe"
    seed: int | None = None
    startup: Count | None = None
    """Trials at random before it begins to learn (tpe, cmaes, gp)."""
    population: Count | None = None
    """Of nsga2 and cmaes."""


class PrunerConfig(Section):
    """Who stops hopeless trials. A step is an epoch, or a fold where there are folds."""

    name: Literal["none", "asha", "hyperband", "median", "wilcoxon"] = "none"
    """asha: successive halving, asynchronous."""
    startup: Annotated[int, Field(ge=0)] = 5
    """Trials that end before median prunes."""
    warmup: Annotated[int, Field(ge=0)] = 1
    """Steps of every trial in which nothing is pruned."""
    reduction: Annotated[int, Field(ge=2)] = 3
    """asha and hyperband go on with one in so many."""
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """p-value of wilcoxon."""


class FoldsConfig(Section):
    """Each trial is trained on several splits of train and val together, and judged by the mean."""

    count: Annotated[int, Field(ge=2)]
    by: Literal["event", "file"] = "event"
    seed: int = 0


class TuneConfig(Section):
    """A study: which settings are searched, for what, how."""

    space: dict[str, Parameter] = {}
    """By key of the settings: `train.optimizer.lr: {log: [1e-5, 1e-1]}`."""
    objective: str | tuple[Objective, ...] = "val/loss"
    """One, with `direction`; or a list of {metric, direction} for a Pareto front."""
    direction: Direction = "minimize"
    trials: Count = 20
    sampler: SamplerConfig = SamplerConfig()
    pruner: PrunerConfig = PrunerConfig()
    folds: FoldsConfig | None = None
    storage: str = "journal"
    """journal: a file in the study's folder; sqlite: a database there; or a URL, as postgresql://user@host/name."""
    parallel: Count | None = None
    """Trials at a time; default: as many as fit."""
    ranks: Count = 1
    """Processes that train one trial together."""
    packed: Count | Literal["auto"] | None = None
    """Small models trained at once in one process, at most so many; auto: 16 on a processor, 256 on an accelerator.
    Trials that cannot share a pack are runs of their own."""
    lease_seconds: Annotated[float, Field(gt=0)] = 300.0
    """Without a sign of life for so long a trial is stale, and handed out again."""
    retries: Annotated[int, Field(ge=0)] = 3
    """How often a trial whose processes died or went silent is taken up again."""
    failures: Count = 10
    """Trials that fail one after the other end the study."""

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        data = dict(given)
        for name, key in (("sampler", "name"), ("pruner", "name"), ("folds", "count")):
            if isinstance(data.get(name), (str, int)) and not isinstance(data[name], bool):
                data[name] = {key: data[name]}
        return data

    @model_validator(mode="after")
    def _fits(self) -> Self:
        goals = self.objectives  # checks them
        if len(goals) > 1 and self.pruner.name != "none":
            raise ValueError("pruning needs one objective: with several no trial is the worse one")
        if self.pruner.name != "none" and goals[0].validated is None:
            raise ValueError(
                f"pruning needs a val/ objective, which is known while a trial runs, not {goals[0].metric}"
            )
        if self.packed is not None and self.ranks > 1:
            raise ValueError(f"packed trials have one process for many models: ranks cannot be {self.ranks}")
        for key, parameter in self.space.items():
            for name in parameter.when:
                if name not in self.space:
                    raise ValueError(f"space.{key}.when: '{name}' is not in the space")
        if self.sampler.name == "grid":
            for key, parameter in self.space.items():
                if parameter.choice is None and parameter.step is None and not parameter.integer:
                    raise ValueError(f"a grid needs choices, steps or integers: space.{key} has none")
                if parameter.when:
                    raise ValueError(f"a grid has no conditions: space.{key}.when")
        return self

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """What is searched for, as a list of one or more."""
        if isinstance(self.objective, str):
            return (Objective(metric=self.objective, direction=self.direction),)
        return self.objective
