"""The base classes of transforms, and fitting of transforms that need numbers from the data."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from clew.core.config import Section
from clew.data.table import Table


class Transform(Section):
    """Base class of transforms. A transform is a pure function of a table; its settings are its fields.

    Two transforms with equal fields do the same, so their results can be cached.

    Example:
        >>> class Double(Transform):
        ...     column: str
        ...
        ...     def __call__(self, events):
        ...         return events.join({self.column: 2 * events.fixed(self.column)})
        >>> Double(column="pt")(Table({"pt": [1.0, 2.0]})).fixed("pt").tolist()
        [2.0, 4.0]
    """

    @abstractmethod
    def __call__(self, events: Table) -> Table:
        """Return the transformed events."""


class FittedTransform(Transform):
    """Base class of transforms with numbers that are measured from the data, such as a mean. The numbers are fields;
    they
    can also be set by hand.

    Example:
        >>> class Centre(FittedTransform):
        ...     column: str
        ...     mean: float | None = None
        ...
        ...     @property
        ...     def needs_fit(self):
        ...         return self.mean is None
        ...
        ...     def measure(self, events):
        ...         return float(events.fixed(self.column).sum()), len(events)
        ...
        ...     def fitted(self, parts):
        ...         total, count = map(sum, zip(*parts))
        ...         return self.model_copy(update={"mean": total / count})
        ...
        ...     def __call__(self, events):
        ...         return events.join({self.column: events.fixed(self.column) - self.mean})
        >>> chunks = [Table({"pt": [1.0, 2.0]}), Table({"pt": [6.0]})]
        >>> [centre] = fit([Centre(column="pt")], lambda: chunks)
        >>> centre.mean, centre(chunks[1]).fixed("pt").tolist()
        (3.0, [3.0])
    """

    @property
    @abstractmethod
    def needs_fit(self) -> bool:
        """Whether numbers are still missing."""

    @abstractmethod
    def measure(self, events: Table) -> Any:
        """Return the contribution of one chunk of events. It must be small, and possible to pickle."""

    @abstractmethod
    def fitted(self, parts: Sequence[Any]) -> Self:
        """Return a copy with its numbers set.

        Args:
            parts: The contributions of all chunks. The result must not depend on their order.
        """


def fit(
    transforms: Sequence[Transform],
    chunks: Callable[[], Iterable[Table]],
    measure: Callable[[FittedTransform, Sequence[Transform]], Sequence[Any]] | None = None,
) -> list[Transform]:
    """Fit the transforms that need it, each on events that passed the transforms before it.

    Args:
        transforms: The transforms, in order.
        chunks: Returns the events for one pass. It is called once per transform that is fitted.
        measure: Measures a transform in another way, for example in parallel. It gets the transform and the fitted ones
            before it.

    Returns:
        The transforms with all numbers set.
    """

    def measure_chunks(transform: FittedTransform, before: Sequence[Transform]) -> Sequence[Any]:
        return [transform.measure(apply(before, events)) for events in chunks()]

    fitted: list[Transform] = []
    for transform in transforms:
        if isinstance(transform, FittedTransform) and transform.needs_fit:
            transform = transform.fitted((measure or measure_chunks)(transform, fitted))
        fitted.append(transform)
    return fitted


def apply(transforms: Iterable[Transform], events: Table) -> Table:
    """Apply all transforms in order."""
    for transform in transforms:
        events = transform(events)
    return events
