"""Messages about studies and their trials, shared by client and server."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import FailFast, Field

from clew.client.job import Line
from clew.core.config import Section
from clew.tuning.config import TuneConfig

State: TypeAlias = Literal["waiting", "running", "complete", "pruned", "failed"]
Number = Annotated[int, Field(ge=0, le=10_000_000)]
Value = Annotated[float, Field(allow_inf_nan=True)]
Values = Annotated[tuple[Value, ...], Field(max_length=100)]


class NewStudy(Section):
    """A study to create on the server. The search space is data; the server runs no trial."""

    name: Annotated[str, Field(pattern=r"^[^/\\\s\x00][^\\\n\r\t\x00]{0,199}$")]
    tune: TuneConfig
    """The section `tune` of a YAML file: space, objective, trials, sampler, pruner.

    Keys of the space are free names.
    """
    epochs: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Steps of a complete trial, for pruners that count them."""
    group: Line | None = None
    external: bool = False
    """The trials are proposed elsewhere and pushed here. The same name is then the same study."""


class StudyRow(Section):
    """A study in a list."""

    id: int
    name: str
    owner: str
    group: str | None
    external: bool
    objectives: tuple[dict[str, Any], ...]
    trials: int
    """The number of trials to run."""
    counts: dict[str, int]
    """The number of trials by state."""
    best: tuple[dict[str, Any], ...]
    """The best trial, or the Pareto front."""
    job: int | None
    created: float
    updated: float


class StudyDetail(StudyRow):
    """A study with its settings."""

    tune: dict[str, Any]


class Trial(Section):
    """A trial: its settings and its result so far."""

    number: Number
    state: State
    settings: dict[str, Any]
    values: Values = ()
    """The objectives of a complete trial."""
    reports: dict[int, float | None] = {}
    """The first objective, by step."""
    reason: Annotated[str, Field(max_length=2000)] = ""
    """Why it failed or was pruned."""
    seconds: float = 0.0
    attempts: int = 1
    started: float = 0.0
    """Seconds since 1970."""
    run: str = ""
    """The name of its run, if it has one."""
    job: int | None = None
    """Its job, if the trials of the study are jobs."""


class TrialList(Section):
    """Trials of an external study."""

    trials: Annotated[tuple[Trial, ...], FailFast(), Field(max_length=1000)]


class AskRequest(Section):
    """A request for trials."""

    count: Annotated[int, Field(ge=1, le=1000)] = 1
    within: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Seconds after which a trial without a result is proposed again."""


class AssignedTrial(Section):
    """A trial to run."""

    trial: int
    settings: dict[str, Any]
    lease: str
    """`report` and `tell` may send it; they are refused once the trial was proposed to another process."""


class TrialResult(Section):
    """The result of a trial: one of `values`, `pruned` and `failed`."""

    trial: Number
    values: Values = ()
    pruned: bool = False
    failed: Line | None = None
    """Why it failed."""
    lease: Line | None = None
    reason: Line = ""
    """Why it was pruned."""
    spread: Values = ()
    """Standard deviation of the objectives over folds."""
    seconds: Annotated[float, Field(ge=0)] = 0.0
    cpu: Annotated[float, Field(ge=0)] = 0.0
    """Processor time of all its processes, in seconds."""
    attempts: Annotated[int, Field(ge=1)] = 1
    started: Annotated[float, Field(ge=0)] = 0.0
    """Seconds since 1970; 0 if unknown."""


class IntermediateValue(Section):
    """The first objective of a trial at a step."""

    trial: Number
    step: Annotated[int, Field(ge=1, le=2**31 - 1)]
    value: Value
    lease: Line | None = None


class PruneDecision(Section):
    """The answer to an intermediate value."""

    prune: bool


class TellReceipt(Section):
    """The answer to a result."""

    accepted: bool
    """False if a result was reported before; the first one counts."""
