"""State of the runs that report, and the rows that a group of record batches inserts and updates."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa

from clew.runs.progress import RunProgress
from clew.runs.times import RunTimes
from clew.server.database.backend import backend_of
from clew.server.database.tables import points, records, runs, spans, streams, summary, to_json
from clew.server.database.writer import Transaction
from clew.server.runs.run_values import save_values

SUMMARY_COLUMNS = ("count", "first", "last", "min", "min_step", "max", "max_step", "step", "time")
PROGRESS_COLUMNS = ("state", "message", "host", "workers", "epochs", "epochs_done", "metrics", "begun", "ended")
"""Columns of `runs` that hold a `RunProgress`. The field `started` is in the column `begun`."""
RUN_COLUMNS = (*PROGRESS_COLUMNS, "samples_per_second", "times", "updated")
"""Columns of `runs` that records change."""
_RECORD_COLUMNS = ("stream", "seq", "time", "kind", "body")
_SPAN_COLUMNS = ("metric", "span", "seq", "step", "time", "value", "min", "max", "count")
_POINT_COLUMNS = ("metric", "seq", "step", "time", "value")
_MAX_RUN_METRICS = 100
"""Metrics of the newest validation that the row of a run keeps."""


@dataclass(eq=False)
class RecordStream:
    """One stream of a run's records."""

    id: int
    """0 while the stream is not in the database."""
    next: int
    """The sequence number that the next record must have."""
    complete_from: int = 0
    """From this record on, all points are in memory: spans that begin there or later need no database query."""
    samples: float = 0.0
    """Samples up to the newest step."""
    step: int = 0


@dataclass
class PointSpan:
    """Points of a metric since its last row in `spans`."""

    point: tuple[Any, ...] = ()
    """The newest point: sequence number, step, time and value."""
    min: float | None = None
    max: float | None = None
    count: int = 0

    def add(self, *point: Any) -> None:
        """Add a point."""
        self.point, value = point, point[-1]
        self.count += 1
        if value is not None:
            self.min = value if self.min is None or value < self.min else self.min
            self.max = value if self.max is None or value > self.max else self.max


@dataclass(eq=False)
class MetricSummary:
    """A row of `summary`: count, first, last, smallest and largest value of a metric."""

    id: int
    """0 while the row is not in the database."""
    stream: RecordStream
    count: int = 0
    first: float | None = None
    last: float | None = None
    min: float | None = None
    min_step: int | None = None
    max: float | None = None
    max_step: int | None = None
    step: int = 0
    time: float = 0.0
    span: PointSpan = field(default_factory=PointSpan)

    def values(self) -> tuple[Any, ...]:
        """Return the values of `SUMMARY_COLUMNS`."""
        extremes = (self.min, self.min_step, self.max, self.max_step)
        return (self.count, self.first, self.last, *extremes, self.step, self.time)

    def add(self, step: int, moment: float, value: float | None) -> None:
        """Add a point."""
        self.count, self.step, self.time = self.count + 1, step, moment
        self.first = value if self.first is None else self.first
        self.last = value
        if value is not None:
            if self.min is None or value < self.min:
                self.min, self.min_step = value, step
            if self.max is None or value > self.max:
                self.max, self.max_step = value, step


@dataclass
class ReportingRun:
    """A run that reports, kept in memory between batches."""

    id: int
    progress: RunProgress
    updated: float
    times: RunTimes | None = None
    streams: dict[str, RecordStream] = field(default_factory=dict)
    metrics: dict[str, MetricSummary] = field(default_factory=dict)

    def values(self) -> list[Any]:
        """Return the values of `RUN_COLUMNS`."""
        progress = self.progress
        metrics = to_json(dict(list(progress.metrics.items())[:_MAX_RUN_METRICS]))
        first = [progress.state, progress.message, progress.host, progress.workers, progress.epochs]
        last = [progress.epochs_done, metrics, progress.started, progress.ended]
        times = None if self.times is None else to_json(asdict(self.times))
        speed = 0.0 if self.times is None else self.times.samples_per_second
        return [*first, *last, speed, times, self.updated]


