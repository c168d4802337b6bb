"""A trial that a study proposes, and what a coordinator needs of a study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from clew.tuning.config import TuneConfig
from clew.tuning.folder import StudyFolder
from clew.tuning.snapshot import State

EXTERNAL = "external"
"""Prefix of the names of owners that are not coordinators."""


@dataclass(frozen=True)
class ProposedTrial:
    """A trial to be executed."""

    number: int
    values: dict[str, Any]
    """Values by key of the settings."""


class CoordinatedStudy(Protocol):
    """What a coordinator needs of a study: `study.Study` in a folder, or `assigned_study.AssignedStudy` on a server."""

    folder: StudyFolder
    config: TuneConfig

    def ask(self, owner: str) -> ProposedTrial | None:
        """Return the next trial, or None if all trials have been asked for."""

    def take_over(self, owner: str, alive: Callable[[str], bool]) -> list[ProposedTrial]:
        """Assign running trials whose owner is not alive to a new owner, and return them."""

    def owner(self, number: int) -> str:
        """Return the name of a trial's owner, or an empty string if it has none."""

    def only_external_owners(self) -> bool:
        """Return whether every running trial belongs to an external program."""

    def count(self) -> dict[State, int]:
        """Return the number of trials in each state."""

    def report(self, number: int, step: int, value: float) -> bool:
        """Report the first objective after a step, and return whether the trial should be pruned."""

    def tell(
        self,
        number: int,
        values: float | Sequence[float] | None = None,
        *,
        state: State = "complete",
        reason: str = "",
        **facts: Any,
    ) -> bool:
        """Record how a trial ended, and return whether this was new."""
