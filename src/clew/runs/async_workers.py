"""What the workers of an asynchronous training did: how much, how they spent their time, how old their updates were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from clew.figure import COLOURS, Figure, figure
from clew.runs.folder import Run
from clew.runs.html_page import table
from clew.runs.records import Record

PARTS = ("compute", "communicate", "data wait")
"""The parts of a worker's time, in the order, and therefore in the colours, of the report."""


_TIMES = ("seconds", "communicate", "load")
_LABELS = {"communicate": "communicate and wait"}


@dataclass(frozen=True)
class WorkerTotals:
    """What one worker did in the whole run. Times are in seconds."""

    name: str
    host: str
    batches: int
    samples: int
    seconds: float
    communicate: float
    load: float

    @property
    def speed(self) -> float:
        """Samples per second of its own time."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """The fractions of its time for computing, for exchanges with the master, and for waiting for data."""
        total = max(self.seconds, self.communicate + self.load)
        parts = (total - self.communicate - self.load, self.communicate, self.load)
        return {name: seconds / total if total else 0.0 for name, seconds in zip(PARTS, parts, strict=True)}


@dataclass(frozen=True)
class WorkersRecord:
    """The newest record of all workers. A worker that left and joined again is listed twice, with two numbers."""

    workers: list[WorkerTotals]
    staleness: dict[int, int]
    """Number of updates by staleness: how many other updates changed the weights since its sender received them."""
    bytes: int
    """Bytes of weights and updates, in both directions, through the coordinator."""
    returned: int
    """Batches that were assigned to a worker, came back unfinished, and were assigned again."""

    @property
    def updates(self) -> int:
        """Number of updates that were applied."""
        return sum(self.staleness.values())

    @property
    def mean_staleness(self) -> float:
        """Mean staleness of the updates."""
        return sum(age * count for age, count in self.staleness.items()) / max(self.updates, 1)


def load_workers(run: Run) -> WorkersRecord | None:
    """Return the newest record of the workers; None for a run without one."""
    record = run.last("workers", run.main_stream)
    if record is None:
        return None
    workers = [_worker_totals(number, totals) for number, totals in record["workers"].items()]
    ages = {int(age): int(count) for age, count in record["staleness"].items()}
    return WorkersRecord(workers, dict(sorted(ages.items())), int(record["bytes"]), int(record["returned"]))


def master_notes(run: Run) -> list[Record]:
    """Return the notes of the master, for example about workers that left or were refused; oldest first."""
    return list(run.records(run.main_stream, "note"))


def summary_lines(record: WorkersRecord) -> Iterator[tuple[str, str]]:
    """Yield a label and a text about the workers, and about their updates, for a terminal."""
    speeds = sorted(worker.speed for worker in record.workers)
    if speeds:
        hosts = len({worker.host for worker in record.workers})
        spread = f"{speeds[0]:,.0f}" if len(speeds) == 1 else f"{speeds[0]:,.0f} to {speeds[-1]:,.0f}"
        parts = ", ".join(f"{part} {share:.0%}" for part, share in sum_workers(record.workers).shares.items())
        location = f"on {hosts} host{'s' if hosts > 1 else ''}"
        yield "each worker", f"{spread} samples/s ({len(speeds)} {location}), {parts}"
    yield "exchanged", f"{_updates_text(record)}, {_size_text(record.bytes)}, {_returned_text(record)}"


def sum_workers(workers: Sequence[WorkerTotals]) -> WorkerTotals:
    """Return the sums over workers."""
    sums = {name: sum(getattr(worker, name) for worker in workers) for name in ("batches", "samples", *_TIMES)}
    return WorkerTotals("", "", **sums)


def report_section(run: Run) -> tuple[str, list[Figure]]:
    """Return HTML and figures for the report; nothing for a run without a master."""
    record = load_workers(run)
    notes = _notes_html(run)
    if record is None:
        return notes, []
    head = ("", "host", "batches", "samples", "samples/s", *(_LABELS.get(part, part) for part in PARTS))
    rows = [
        (
            f"worker {escape(worker.name)}",
            escape(worker.host),
            f"{worker.batches:,}",
            f"{worker.samples:,}",
            f"{worker.speed:,.0f}",
            *(f"{share:.1%}" for share in worker.shares.values()),
        )
        for worker in record.workers
    ]
    texts = (_updates_text(record), f"{_size_text(record.bytes)} moved", _returned_text(record))
    return f'<p class="soft">{" · ".join(texts)}</p>{table(head, rows)}{notes}', worker_figures(record)


def worker_figures(record: WorkersRecord) -> list[Figure]:
    """Return two figures: the speed and the time of each worker, and the staleness of updates."""
    names = [f"worker {worker.name}" for worker in record.workers]
    bar: dict[str, Any] = {"type": "bar", "orientation": "h", "y": names}
    shares = [
        {
            **bar,
            "name": _LABELS.get(part, part),
            "x": [round(100 * worker.shares[part], 2) for worker in record.workers],
            "hovertemplate": f"{part} %{{x:.1f}}%",
        }
        for part in PARTS
    ]
    speeds = [f"{worker.speed:,.0f}/s" for worker in record.workers]
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
            [_staleness_histogram(record)],
            title="Staleness",
            x="updates of others in between",
            y="updates",
            showlegend=False,
            bargap=0.1,
            xaxis={"dtick": max(1, len(record.staleness) // 10)},
        ),
    ]


def _staleness_histogram(record: WorkersRecord) -> dict[str, Any]:
    ages = list(record.staleness)
    return {"type": "bar", "x": ages, "y": [record.staleness[age] for age in ages], "marker": {"color": COLOURS[0]}}


def _worker_totals(number: str, totals: dict[str, Any]) -> WorkerTotals:
    times = {"seconds": totals["seconds"], "communicate": totals["communicate"], "load": totals["wait"]}
    return WorkerTotals(number, totals["host"], totals["batches"], totals["samples"], **times)


def _notes_html(run: Run) -> str:
    start = run.last("start", run.main_stream)
    start_time = float(start["time"]) if start else 0.0
    rows = [
        (f"{note['time'] - start_time:+.2f} s", f'<span class="words">{escape(str(note["message"]))}</span>')
        for note in master_notes(run)
    ]
    head = f"{len(rows)} note{'s' if len(rows) != 1 else ''} of the master"
    return f"<details open><summary>{head}</summary>{table(('since start', ''), rows)}</details>" if rows else ""


def _updates_text(record: WorkersRecord) -> str:
    return f"{record.updates:,} updates, mean staleness {record.mean_staleness:.2f}"


def _size_text(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _returned_text(record: WorkersRecord) -> str:
    return f"{record.returned:,} batches returned" if record.returned else "no batches returned"
