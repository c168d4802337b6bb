"""What a job is, for everybody who handles one: client, server and agent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import from_json, to_json

from clew.core.config import Section

State: TypeAlias = Literal["waiting", "claimed", "running", "done", "failed", "cancelled", "lost"]
Kind: TypeAlias = Literal["train", "tune", "prepare", "evaluate", "bench"]
ACTIVE: tuple[State, ...] = ("claimed", "running")
"""With an agent."""
ENDS: tuple[State, ...] = ("done", "failed", "cancelled", "lost")
STOPPED = 75
"""The exit code of what can be resumed."""


def _plain(text: str) -> str:
    return text.replace("\x00", "�")  # PostgreSQL has no character 0


def _sendable(data: dict[str, Any]) -> dict[str, Any]:
    """What an answer, some levels down, and whoever reads it can hold."""
    try:
        from_json(to_json([[[[data]]]]))
    except ValueError as error:
        raise ValueError(f"it cannot be sent on: {error}") from None
    return data


Data = Annotated[dict[str, Any], AfterValidator(_sendable)]
Line = Annotated[str, Field(max_length=1000), AfterValidator(_plain)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,79}$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,79}\.py$")]
Code = Annotated[str, Field(max_length=500_000)]
Uid = Annotated[str, Field(pattern=r"^[0-9a-f]{8,32}$")]
Id = Annotated[int, Field(ge=1, le=2**63 - 1)]
_FEW = 16


class Slots(Section):
    """What an agent has to give."""

    cpus: Annotated[int, Field(ge=0, le=1_000_000)] = 1
    gpus: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    memory: Annotated[int, Field(ge=0, le=1 << 60)] = 0
    """Bytes."""
    nodes: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    site: Line | None = None
    """Whose scheduler it hands jobs to; None: they run beside it."""


class Resources(Section):
    """What a job needs. `cpus`, `gpus` and `memory` are per worker."""

    nodes: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    workers: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Processes that work together, on all nodes."""
    cpus: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    gpus: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    memory: Annotated[int, Field(ge=1, le=1 << 60)] | None = None
    """Bytes. The total of all workers is enforced; None: no limit, and none is reserved."""
    wall_time: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Seconds, enforced."""
    site: Line | None = None
    """The site where it must run; None: any agent."""

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
        """Whether an agent with these free slots can run it."""
        if self.site not in (None, free.site):
            return False
        enough = self.total_cpus <= free.cpus and self.total_gpus <= free.gpus and self.nodes <= free.nodes
        return enough and (self.total_memory or 0) <= free.memory


def left(slots: Slots, taken: Iterable[Resources]) -> Slots:
    """What remains of an agent's slots."""
    used = list(taken)
    return slots.model_copy(
        update={
            "cpus": max(slots.cpus - sum(each.total_cpus for each in used), 0),
            "gpus": max(slots.gpus - sum(each.total_gpus for each in used), 0),
            "memory": max(slots.memory - sum(each.total_memory or 0 for each in used), 0),
        }
    )


class Submission(Section):
    """A job to be done, as it is submitted."""

    kind: Kind = "train"
    name: Name
    """Of the job, and of the run, study or dataset that it makes."""
    spec: Data = {}
    """The document of settings, resolved; its recipe may be one of `files`."""
    files: Annotated[dict[FileName, Code], Field(max_length=_FEW)] = {}
    """Python files that the recipe is made of, by name: they travel with the job."""
    arguments: Annotated[tuple[Line, ...], Field(max_length=64)] = ()
    """More for the command line; for bench all of it."""
    of: Id | None = None
    """For evaluate: the job whose run is judged; it goes to the agent that has it."""
    resources: Resources = Resources()
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    """The higher, the sooner."""
    dataset: Line | None = None
    """A key, or a path on the agent's machine."""
    group: Line | None = None
    """Whose agents may run it, beside one's own."""
    requeue: Annotated[int, Field(ge=0, le=1000)] = 0
    """How often it may go back to the queue when it stopped early (exit code 75) or its agent was lost."""
    uid: Uid | None = None
    """Made by who submits: the same one sent again is the same job."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.kind == "evaluate":
            if self.of is None:
                raise ValueError("evaluate needs `of`, the job whose run is judged")
        elif self.kind == "bench":
            if not self.arguments:
                raise ValueError("bench needs arguments: the words after `clew bench`")
        elif not isinstance(self.spec.get("recipe"), str):
            raise ValueError("spec needs a recipe (`clew submit` sends the whole document)")
        if self.kind == "tune" and not isinstance(self.spec.get("tune"), dict):
            raise ValueError("tune needs a section `tune` in the spec")
        return self


class Job(Section):
    """A job as the server tells of it."""

    id: int
    name: str
    kind: Kind
    owner: str
    group: str | None
    state: State
    reason: str
    """Why it failed, waits again or was lost."""
    attempt: int
    """Counted from 1; 0 before the first."""
    agent: str | None
    run: int | None
    """The run that it records, where it has begun one; the newest of several."""
    priority: int
    resources: Resources
    dataset: str | None
    requeue: int
    cancelling: bool
    code: int | None
    """Exit code; negative: a signal."""
    memory: int | None
    """The most bytes that were seen in use."""
    retry_of: int | None
    created: float
    """Times are seconds since 1970."""
    started: float | None
    ended: float | None


class JobDetail(Job):
    """With all that it was submitted with."""

    spec: dict[str, Any]
    files: dict[str, str]
    arguments: tuple[str, ...]
    of: int | None


class JobEvent(Section):
    """Something that happened to a job."""

    id: int
    time: float
    kind: str
    message: str


class Order(Section):
    """A job as an agent gets it."""

    job: int
    key: str
    """That of no other job, of this server or another."""
    attempt: int
    kind: Kind
    name: str
    spec: dict[str, Any]
    files: dict[str, str]
    arguments: tuple[str, ...]
    of: str | None
    """The key of the job whose run is judged."""
    dataset: str | None
    places: tuple[str, ...] = ()
    """Where it is said to lie, if it is a key."""
    resources: Resources
    token: str
    """For this job's run alone, until it ends."""


class Held(Section):
    """A job that an agent has."""

    job: Id
    attempt: Id


class Result(Section):
    """How a job is, as its agent tells it."""

    attempt: Id
    state: Literal["queued", "running", "ended", "lost"]
    """`queued`: with a site's scheduler."""
    code: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    reason: Line = ""
    began: float | None = None
    ended: float | None = None
    memory: Annotated[int, Field(ge=0, le=1 << 60)] = 0
