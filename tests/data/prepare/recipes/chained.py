"""A recipe of four slow transforms and a slow `prepare`, which all log their calls."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from clew import Recipe, Section, Table
from clew.data.transforms import Standard, Transform

SECONDS = 0.06


def work(log: str, name: str) -> None:
    """Log a call, and take some time."""
    with Path(log).open("a") as stream:
        stream.write(f"{name}\n")
    time.sleep(SECONDS)


class Shift(Transform):
    kind: Literal["shift"] = "shift"
    by: float
    log: str

    def __call__(self, events: Table) -> Table:
        work(self.log, "shift")
        return events.join({"pt": events.fixed("pt") + self.by})


class Cut(Transform):
    kind: Literal["cut"] = "cut"
    low: float
    log: str

    def __call__(self, events: Table) -> Table:
        work(self.log, "cut")
        return events.filter(events.fixed("pt") > self.low)


class Centre(Standard):
    """A transform that is fitted in a pass of its own."""

    kind: Literal["centre"] = "centre"  # type: ignore[assignment]
    log: str

    def measure(self, events: Table) -> Any:
        work(self.log, "fit")
        return super().measure(events)

    def __call__(self, events: Table) -> Table:
        work(self.log, "centre")
        return super().__call__(events)


class Power(Transform):
    kind: Literal["power"] = "power"
    power: float
    log: str

    def __call__(self, events: Table) -> Table:
        work(self.log, "power")
        return events.join({"power": events.fixed("pt") ** self.power})


class Chained(Recipe):
    class Config(Section):
        log: str = ""
        by: float = 1.0
        low: float | None = 3.0
        power: float = 2.0

    def transforms(self) -> Sequence[Transform]:
        config = self.config
        cut = () if config.low is None else (Cut(low=config.low, log=config.log),)
        return (
            Shift(by=config.by, log=config.log),
            *cut,
            Centre(columns=("pt",), log=config.log),
            Power(power=config.power, log=config.log),
        )

    def prepare(self, events: Table) -> Table:
        work(self.config.log, "prepare")
        return events.join({"total": events.fixed("power") + events.fixed("pt")})

    def model(self) -> Any:
        raise AssertionError("only prepared here")
