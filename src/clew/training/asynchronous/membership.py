"""Who takes part in an asynchronous training, and how each is doing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from clew.training.asynchronous.worker import Part


@dataclass
class Member:
    """A worker that is there."""

    host: str = ""
    batches: int = 0
    samples: int = 0
    seconds: float = 0.0
    wait: float = 0.0
    communicate: float = 0.0
    idle: bool = True
    version: int = 0
    """Which version of the weights it computes with."""
    state: Tensor | None = None
    asked: bool = False
    """Whether its state is wanted."""
    restore: Tensor | None = None
    """A state it should go on from."""
    bad: int = 0
    """Updates that were not finite."""

    def add(self, report: Mapping[str, Any]) -> None:
        """What it says it has done."""
        self.batches += sum(count for _, count in report["done"])
        self.samples += report["samples"]
        self.seconds += report["seconds"]
        self.wait += report["wait"]
        self.communicate += report["communicate"]

    def facts(self) -> dict[str, Any]:
        """For the records."""
        times = {"seconds": self.seconds, "wait": self.wait, "communicate": self.communicate}
        return {"host": self.host, "batches": self.batches, "samples": self.samples} | {
            name: round(value, 3) for name, value in times.items()
        }


class Members(dict[int, Member]):
    """The workers that are there, by number; and those that were."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: dict[int, Member] = {}

    def leave(self, peer: int) -> Member | None:
        """One is gone; None if it was not there."""
        member = self.pop(peer, None)
        if member is not None:
            self.lost[peer] = member
        return member

    def busy(self) -> list[int]:
        """Those that have something to do."""
        return [peer for peer, member in self.items() if not member.idle]

    def silent(self, heard: Mapping[int, float], seconds: float) -> list[int]:
        """Those that gave no sign of life for so long."""
        now = time.monotonic()
        return [peer for peer in self if now - heard.get(peer, 0.0) > seconds]

    def want_states(self) -> None:
        """Each is to be asked for its state."""
        for member in self.values():
            member.asked = True

    @property
    def answered(self) -> bool:
        """Whether all that were asked have sent their states."""
        return not any(member.asked for member in self.values())

    def states(self) -> list[Tensor]:
        """What they sent last."""
        return [member.state for member in self.values() if member.state is not None]

    def facts(self) -> dict[str, Any]:
        """For the records, of those that are gone too."""
        return {str(peer): member.facts() for peer, member in sorted({**self.lost, **self}.items())}


@dataclass
class Cluster:
    """Who takes part besides the coordinator."""

    own: Part
    """The coordinator's part of the weights."""
    workers: int = 0
    """How many will come for sure; they are waited for at the end, so that nobody speaks to an empty room."""
    shards: list[Part] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)


def split(length: int, masters: Sequence[int]) -> list[Part]:
    """Equal parts of a vector for these masters."""
    edges = [length * place // len(masters) for place in range(len(masters) + 1)]
    return [Part(peer, edges[place], edges[place + 1]) for place, peer in enumerate(masters)]
