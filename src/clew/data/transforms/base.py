"""The contract of a transform, and fitting those that learn something from the data first."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from clew.core.config import Section
from clew.data.table import Table


class Transform(Section):
    """A pure function of a table: its settings are its fields, so two equal transforms do the same."""

    @abstractmethod
    def __call__(self, events: Table) -> Table:
        """The events, transformed."""


class Fitted(Transform):
    """A transform with numbers that may come from the data. Fitted or given by hand, they are its fields."""

    @property
    @abstractmethod
    def needs_fit(self) -> bool:
        """Whether numbers are still missing."""

    @abstractmethod
    def measure(self, events: Table) -> Any:
        """What one chunk of events contributes: small, picklable."""

    @abstractmethod
    def fitted(self, parts: Sequence[Any]) -> Self:
        """A copy with its numbers filled in. The result does not depend on the order of `parts`."""


def fit(
    transforms: Sequence[Transform],
    chunks: Callable[[], Iterable[Table]],
    measure: Callable[[Fitted, Sequence[Transform]], Sequence[Any]] | None = None,
) -> list[Transform]:
    """Fill in what is missing, each transform on events that passed those before it.

    `chunks` gives a fresh pass over the events for every transform that needs one; `measure`, where given,
    does such a pass elsewhere (in parallel, say).
    """

    def here(transform: Fitted, before: Sequence[Transform]) -> Sequence[Any]:
        return [transform.measure(apply(before, events)) for events in chunks()]

    done: list[Transform] = []
    for transform in transforms:
        if isinstance(transform, Fitted) and transform.needs_fit:
            transform = transform.fitted((measure or here)(transform, done))
        done.append(transform)
    return done


def apply(transforms: Iterable[Transform], events: Table) -> Table:
    """All of them, in order."""
    for transform in transforms:
        events = transform(events)
    return events
