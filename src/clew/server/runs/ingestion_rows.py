"""What is remembered of runs while they report, and the rows that a group of batches adds and changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from clew.server.database import bulk
from clew.server.database.tables import points, records, runs, spans, streams, summary, to_json
from clew.server.database.writer import Change
from clew.server.runs.run_state import FACTS, TIMES

MEASURED = ("count", "first", "last", "min", "min_step", "max", "max_step", "step", "time")
_RECORD = ("stream", "seq", "time", "kind", "body")
_SPAN = ("metric", "span", "seq", "step", "time", "value", "min", "max", "count")
_POINT = ("metric", "seq", "step", "time", "value")


@dataclass(eq=False)
class Stream:
    """Of a run's records."""

    id: int
    """0 while it is not in the database."""
    next: int
    """The number that its next record must have."""
    whole: int = 0
    """The record from which on all points were seen: spans that begin there or later need no look at the database."""
    samples: float = 0.0
    """Seen up to the newest step."""
    step: int = 0


@dataclass(eq=False)
class Metric:
    """A row of `summary`."""

    id: int
    """0 while it is not in the database."""
    stream: Stream
    count: int = 0
    first: float | None = None
    last: float | None = None
    min: float | None = None
    min_step: int | None = None
    max: float | None = None
    max_step: int | None = None
    step: int = 0
    time: float = 0.0
    span: Span = field(default_factory=lambda: Span())

    def values(self) -> tuple[Any, ...]:
        """Of `MEASURED`."""
        extent = (self.min, self.min_step, self.max, self.max_step)
        return (self.count, self.first, self.last, *extent, self.step, self.time)

    def see(self, step: int, moment: float, value: float | None) -> None:
        """One more point."""
        self.count, self.step, self.time = self.count + 1, step, moment
        self.first = value if self.first is None else self.first
        self.last = value
        if value is not None:
            if self.min is None or value < self.min:
                self.min, self.min_step = value, step
            if self.max is None or value > self.max:
                self.max, self.max_step = value, step


@dataclass
class Span:
    """Points of a metric since its last row of `spans`."""

    point: tuple[Any, ...] = ()
    """The newest: seq, step, time and value."""
    min: float | None = None
    max: float | None = None
    count: int = 0

    def see(self, *point: Any) -> None:
        """One more point."""
        self.point, value = point, point[-1]
        self.count += 1
        if value is not None:
            self.min = value if self.min is None or value < self.min else self.min
            self.max = value if self.max is None or value > self.max else self.max


@dataclass
class Known:
    """What is remembered of a run while it reports."""

    facts: dict[str, Any]
    """Columns of its row."""
    streams: dict[str, Stream]
    metrics: dict[str, Metric]


@dataclass
class Rows:
    """What a group of batches writes."""

    new_streams: dict[tuple[int, str], Stream] = field(default_factory=dict)
    """By run and name."""
    new_metrics: dict[tuple[int, str], Metric] = field(default_factory=dict)
    records: list[tuple[Any, ...]] = field(default_factory=list)
    """Values of `_RECORD`, with the stream itself."""
    points: list[tuple[Any, ...]] = field(default_factory=list)
    """Values of `_POINT`, with the metric itself."""
    spans: list[tuple[Any, ...]] = field(default_factory=list)
    """Rows of that table, with the metric itself."""
    unseen: list[tuple[Stream, int, int]] = field(default_factory=list)
    """Records whose points the database has to sum up: from, to."""
    metrics: dict[Metric, None] = field(default_factory=dict)
    streams: dict[Stream, None] = field(default_factory=dict)
    runs: dict[int, Known] = field(default_factory=dict)

    def write(self, change: Change) -> None:
        """Add and change them, in as few statements as there are tables."""
        _number(change, self)
        with bulk.together(change.connection):
            _add(change.connection, self)
            _update(change.connection, self)


def _number(change: Change, rows: Rows) -> None:
    """Make rows for streams and metrics that are new, which gives them their numbers."""
    key = ("run", "name")
    if rows.new_streams:
        told = [(*who, stream.next) for who, stream in rows.new_streams.items()]
        for who, number in bulk.numbered(change.connection, streams, (*key, "next"), told, key=key).items():
            rows.new_streams[who].id = number
            rows.streams.pop(rows.new_streams[who], None)
    if rows.new_metrics:
        told = [(*who, metric.stream.id, *metric.values()) for who, metric in rows.new_metrics.items()]
        columns = (*key, "stream", *MEASURED)
        for who, number in bulk.numbered(change.connection, summary, columns, told, key=key).items():
            rows.new_metrics[who].id = number
            rows.metrics.pop(rows.new_metrics[who], None)


def _add(connection: sa.Connection, rows: Rows) -> None:
    if rows.records:
        bulk.insert(connection, records, _RECORD, [(stream.id, *rest) for stream, *rest in rows.records])
    if rows.points:
        bulk.insert(connection, points, _POINT, [(metric.id, *rest) for metric, *rest in rows.points])
    if rows.spans:
        bulk.insert(connection, spans, _SPAN, [(metric.id, *rest) for metric, *rest in rows.spans])


def _update(connection: sa.Connection, rows: Rows) -> None:
    """Rows that were there before."""
    if rows.metrics:
        measured = [(metric.id, *metric.values()) for metric in rows.metrics]
        bulk.update(connection, summary, MEASURED, measured)
    if rows.streams:
        bulk.update(connection, streams, ("next",), [(each.id, each.next) for each in rows.streams])
    if rows.runs:
        told = [(key, *_row(run.facts)) for key, run in rows.runs.items()]
        bulk.update(connection, runs, (*FACTS, *TIMES), told)


def _row(facts: Mapping[str, Any]) -> list[Any]:
    return [to_json(facts[name]) if name == "metrics" else facts[name] for name in (*FACTS, *TIMES)]
