"""What agent and server say to each other."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from clew.client.job import Held, Id, Line, Name, Order, Resources, Slots, Uid
from clew.core.config import Section


class Introduction(Section):
    """An agent that says who it is."""

    name: Name
    uid: Uid
    """Of its folder: what tells it from another of the same name."""
    slots: Slots
    group: Line | None = None
    """Whose jobs it runs beside its owner's."""
    host: Line = ""
    version: Line = ""


class Load(Section):
    """How busy its machine is, in percent."""

    cpu: Annotated[float, Field(ge=0, le=100)] = 0
    memory: Annotated[float, Field(ge=0, le=100)] = 0


class Poll(Section):
    """What an agent says when it asks for work."""

    held: Annotated[tuple[Held, ...], Field(max_length=10_000)] = ()
    """All jobs it has, also those it has not told the end of."""
    load: Load | None = None
    wait: Annotated[float, Field(ge=0, le=60)] = 20
    """Seconds to wait for something to do."""


class Answer(Section):
    """What it is told."""

    orders: tuple[Order, ...] = ()
    """To be begun."""
    cancel: tuple[Id, ...] = ()
    """To be ended, and told of."""
    drop: tuple[Id, ...] = ()
    """Not its own any more: to be ended in silence."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.orders or self.cancel or self.drop)


class Agent(Section):
    """An agent as the server tells of it."""

    id: int
    name: str
    owner: str
    group: str | None
    host: str
    version: str
    slots: Slots
    used: Resources | None
    """By its jobs; null where it has none."""
    jobs: int
    load: Load | None
    seen: float
    alive: bool


class Known(Section):
    """The number of an agent that introduced itself."""

    id: int
    lease: float
    """Seconds after which silence costs it its jobs."""


class Kept(Section):
    """Whether a job is still its agent's."""

    kept: bool


class Size(Section):
    """How much of a log the server has."""

    size: int
