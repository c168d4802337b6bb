"""Book-keeping of runs: records in, exactly once; points and summaries from them. For the writer's thread alone.

The number of a record in its stream says whether it is known: smaller than expected, it is passed over; larger, it
and all behind it wait until what is missing came. So a batch may be sent any number of times.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from clew.ledger.folder import STATES
from clew.ledger.records import Record
from clew.service.answers import missing
from clew.service.database import many
from clew.service.database.tables import SPAN, points, records, runs, spans, streams, summary, to_json
from clew.service.numbers import LEAD, SPEED, number, numbers, text, whole
from clew.service.writer import Change

_METRICS = 2000
"""Of a run; what comes with more names stays in the records."""
_REMEMBERED = 5000
"""Runs."""


@dataclass(frozen=True)
class Batch:
    """What a request brings."""

    run: int
    streams: Mapping[str, Sequence[Record]]


@dataclass(eq=False)
class _Stream:
    id: int
    """As that of a metric."""
    next: int
    whole: int = 0
    """The record from which on all points were seen: spans that begin there or later need no look at the database."""
    samples: float = 0.0
    """Seen up to the newest step."""
    step: int = 0


@dataclass(eq=False)
class _Metric:
    id: int
    """0 while it is not in the database."""
    stream: _Stream
    count: int = 0
    first: float | None = None
    last: float | None = None
    min: float | None = None
    min_step: int | None = None
    max: float | None = None
    max_step: int | None = None
    step: int = 0
    time: float = 0.0
    span: _Span = field(default_factory=lambda: _Span())

    def values(self) -> tuple[Any, ...]:
        """Of `_MEASURED`."""
        extent = (self.min, self.min_step, self.max, self.max_step)
        return (self.count, self.first, self.last, *extent, self.step, self.time)

    def see(self, step: int, moment: float, value: float | None) -> None:
        self.count, self.step, self.time = self.count + 1, step, moment
        self.first = value if self.first is None else self.first
        self.last = value
        if value is not None:
            if self.min is None or value < self.min:
                self.min, self.min_step = value, step
            if self.max is None or value > self.max:
                self.max, self.max_step = value, step


@dataclass
class _Span:
    """Points of a metric since its last row of `spans`."""

    point: tuple[Any, ...] = ()
    """The newest: seq, step, time and value."""
    min: float | None = None
    max: float | None = None
    count: int = 0

    def see(self, *point: Any) -> None:
        self.point, value = point, point[-1]
        self.count += 1
        if value is not None:
            self.min = value if self.min is None or value < self.min else self.min
            self.max = value if self.max is None or value > self.max else self.max


@dataclass
class _Run:
    """What is remembered of a run while it reports."""

    facts: dict[str, Any]
    """Columns of its row."""
    streams: dict[str, _Stream]
    metrics: dict[str, _Metric]


@dataclass
class _Rows:
    """What a group of batches writes."""

    new_streams: dict[tuple[int, str], _Stream] = field(default_factory=dict)
    """By run and name."""
    new_metrics: dict[tuple[int, str], _Metric] = field(default_factory=dict)
    records: list[tuple[Any, ...]] = field(default_factory=list)
    """Values of `_RECORD`, with the stream itself."""
    points: list[tuple[Any, ...]] = field(default_factory=list)
    """Values of `_POINT`, with the metric itself."""
    spans: list[tuple[Any, ...]] = field(default_factory=list)
    """Rows of that table, with the metric itself."""
    unseen: list[tuple[_Stream, int, int]] = field(default_factory=list)
    """Records whose points the database has to sum up: from, to."""
    metrics: dict[_Metric, None] = field(default_factory=dict)
    streams: dict[_Stream, None] = field(default_factory=dict)
    runs: dict[int, _Run] = field(default_factory=dict)


_FACTS = ("state", "message", "host", "workers", "epochs", "epochs_done", "samples_per_second", "metrics")
_TIMES = ("begun", "ended", "updated")
BEGINNING: dict[str, Any] = {
    "workers": 0,
    "epochs": 0,
    "epochs_done": 0,
    "samples_per_second": 0.0,
    "begun": None,
    "ended": None,
}
"""Columns of a run that has told nothing yet."""
_COLUMNS = [runs.c[name] for name in (*_FACTS, *_TIMES)]
_MEASURED = ("count", "first", "last", "min", "min_step", "max", "max_step", "step", "time")
_RECORD = ("stream", "seq", "time", "kind", "body")
_SPAN = ("metric", "span", "seq", "step", "time", "value", "min", "max", "count")
_POINT = ("metric", "seq", "step", "time", "value")


class Book:
    """Remembers the runs that report, so that a batch costs no reading."""

    def __init__(self) -> None:
        self._runs: dict[int, _Run] = {}
        self.records = 0
        self.points = 0

    def forget(self, run: int | None = None) -> None:
        """What is remembered may be wrong: a transaction was undone, or this run was changed otherwise."""
        if run is None:
            self._runs.clear()
        else:
            self._runs.pop(run, None)

    def begin(self, key: int, facts: Mapping[str, Any]) -> None:
        """A run was made, with these columns: nothing of it needs to be read."""
        self._room()
        known = {**BEGINNING, **facts}
        self._runs[key] = _Run({name: known[name] for name in (*_FACTS, *_TIMES)}, {}, {})

    def take(self, change: Change, batches: Sequence[Batch]) -> list[dict[str, int]]:
        """Write down what is new in several batches; for each, what every stream of its run expects next.

        Raises:
            RefusedError: a run is not there any more.
        """
        rows = _Rows()
        known = [self._one(change, batch, rows) for batch in batches]
        self._write(change, rows)
        return [{name: stream.next for name, stream in run.streams.items()} for run in known]

    def _one(self, change: Change, batch: Batch, rows: _Rows) -> _Run:
        run = self._runs.get(batch.run) or self._load(change, batch.run)
        fresh = False
        for name, found in batch.streams.items():
            stream = run.streams.get(name)
            if stream is None and found:
                stream = run.streams[name] = rows.new_streams[batch.run, name] = _Stream(0, 0)
            for record in found:
                assert stream is not None
                if record["seq"] > stream.next:
                    break
                if record["seq"] == stream.next:
                    self._record(change, batch.run, run, name, stream, record, rows)
                    fresh = True
        if fresh:
            run.facts["updated"] = time.time()
            rows.runs[batch.run] = run
            change.tell(f"run:{batch.run}")
        return run

    def _record(
        self, change: Change, key: int, run: _Run, name: str, stream: _Stream, record: Record, rows: _Rows
    ) -> None:
        moment = number(record["time"]) or 0.0
        rows.records.append((stream, stream.next, moment, record["kind"], to_json(record)))
        if record["kind"] == "resume" and name == LEAD:
            self._back(change, key, run, stream, whole(record.get("step"), stream.step), rows)
        if _story(run.facts, name, record):
            change.tell("runs")
        step = whole(record.get("step"), stream.step if name == LEAD else stream.next)
        for metric, value in numbers(name, record, stream.samples):
            measured = run.metrics.get(metric) or _metric(key, run, stream, metric, rows)
            if measured is not None:
                measured.see(step, moment, value)
                measured.span.see(stream.next, step, moment, value)
                rows.points.append((measured, stream.next, step, moment, value))
                rows.metrics[measured] = None
        if record["kind"] == "step":
            speed = run.metrics.get(SPEED)
            run.facts["samples_per_second"] = speed.last if speed and speed.last is not None else 0.0
            stream.samples, stream.step = number(record.get("samples")) or stream.samples, step
        elif record["kind"] in ("start", "resume"):
            stream.samples = 0.0 if record["kind"] == "start" else number(record.get("samples")) or 0.0
        stream.next += 1
        rows.streams[stream] = None
        if stream.next % SPAN == 0:
            _close_spans(run, stream, rows)

    def _back(self, change: Change, key: int, run: _Run, stream: _Stream, step: int, rows: _Rows) -> None:
        """A run goes on from a step: what it had done after that step, it does again, so those points go."""
        self._write(change, rows)
        stream.whole = stream.next
        own = {name: metric for name, metric in run.metrics.items() if metric.stream is stream}
        for name, metric in own.items():
            again = points.delete().where(points.c.metric == metric.id, points.c.step > step)
            if change.execute(again).rowcount:
                change.execute(spans.delete().where(spans.c.metric == metric.id))
                run.metrics[name] = _counted_again(change, metric)
                rows.metrics[run.metrics[name]] = None
                _sum_up(change, points.c.metric == metric.id, 0, stream.next - stream.next % SPAN)

    def _load(self, change: Change, key: int) -> _Run:
        row = change.execute(sa.select(*_COLUMNS).where(runs.c.id == key)).mappings().one_or_none()
        if row is None:
            raise missing("run", key)
        self._room()
        found = change.execute(sa.select(streams).where(streams.c.run == key)).all()
        measured = change.execute(sa.select(summary).where(summary.c.run == key)).mappings().all()
        known = {each.id: _Stream(each.id, each.next, whole=each.next) for each in found}
        kept = {
            each["name"]: _Metric(each["id"], known[each["stream"]], **{name: each[name] for name in _MEASURED})
            for each in measured
        }
        run = _Run(dict(row), {each.name: known[each.id] for each in found}, kept)
        for stream in run.streams.values():
            _remember(change, stream)
        self._runs[key] = run
        return run

    def _room(self) -> None:
        if len(self._runs) >= _REMEMBERED:
            self._runs.clear()

    def _write(self, change: Change, rows: _Rows) -> None:
        """All of it, in as few statements as there are tables; then there are no more rows."""
        _number(change, rows)
        if rows.records:
            told = [(stream.id, *rest) for stream, *rest in rows.records]
            many.insert(change.connection, records, _RECORD, told)
        if rows.points:
            told = [(metric.id, *rest) for metric, *rest in rows.points]
            many.insert(change.connection, points, _POINT, told)
        if rows.spans:
            told = [(metric.id, *rest) for metric, *rest in rows.spans]
            many.insert(change.connection, spans, _SPAN, told)
        for stream, begin, end in rows.unseen:
            own = sa.select(summary.c.id).where(summary.c.stream == stream.id)
            _sum_up(change, points.c.metric.in_(own), begin, end)
        _update(change, rows)
        self.records += len(rows.records)
        self.points += len(rows.points)
        vars(rows).update(vars(_Rows()))


def _close_spans(run: _Run, stream: _Stream, rows: _Rows) -> None:
    """A span of a stream's records is whole: a row for each of its metrics."""
    begin = stream.next - SPAN
    if stream.whole > begin:
        rows.unseen.append((stream, begin, stream.next))
    for metric in run.metrics.values():
        if metric.stream is stream:
            if stream.whole <= begin and metric.span.count:
                extent = (metric.span.min, metric.span.max, metric.span.count)
                rows.spans.append((metric, begin // SPAN, *metric.span.point, *extent))
            metric.span = _Span()


def _metric(key: int, run: _Run, stream: _Stream, name: str, rows: _Rows) -> _Metric | None:
    if len(run.metrics) >= _METRICS:
        return None
    run.metrics[name] = rows.new_metrics[key, name] = _Metric(0, stream)
    return run.metrics[name]


def _number(change: Change, rows: _Rows) -> None:
    """Make rows for streams and metrics that are new, which gives them their numbers."""
    key = ("run", "name")
    if rows.new_streams:
        told = [(*who, stream.next) for who, stream in rows.new_streams.items()]
        for who, number in many.numbered(change.connection, streams, (*key, "next"), told, key=key).items():
            rows.new_streams[who].id = number
            rows.streams.pop(rows.new_streams[who], None)
    if rows.new_metrics:
        told = [(*who, metric.stream.id, *metric.values()) for who, metric in rows.new_metrics.items()]
        columns = (*key, "stream", *_MEASURED)
        for who, number in many.numbered(change.connection, summary, columns, told, key=key).items():
            rows.new_metrics[who].id = number
            rows.metrics.pop(rows.new_metrics[who], None)


def _update(change: Change, rows: _Rows) -> None:
    """Rows that were there before."""
    if rows.metrics:
        measured = [(metric.id, *metric.values()) for metric in rows.metrics]
        many.update(change.connection, summary, _MEASURED, measured)
    if rows.streams:
        many.update(change.connection, streams, ("next",), [(each.id, each.next) for each in rows.streams])
    if rows.runs:
        told = [(key, *_row(run.facts)) for key, run in rows.runs.items()]
        many.update(change.connection, runs, (*_FACTS, *_TIMES), told)


def _row(facts: Mapping[str, Any]) -> list[Any]:
    return [to_json(facts[name]) if name == "metrics" else facts[name] for name in (*_FACTS, *_TIMES)]


def _remember(change: Change, stream: _Stream) -> None:
    """From the newest step of a stream: where it was."""
    query = sa.select(records.c.body).where(records.c.stream == stream.id, records.c.kind == "step")
    newest = change.scalar(query.order_by(records.c.seq.desc()).limit(1)) if stream.next else None
    if newest is not None:
        record = json.loads(newest)
        stream.samples, stream.step = number(record.get("samples")) or 0.0, whole(record.get("step"), 0)


def _sum_up(change: Change, own: sa.ColumnElement[bool], begin: int, end: int) -> None:
    """A row for each metric and span of own points from `begin` to `end`, so that long curves are drawn from few."""
    each = (points.c.metric, (points.c.seq // SPAN).label("span"))
    facts = (sa.func.min(points.c.value), sa.func.max(points.c.value), sa.func.count(), sa.func.max(points.c.seq))
    named = [fact.label(name) for fact, name in zip(facts, ("least", "greatest", "number", "newest"), strict=True)]
    inside = own, points.c.seq >= begin, points.c.seq < end
    whole = sa.select(*each, *named).where(*inside).group_by(*each).subquery()
    last = sa.and_(points.c.metric == whole.c.metric, points.c.seq == whole.c.newest)
    columns = (whole.c.metric, whole.c.span, points.c.seq, points.c.step, points.c.time, points.c.value)
    query = sa.select(*columns, whole.c.least, whole.c.greatest, whole.c.number).join(points, last)
    change.execute(spans.insert().from_select([column.name for column in spans.c], query))


def _counted_again(change: Change, metric: _Metric) -> _Metric:
    """From the points there are: those that leave a mark are its first, least, greatest and last."""
    own = sa.select(points.c.step, points.c.time, points.c.value).where(points.c.metric == metric.id)
    extent = sa.func.count(), sa.func.min(points.c.value), sa.func.max(points.c.value)
    count, *extremes = change.execute(sa.select(*extent).where(points.c.metric == metric.id)).one()
    fresh = _Metric(metric.id, metric.stream)
    first = own.order_by(points.c.seq).limit(1)
    marks = [first.where(points.c.value.is_not(None)), *(first.where(points.c.value == each) for each in extremes)]
    for query in (*marks, own.order_by(points.c.seq.desc()).limit(1)):
        if (found := change.execute(query).one_or_none()) is not None:
            fresh.see(*found)
    fresh.count = count
    return fresh


def _story(facts: dict[str, Any], name: str, record: Record) -> bool:
    """What a record changes in the run's own row; whether lists should know at once."""
    kind, moment = record["kind"], number(record["time"]) or 0.0
    if name != LEAD:
        if kind == "end" and record.get("status") == "failed" and facts["state"] == "running":
            facts |= {"state": "failed", "ended": moment, "message": f"{name}: {text(record.get('message'))}"}
            return True
        return False
    if kind == "start":
        facts |= {"state": "running", "message": "", "ended": None, "workers": _few(record.get("ranks"))}
        facts |= {"begun": facts["begun"] or moment, "host": text(record.get("host") or facts["host"], 200)}
    elif kind == "plan":
        facts["epochs"] = _few(record.get("epochs"))
    elif kind == "validation":
        told = record.get("metrics")
        kept = list(told.items())[:100] if isinstance(told, dict) else []
        facts["metrics"] = {text(key, 200): number(value) for key, value in kept}
        facts["epochs_done"] = _few(record.get("epoch")) + 1
    elif kind == "end":
        state = record.get("status") if record.get("status") in STATES else "failed"
        facts |= {"state": state, "ended": moment, "message": text(record.get("message"))}
    return kind in ("start", "validation", "end")


def _few(value: Any) -> int:
    return whole(value, 0, largest=10**9)


def erase(change: Change, run: int) -> None:
    """Remove what was recorded of a run."""
    metrics = sa.select(summary.c.id).where(summary.c.run == run)
    for table in (points, spans):
        change.execute(table.delete().where(table.c.metric.in_(metrics)))
    change.execute(records.delete().where(records.c.stream.in_(sa.select(streams.c.id).where(streams.c.run == run))))
