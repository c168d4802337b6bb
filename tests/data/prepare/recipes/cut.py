"""A recipe whose transforms come from its settings. Its `prepare` needs at least one event."""

from collections.abc import Sequence
from typing import Any

from clew import Recipe, Section, Table
from clew.data.transforms import AnyTransform, Transform


class Cut(Recipe):
    class Config(Section):
        transforms: tuple[AnyTransform, ...] = ()

    def transforms(self) -> Sequence[Transform]:
        return tuple(self.config.transforms)

    def prepare(self, events: Table) -> Table:
        return events.join({"above": events.fixed("pt") - events.fixed("pt").min()})

    def model(self) -> Any:
        raise AssertionError("only prepared here")
