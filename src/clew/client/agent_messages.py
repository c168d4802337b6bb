"""Messages between an agent and the server."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from clew.client.job import HeldJob, Id, JobOrder, Line, Name, Resources, Slots, Uid
from clew.core.config import Section


class AgentRegistration(Section):
    """What an agent sends first: its name and its resources."""

    name: Name
    uid: Uid
    """Identifies the agent's folder, and so distinguishes agents with the same name."""
    slots: Slots
    group: Line | None = None
    """The group whose jobs it runs, in addition to its owner's."""
    host: Line = ""
    version: Line = ""


class MachineLoad(Section):
    """How busy a machine is, in percent."""

    cpu: Annotated[float, Field(ge=0, le=100)] = 0
    memory: Annotated[float, Field(ge=0, le=100)] = 0


class Poll(Section):
    """An agent's request for work."""

    held: Annotated[tuple[HeldJob, ...], Field(max_length=10_000)] = ()
    """All jobs that it holds, including those whose end it has not reported yet."""
    load: MachineLoad | None = None
    wait: Annotated[float, Field(ge=0, le=60)] = 20
    """Seconds to wait for something to do."""


class PollAnswer(Section):
    """The answer to a poll."""

    orders: tuple[JobOrder, ...] = ()
    """Jobs to start."""
    cancel: tuple[Id, ...] = ()
    """Jobs to end; the agent reports their end."""
    drop: tuple[Id, ...] = ()
    """Jobs that do not belong to the agent any more; it ends them without a report."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.orders or self.cancel or self.drop)


class AgentInfo(Section):
    """An agent, as the server lists it."""

    id: int
    name: str
    owner: str
    group: str | None
    host: str
    version: str
    slots: Slots
    used: Resources | None
    """Resources of its jobs; null if it has none."""
    jobs: int
    load: MachineLoad | None
    seen: float
    """Time of its last contact, in seconds since 1970."""
    alive: bool


class RegisteredAgent(Section):
    """The answer to a registration."""

    id: int
    lease: float
    """Seconds without contact after which the agent loses its jobs."""


class ResultReceipt(Section):
    """The answer to a reported result."""

    accepted: bool
    """False if the job does not belong to the agent any more."""


class LogSize(Section):
    """How much of a log the server has."""

    size: int
    """Bytes."""
