"""What a study and its trials are, for client and server."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from clew.client.job import Line
from clew.core.config import Section
from clew.tuning.config import TuneConfig

State: TypeAlias = Literal["waiting", "running", "complete", "pruned", "failed"]
Number = Annotated[int, Field(ge=0, le=10_000_000)]
Value = Annotated[float, Field(allow_inf_nan=True)]
Values = Annotated[tuple[Value, ...], Field(max_length=100)]


class NewStudy(Section):
    """A study to be kept on the server: the space is data, and nothing is run there."""

    name: Annotated[str, Field(pattern=r"^[^/\\\s\x00][^\\\n\r\t\x00]{0,199}$")]
    tune: TuneConfig
    """As the section `tune` of a YAML: space, objective, trials, sampler, pruner. Keys of the space are any words."""
    epochs: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Steps of a whole trial, for pruners that count."""
    group: Line | None = None
    elsewhere: bool = False
    """Its trials are asked for elsewhere, and pushed: it cannot be asked here. The same name is the same study."""


class StudyRow(Section):
    """A study in a list."""

    id: int
    name: str
    owner: str
    group: str | None
    elsewhere: bool
    objectives: tuple[dict[str, Any], ...]
    trials: int
    """How many are wanted."""
    counts: dict[str, int]
    """Trials there are, by state."""
    best: tuple[dict[str, Any], ...]
    """The best trial, or the front."""
    job: int | None
    created: float
    updated: float


class StudyFacts(StudyRow):
    """With its settings."""

    tune: dict[str, Any]


class Trial(Section):
    """A trial as it stands."""

    number: Number
    state: State
    settings: dict[str, Any]
    values: Values = ()
    reports: dict[int, float | None] = {}
    """The first objective, by step."""
    reason: Annotated[str, Field(max_length=2000)] = ""
    seconds: float = 0.0
    attempts: int = 1
    begun: float = 0.0
    run: str = ""
    """What its run is called, where it is one."""


class Trials(Section):
    """Trials of a study that goes on elsewhere."""

    trials: Annotated[tuple[Trial, ...], Field(max_length=1000)]


class Ask(Section):
    """Trials wanted."""

    count: Annotated[int, Field(ge=1, le=1000)] = 1
    within: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Seconds after which a trial that was not told goes to the next who asks."""


class Asked(Section):
    """A trial to be done."""

    trial: int
    settings: dict[str, Any]
    lease: str
    """Whose it is: `report` and `tell` may give it, and are refused once the trial is another's."""


class Told(Section):
    """How a trial ended: one of `values`, `pruned` and `failed`."""

    trial: Number
    values: Values = ()
    pruned: bool = False
    failed: Line | None = None
    lease: Line | None = None


class Reported(Section):
    """A first look at the objective."""

    trial: Number
    step: Annotated[int, Field(ge=1, le=2**31 - 1)]
    value: Value
    lease: Line | None = None


class Verdict(Section):
    """What becomes of a trial."""

    prune: bool


class Heard(Section):
    """Whether it was news; told twice, the first time counts."""

    told: bool
