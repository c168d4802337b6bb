"""What the workers of an asynchronous training did: how much, what they waited for, and how late their updates came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

from clew.figure import COLOURS, Figure, figure
from clew.runs.folder import Run
from clew.runs.html_page import table
from clew.runs.records import Record

PARTS = ("compute", "communicate", "load")
"""What a worker's time is made of, in the order, so in the colours, of the report."""


_TIMES = ("seconds", "communicate", "load")
_CALLED = {"communicate": "communicate and wait"}


@dataclass(frozen=True)
class Worker:
    """One of them, over the whole run; times in seconds."""

    name: str
    host: str
    batches: int
    samples: int
    seconds: float
    communicate: float
    load: float

    @property
    def speed(self) -> float:
        """Samples a second of its own time."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """Of its time: computing, exchanging (and waiting for the master's answer), waiting for data."""
        whole = max(self.seconds, self.communicate + self.load)
        spent = (whole - self.communicate - self.load, self.communicate, self.load)
        return {part: seconds / whole if whole else 0.0 for part, seconds in zip(PARTS, spent, strict=True)}


@dataclass(frozen=True)
class Workers:
    """All of them; what left and came again under a new number stands twice."""

    all: list[Worker]
    staleness: dict[int, int]
    """Updates by how many others the weights had seen since the update's sender got them."""
    bytes: int
    """Of weights and updates, both ways, through the first master."""
    returned: int
    """Batches that were given to a worker, came back undone and were given out again."""

    @property
    def updates(self) -> int:
        """How many were taken."""
        return sum(self.staleness.values())

    @property
    def mean_staleness(self) -> float:
        """Of an update."""
        return sum(age * count for age, count in self.staleness.items()) / max(self.updates, 1)


def workers(run: Run) -> Workers | None:
    """As the newest record tells; None for a run that has no such record."""
    record = run.last("workers", run.main_stream)
    if record is None:
        return None
    found = [_worker(number, facts) for number, facts in record["workers"].items()]
    ages = {int(age): int(count) for age, count in record["staleness"].items()}
    return Workers(found, dict(sorted(ages.items())), int(record["bytes"]), int(record["returned"]))


def notes(run: Run) -> list[Record]:
    """What the master found worth telling: who left, what was refused; oldest first."""
    return list(run.records(run.main_stream, "note"))


def told(found: Workers) -> Iterator[tuple[str, str]]:
    """A line on the workers and one on their updates, for a terminal."""
    speeds = sorted(each.speed for each in found.all)
    if speeds:
        hosts = len({each.host for each in found.all})
        spread = f"{speeds[0]:,.0f}" if len(speeds) == 1 else f"{speeds[0]:,.0f} to {speeds[-1]:,.0f}"
        parts = ", ".join(f"{part} {share:.0%}" for part, share in together(found.all).shares.items())
        where = f"on {hosts} host{'s' if hosts > 1 else ''}"
        yield "each worker", f"{spread} samples/s ({len(speeds)} {where}), {parts}"
    yield "exchanged", f"{_updates(found)}, {_size(found.bytes)}, {_returned(found)}"


def together(all: list[Worker]) -> Worker:
    """All as if they were one after the other."""
    sums = {name: sum(getattr(each, name) for each in all) for name in ("batches", "samples", *_TIMES)}
    return Worker("", "", **sums)


def section(run: Run) -> tuple[str, list[Figure]]:
    """Table, notes and figures for the report; nothing for a run that had no master."""
    found = workers(run)
    said = _notes(run)
    if found is None:
        return said, []
    head = ("", "host", "batches", "samples", "samples/s", *(_CALLED.get(part, part) for part in PARTS))
    rows = [
        (
            f"worker {escape(each.name)}",
            escape(each.host),
            f"{each.batches:,}",
            f"{each.samples:,}",
            f"{each.speed:,.0f}",
            *(f"{share:.1%}" for share in each.shares.values()),
        )
        for each in found.all
    ]
    facts = f'<p class="facts">{_updates(found)} · {_size(found.bytes)} moved · {_returned(found)}</p>'
    return f"{facts}{table(head, rows)}{said}", figures(found)


def figures(found: Workers) -> list[Figure]:
    """How fast each was and what its time went into; how late updates came."""
    names = [f"worker {each.name}" for each in found.all]
    bar: dict[str, Any] = {"type": "bar", "orientation": "h", "y": names}
    shares = [
        {
            **bar,
            "name": _CALLED.get(part, part),
            "x": [round(100 * each.shares[part], 2) for each in found.all],
            "hovertemplate": f"{part} %{{x:.1f}}%",
        }
        for part in PARTS
    ]
    speeds = [f"{each.speed:,.0f}/s" for each in found.all]
    shares[-1] |= {"text": speeds, "textposition": "outside", "cliponaxis": False}
    return [
        figure(
            shares,
            title="Where each worker's time went, and its samples/s",
            x="% of its time",
            barmode="stack",
            xaxis={"range": [0, 118], "tickvals": [0, 20, 40, 60, 80, 100]},
            yaxis={"autorange": "reversed"},
        ),
        figure(
            [_histogram(found)],
            title="Staleness",
            x="updates of others in between",
            y="updates",
            showlegend=False,
            bargap=0.1,
            xaxis={"dtick": max(1, len(found.staleness) // 10)},
        ),
    ]


def _histogram(found: Workers) -> dict[str, Any]:
    ages = list(found.staleness)
    return {"type": "bar", "x": ages, "y": [found.staleness[age] for age in ages], "marker": {"color": COLOURS[0]}}


def _worker(number: str, facts: dict[str, Any]) -> Worker:
    times = {"seconds": facts["seconds"], "communicate": facts["communicate"], "load": facts["wait"]}
    return Worker(number, facts["host"], facts["batches"], facts["samples"], **times)


def _notes(run: Run) -> str:
    start = run.last("start", run.main_stream)
    begun = float(start["time"]) if start else 0.0
    rows = [
        (f"{note['time'] - begun:+.2f} s", f'<span class="words">{escape(str(note["message"]))}</span>')
        for note in notes(run)
    ]
    head = f"{len(rows)} note{'s' if len(rows) != 1 else ''} of the master"
    return f"<details open><summary>{head}</summary>{table(('since start', ''), rows)}</details>" if rows else ""


def _updates(found: Workers) -> str:
    return f"{found.updates:,} updates, mean staleness {found.mean_staleness:.2f}"


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _returned(found: Workers) -> str:
    return f"{found.returned:,} batches returned" if found.returned else "no batches returned"
