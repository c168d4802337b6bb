"""What a job is: its submission, resources, states and result. Shared by client, server and agent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import from_json, to_json

from clew.core.config import Section
from clew.errors import ConfigError
from clew.jobs.task import TrialSettings
from clew.storage import check_scheme, is_url, mask_secrets

State: TypeAlias = Literal["waiting", "claimed", "running", "done", "failed", "cancelled", "lost"]
Kind: TypeAlias = Literal["train", "tune", "prepare", "evaluate", "bench", "script", "trial"]
ACTIVE_STATES: tuple[State, ...] = ("claimed", "running")
"""States of a job that an agent holds."""
FINAL_STATES: tuple[State, ...] = ("done", "failed", "cancelled", "lost")
RESUMABLE_EXIT_CODE = 75
"""Exit code of a process that stopped early and can be resumed."""


def _plain(text: str) -> str:
    return text.replace("\x00", "�")  # PostgreSQL has no character 0


def _sendable(data: dict[str, Any]) -> dict[str, Any]:
    """Check that data can be sent as JSON, also some levels deeper in an answer."""
    try:
        from_json(to_json([[[[data]]]]))
    except ValueError as error:
        raise ValueError(f"it cannot be sent as JSON: {error}") from None
    return data


def _known_scheme(location: str) -> str:
    try:
        return check_scheme(location)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _store_location(location: str) -> str:
    """Check where the outputs of a job go: a URL of a store, or a full path on the agent's machine."""
    _known_scheme(location)
    if mask_secrets(location) != location:
        raise ValueError("contains a password or token, and jobs are saved on the server; use the agent's environment")
    if not is_url(location) and not location.startswith("/"):
        raise ValueError("expected a URL of a store (rucio:SCOPE:NAME, s3://, root://) or a full path")
    return location


Data = Annotated[dict[str, Any], AfterValidator(_sendable)]
Line = Annotated[str, Field(max_length=1000), AfterValidator(_plain)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,79}$")]
FileName = Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]{0,79}/){0,4}[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}$")]
"""A path inside the job's folder of code. No part begins with a dot, so it cannot leave the folder."""
MAX_CODE = 500_000
"""Characters of one file that is sent with a job."""
Code = Annotated[str, Field(max_length=MAX_CODE)]
StoreLocation = Annotated[Line, AfterValidator(_store_location)]
Uid = Annotated[str, Field(pattern=r"^[0-9a-f]{8,32}$")]
Id = Annotated[int, Field(ge=1, le=2**63 - 1)]
MAX_FILES = 64
"""Files that are sent with a job."""


class Slots(Section):
    """Resources of an agent."""

    cpus: Annotated[int, Field(ge=0, le=1_000_000)] = 1
    gpus: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    memory: Annotated[int, Field(ge=0, le=1 << 60)] = 0
    """Bytes."""
    nodes: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    site: Line | None = None
    """The site whose scheduler runs its jobs; None: the agent starts them on its own machine."""
    containers: bool = False
    """Whether it can run container images."""


class Resources(Section):
    """Resources of a job. `cpus`, `gpus` and `memory` are per worker."""

    nodes: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    workers: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Processes that work together, on all nodes."""
    cpus: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    gpus: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    memory: Annotated[int, Field(ge=1, le=1 << 60)] | None = None
    """Bytes. A job whose workers together use more is ended. None: no limit, and no memory is reserved."""
    wall_time: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Seconds. A job that takes longer is ended."""
    site: Line | None = None
    """The site where it must run; None: any agent."""
    container: Annotated[Line, Field(min_length=1)] | None = None
    """The container image that it runs in: a .sif file, a name or a URL; None: none, or the site's."""

    @model_validator(mode="after")
    def _check_nodes(self) -> Self:
        if self.nodes > self.workers:
            raise ValueError(f"{self.nodes} nodes for {self.workers} workers: every node needs at least one worker")
        return self

    @property
    def total_cpus(self) -> int:
        """Cores of all workers."""
        return self.workers * self.cpus

    @property
    def total_gpus(self) -> int:
        """GPUs of all workers."""
        return self.workers * self.gpus

    @property
    def total_memory(self) -> int | None:
        """Bytes of all workers; None: no limit."""
        return None if self.memory is None else self.workers * self.memory

    def fits(self, free: Slots) -> bool:
        """Return whether an agent with these free slots can run the job."""
        if self.site not in (None, free.site) or (self.container is not None and not free.containers):
            return False
        enough = self.total_cpus <= free.cpus and self.total_gpus <= free.gpus and self.nodes <= free.nodes
        return enough and (self.total_memory or 0) <= free.memory


def remaining_slots(slots: Slots, resources: Iterable[Resources]) -> Slots:
    """Return the free slots of an agent whose jobs use these resources."""
    used = list(resources)
    return slots.model_copy(
        update={
            "cpus": max(slots.cpus - sum(each.total_cpus for each in used), 0),
            "gpus": max(slots.gpus - sum(each.total_gpus for each in used), 0),
            "memory": max(slots.memory - sum(each.total_memory or 0 for each in used), 0),
        }
    )


