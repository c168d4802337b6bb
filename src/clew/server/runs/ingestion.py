"""Book-keeping of runs: records in, exactly once; points and summaries from them. For the writer's thread alone.

The number of a record in its stream says whether it is known: smaller than expected, it is passed over; larger, it
and all behind it wait until what is missing came. So a batch may be sent any number of times.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from clew.runs.records import Record
from clew.server.database.tables import SPAN, points, records, runs, spans, streams, summary, to_json
from clew.server.database.writer import Change
from clew.server.problems import missing
from clew.server.runs.ingestion_rows import MEASURED, Known, Metric, Rows, Span, Stream
from clew.server.runs.recompute import counted_again, sum_up
from clew.server.runs.record_numbers import LEAD, SPEED, number, numbers, whole
from clew.server.runs.run_state import BEGINNING, FACTS, TIMES, story

_METRICS = 2000
"""Of a run; what comes with more names stays in the records."""
_REMEMBERED = 5000
"""Runs."""


@dataclass(frozen=True)
class Batch:
    """What a request brings."""

    run: int
    streams: Mapping[str, Sequence[Record]]


_COLUMNS = [runs.c[name] for name in (*FACTS, *TIMES)]


class Book:
    """Remembers the runs that report, so that a batch costs no reading."""

    def __init__(self) -> None:
        self._runs: dict[int, Known] = {}
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
        self._runs[key] = Known({name: known[name] for name in (*FACTS, *TIMES)}, {}, {})

    def take(self, change: Change, batches: Sequence[Batch]) -> list[dict[str, int]]:
        """Write down what is new in several batches; for each, what every stream of its run expects next.

        Raises:
            RefusedError: a run is not there any more.
        """
        rows = Rows()
        known = [self._one(change, batch, rows) for batch in batches]
        self._write(change, rows)
        return [{name: stream.next for name, stream in run.streams.items()} for run in known]

    def _one(self, change: Change, batch: Batch, rows: Rows) -> Known:
        run = self._runs.get(batch.run) or self._load(change, batch.run)
        fresh = False
        for name, found in batch.streams.items():
            stream = run.streams.get(name)
            if stream is None and found:
                stream = run.streams[name] = rows.new_streams[batch.run, name] = Stream(0, 0)
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
        self, change: Change, key: int, run: Known, name: str, stream: Stream, record: Record, rows: Rows
    ) -> None:
        moment = number(record["time"]) or 0.0
        rows.records.append((stream, stream.next, moment, record["kind"], to_json(record)))
        if record["kind"] == "resume" and name == LEAD:
            self._back(change, key, run, stream, whole(record.get("step"), stream.step), rows)
        if story(run.facts, name, record):
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

    def _back(self, change: Change, key: int, run: Known, stream: Stream, step: int, rows: Rows) -> None:
        """A run goes on from a step: what it had done after that step, it does again, so those points go."""
        self._write(change, rows)
        stream.whole = stream.next
        own = {name: metric for name, metric in run.metrics.items() if metric.stream is stream}
        for name, metric in own.items():
            again = points.delete().where(points.c.metric == metric.id, points.c.step > step)
            if change.execute(again).rowcount:
                change.execute(spans.delete().where(spans.c.metric == metric.id))
                run.metrics[name] = counted_again(change, metric)
                rows.metrics[run.metrics[name]] = None
                sum_up(change, points.c.metric == metric.id, 0, stream.next - stream.next % SPAN)

    def _load(self, change: Change, key: int) -> Known:
        row = change.execute(sa.select(*_COLUMNS).where(runs.c.id == key)).mappings().one_or_none()
        if row is None:
            raise missing("run", key)
        self._room()
        found = change.execute(sa.select(streams).where(streams.c.run == key)).all()
        measured = change.execute(sa.select(summary).where(summary.c.run == key)).mappings().all()
        known = {each.id: Stream(each.id, each.next, whole=each.next) for each in found}
        kept = {
            each["name"]: Metric(each["id"], known[each["stream"]], **{name: each[name] for name in MEASURED})
            for each in measured
        }
        run = Known(dict(row), {each.name: known[each.id] for each in found}, kept)
        for stream in run.streams.values():
            _remember(change, stream)
        self._runs[key] = run
        return run

    def _room(self) -> None:
        if len(self._runs) >= _REMEMBERED:
            self._runs.clear()

    def _write(self, change: Change, rows: Rows) -> None:
        """All of it; then there are no more rows."""
        rows.write(change)
        for stream, begin, end in rows.unseen:
            own = sa.select(summary.c.id).where(summary.c.stream == stream.id)
            sum_up(change, points.c.metric.in_(own), begin, end)
        self.records += len(rows.records)
        self.points += len(rows.points)
        vars(rows).update(vars(Rows()))


def _close_spans(run: Known, stream: Stream, rows: Rows) -> None:
    """A span of a stream's records is whole: a row for each of its metrics."""
    begin = stream.next - SPAN
    if stream.whole > begin:
        rows.unseen.append((stream, begin, stream.next))
    for metric in run.metrics.values():
        if metric.stream is stream:
            if stream.whole <= begin and metric.span.count:
                extent = (metric.span.min, metric.span.max, metric.span.count)
                rows.spans.append((metric, begin // SPAN, *metric.span.point, *extent))
            metric.span = Span()


def _metric(key: int, run: Known, stream: Stream, name: str, rows: Rows) -> Metric | None:
    if len(run.metrics) >= _METRICS:
        return None
    run.metrics[name] = rows.new_metrics[key, name] = Metric(0, stream)
    return run.metrics[name]


def _remember(change: Change, stream: Stream) -> None:
    """From the newest step of a stream: where it was."""
    query = sa.select(records.c.body).where(records.c.stream == stream.id, records.c.kind == "step")
    newest = change.scalar(query.order_by(records.c.seq.desc()).limit(1)) if stream.next else None
    if newest is not None:
        record = json.loads(newest)
        stream.samples, stream.step = number(record.get("samples")) or 0.0, whole(record.get("step"), 0)