@dataclass
class PendingRows:
    """Rows that a group of batches inserts and updates."""

    new_streams: dict[tuple[int, str], RecordStream] = field(default_factory=dict)
    """By run and name."""
    new_metrics: dict[tuple[int, str], MetricSummary] = field(default_factory=dict)
    """By run and name."""
    records: list[tuple[Any, ...]] = field(default_factory=list)
    """Values of `_RECORD_COLUMNS`, with the stream itself instead of its id."""
    points: list[tuple[Any, ...]] = field(default_factory=list)
    """Values of `_POINT_COLUMNS`, with the metric itself instead of its id."""
    spans: list[tuple[Any, ...]] = field(default_factory=list)
    """Values of `_SPAN_COLUMNS`, with the metric itself instead of its id."""
    stored_spans: list[tuple[RecordStream, int, int]] = field(default_factory=list)
    """Ranges of records (begin, end) whose spans the database computes from its points."""
    metrics: dict[MetricSummary, None] = field(default_factory=dict)
    streams: dict[RecordStream, None] = field(default_factory=dict)
    runs: dict[int, ReportingRun] = field(default_factory=dict)
    values: dict[int, dict[str, Any]] = field(default_factory=dict)
    """New values of validations and evaluations, by run and name."""

    def write(self, transaction: Transaction) -> None:
        """Insert and update all rows, with as few statements as there are tables."""
        _insert_new_rows(transaction, self)
        with backend_of(transaction.connection).pipelined(transaction.connection):
            _insert_rows(transaction.connection, self)
            _update_rows(transaction.connection, self)
        if self.values:
            save_values(transaction, self.values)


def _insert_new_rows(transaction: Transaction, rows: PendingRows) -> None:
    """Insert new streams and metrics, which gives them their ids."""
    connection, key = transaction.connection, ("run", "name")
    backend = backend_of(connection)
    if rows.new_streams:
        values = [(*run_and_name, stream.next) for run_and_name, stream in rows.new_streams.items()]
        ids = backend.insert_returning_ids(connection, streams, (*key, "next"), values, key=key)
        for run_and_name, number in ids.items():
            rows.new_streams[run_and_name].id = number
            rows.streams.pop(rows.new_streams[run_and_name], None)
    if rows.new_metrics:
        values = [(*key_values, metric.stream.id, *metric.values()) for key_values, metric in rows.new_metrics.items()]
        columns = (*key, "stream", *SUMMARY_COLUMNS)
        ids = backend.insert_returning_ids(connection, summary, columns, values, key=key)
        for run_and_name, number in ids.items():
            rows.new_metrics[run_and_name].id = number
            rows.metrics.pop(rows.new_metrics[run_and_name], None)


def _insert_rows(connection: sa.Connection, rows: PendingRows) -> None:
    backend = backend_of(connection)
    if rows.records:
        values = [(stream.id, *rest) for stream, *rest in rows.records]
        backend.insert(connection, records, _RECORD_COLUMNS, values)
    if rows.points:
        values = [(metric.id, *rest) for metric, *rest in rows.points]
        backend.insert(connection, points, _POINT_COLUMNS, values)
    if rows.spans:
        values = [(metric.id, *rest) for metric, *rest in rows.spans]
        backend.insert(connection, spans, _SPAN_COLUMNS, values)


def _update_rows(connection: sa.Connection, rows: PendingRows) -> None:
    backend = backend_of(connection)
    if rows.metrics:
        values = [(metric.id, *metric.values()) for metric in rows.metrics]
        backend.update(connection, summary, SUMMARY_COLUMNS, values)
    if rows.streams:
        backend.update(connection, streams, ("next",), [(stream.id, stream.next) for stream in rows.streams])
    if rows.runs:
        backend.update(connection, runs, RUN_COLUMNS, [(run.id, *run.values()) for run in rows.runs.values()])