class Submission(Section):
    """A job, as a user submits it."""

    kind: Kind = "train"
    name: Name
    """The name of the job, and of the run, study or dataset that it makes."""
    spec: Data = {}
    """All settings. Its recipe may be one of `files`."""
    files: Annotated[dict[FileName, Code], Field(max_length=MAX_FILES)] = {}
    """The code that is sent with the job, by path: the recipe or script, and the modules that it imports."""
    arguments: Annotated[tuple[Line, ...], Field(max_length=64)] = ()
    """Further command-line arguments; for `bench` all of them; for `script` its file, then its arguments."""
    target_job: Id | None = None
    """For `evaluate`: the job whose run is evaluated, on the agent that ran it."""
    resources: Resources = Resources()
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    """Jobs with a higher priority start first."""
    dataset: Annotated[Line, AfterValidator(_known_scheme)] | None = None
    """The dataset: a key, a path on the agent's machine, or a URL of a store."""
    store: StoreLocation | None = None
    """Where its outputs go when it has succeeded: a URL of a store, or a full path on the agent's machine."""
    group: Line | None = None
    """A group whose agents may run it, in addition to the user's own agents."""
    requeue: Annotated[int, Field(ge=0, le=1000)] = 0
    """How often it returns to the queue after it stopped early (exit code 75) or its agent was lost."""
    trials_as_jobs: bool = False
    """For `tune`: every trial, or pack of trials, is a job that any agent may take. `resources` are those of one."""
    uid: Uid | None = None
    """Chosen by the client: a submission with the same uid is the same job."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind == "evaluate":
            if self.target_job is None:
                raise ValueError("evaluate needs `target_job`, the job whose run is evaluated")
        elif self.kind == "bench":
            if not self.arguments:
                raise ValueError("bench needs arguments: those of `clew bench`")
        elif self.kind == "script":
            if not self.arguments or self.arguments[0] not in self.files:
                raise ValueError("script needs `arguments` that begin with one of its `files`")
        elif self.kind == "trial":
            raise ValueError("a trial belongs to a study: submit the study, with kind `tune` and `trials_as_jobs`")
        elif not isinstance(self.spec.get("recipe"), str):
            raise ValueError("spec needs a recipe (`clew submit` sends the whole document)")
        if self.kind == "tune" and not isinstance(self.spec.get("tune"), dict):
            raise ValueError("tune needs a section `tune` in the spec")
        if self.trials_as_jobs:
            self._check_trials()
        return self

    def _check_trials(self) -> None:
        if self.kind != "tune":
            raise ValueError(f"trials_as_jobs: only for tune, not for {self.kind}")
        if self.resources.nodes > 1:
            raise ValueError("trials_as_jobs: the ranks of a trial run on one node; nodes must be 1")
        if self.spec["tune"].get("storage", "journal") != "journal":
            raise ValueError("trials_as_jobs: the server stores the study; remove tune.storage")
        if self.store is not None:
            raise ValueError("trials_as_jobs: no agent has all trials; store the best run when the study is done")


class Job(Section):
    """A job, as the server lists it."""

    id: int
    name: str
    kind: Kind
    owner: str
    group: str | None
    state: State
    reason: str
    """Why it failed, was requeued or was lost."""
    attempt: int
    """The current attempt, counted from 1; 0 before the first."""
    agent: str | None
    run: int | None
    """The run that it records, if it has started one; the newest of several."""
    priority: int
    resources: Resources
    dataset: str | None
    """The dataset that it uses; of a preparation that is done, the key of the dataset that it made."""
    requeue: int
    cancelling: bool
    exit_code: int | None
    """Negative: the number of a signal."""
    peak_memory: int | None
    """Bytes."""
    stored: str | None = None
    """Where its outputs are, if it was submitted with a store."""
    retry_of: int | None
    study: int | None = None
    """The study whose trials are jobs: of the job that was submitted, and of its trials."""
    created: float
    """Times are seconds since 1970."""
    started: float | None
    ended: float | None


class JobDetail(Job):
    """A job with all that it was submitted with."""

    spec: dict[str, Any]
    files: dict[str, str]
    arguments: tuple[str, ...]
    target_job: int | None
    store: str | None = None


class JobEvent(Section):
    """An event in the history of a job."""

    id: int
    time: float
    kind: str
    message: str


class JobOrder(Section):
    """A job, as an agent receives it."""

    job: int
    key: str
    """Unique among all jobs of all servers."""
    attempt: int
    kind: Kind
    name: str
    spec: dict[str, Any]
    files: dict[str, str]
    arguments: tuple[str, ...]
    target_key: str | None
    """The key of the job whose run is evaluated."""
    dataset: str | None
    locations: tuple[str, ...] = ()
    """Registered locations of the dataset, if it is named by its key."""
    store: str | None = None
    """Where its outputs go."""
    resources: Resources
    token: str
    """A token for the run of this job, valid until the job ends."""
    study: int | None = None
    """For `trial`: the study."""
    trials: tuple[TrialSettings, ...] = ()
    """For `trial`: one trial, or those of a pack."""


class HeldJob(Section):
    """A job that an agent holds."""

    job: Id
    attempt: Id


class JobResult(Section):
    """The state of a job, as its agent reports it."""

    attempt: Id
    state: Literal["queued", "running", "ended", "lost"]
    """`queued`: in the queue of a site's scheduler."""
    code: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    reason: Line = ""
    stored: Line = ""
    """Where its outputs were stored."""
    began: float | None = None
    """When it started, in seconds since 1970."""
    ended: float | None = None
    memory: Annotated[int, Field(ge=0, le=1 << 60)] = 0
