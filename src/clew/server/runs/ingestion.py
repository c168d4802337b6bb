"""Ingestion of records: each record is stored exactly once; points, summaries and progress are computed from it.

Only the writer's thread uses this module. The sequence number of a record in its stream decides: a record with a
smaller number than expected is skipped; one with a larger number waits, with all that follow, until the missing ones
arrived. So a client may send a batch any number of times.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from clew.runs.progress import RunProgress
from clew.runs.record_metrics import LEAD, finite_number, metric_values, whole_number
from clew.runs.records import Record
from clew.runs.times import RunTimes
from clew.server.database.tables import SPAN, points, records, runs, spans, streams, summary, to_json
from clew.server.database.writer import Transaction
from clew.server.problems import not_found
from clew.server.runs.ingestion_rows import (
    RUN_COLUMNS,
    SUMMARY_COLUMNS,
    MetricSummary,
    PendingRows,
    PointSpan,
    RecordStream,
    ReportingRun,
)
from clew.server.runs.recompute import insert_spans, recomputed_summary
from clew.server.runs.run_values import evaluation_values, validation_values

_MAX_METRICS = 2000
"""Metrics per run. Metrics with further names stay in the records only."""
_MAX_CACHED_RUNS = 5000


@dataclass(frozen=True)
class RecordBatch:
    """The records of one request."""

    run: int
    streams: Mapping[str, Sequence[Record]]

    @property
    def ends_run(self) -> bool:
        """Whether one of the records is the last of its run: the client may not send it again."""
        return any(record["kind"] == "end" for stream in self.streams.values() for record in stream)


class RecordIngestion:
    """Stores batches of records. It keeps the runs that report in memory, so that a batch needs no query."""

    def __init__(self) -> None:
        self._runs: dict[int, ReportingRun] = {}
        self.records = 0
        """Records stored since the start."""
        self.points = 0
        """Points stored since the start."""

    def forget(self, run: int | None = None) -> None:
        """Drop a run, or all runs, from memory: a transaction was rolled back, or the run was changed otherwise."""
        if run is None:
            self._runs.clear()
        else:
            self._runs.pop(run, None)

    def start_run(self, run: int, values: Mapping[str, Any]) -> None:
        """Take a new run into memory, with the columns of its row; nothing needs to be read."""
        self._limit_cache()
        progress = RunProgress(values["state"], values["message"], values["host"], metrics=values["metrics"])
        self._runs[run] = ReportingRun(run, progress, values["updated"])

    def ingest(self, transaction: Transaction, batches: Sequence[RecordBatch]) -> list[dict[str, int]]:
        """Store what is new in several batches.

        Returns:
            For each batch, the sequence number that each stream of its run expects next.

        Raises:
            RequestError: a run does not exist any more.
        """
        rows = PendingRows()
        reporting = [self._ingest_batch(transaction, batch, rows) for batch in batches]
        self._write(transaction, rows)
        return [{name: stream.next for name, stream in run.streams.items()} for run in reporting]

    def _ingest_batch(self, transaction: Transaction, batch: RecordBatch, rows: PendingRows) -> ReportingRun:
        run = self._runs.get(batch.run) or self._load(transaction, batch.run)
        changed = False
        for name, stream_records in batch.streams.items():
            stream = run.streams.get(name)
            if stream is None and stream_records:
                stream = run.streams[name] = rows.new_streams[batch.run, name] = RecordStream(0, 0)
            for record in stream_records:
                assert stream is not None
                if record["seq"] > stream.next:
                    break
                if record["seq"] == stream.next:
                    self._ingest_record(transaction, run, name, record, rows)
                    changed = True
        if changed:
            run.updated = time.time()
            rows.runs[batch.run] = run
            transaction.notify(f"run:{batch.run}")
        return run

    def _ingest_record(
        self, transaction: Transaction, run: ReportingRun, name: str, record: Record, rows: PendingRows
    ) -> None:
        stream, kind, moment = run.streams[name], record["kind"], finite_number(record["time"]) or 0.0
        rows.records.append((stream, stream.next, moment, kind, to_json(record)))
        if kind == "resume" and name == LEAD:
            self._go_back(transaction, run, stream, whole_number(record.get("step"), stream.step), rows)
        if name == LEAD:
            run.times = RunTimes.read(record) or run.times
        if run.progress.update(record, name):
            transaction.notify("runs")
        if kind == "validation" and name == LEAD:
            rows.values.setdefault(run.id, {}).update(validation_values(run.progress.metrics))
        elif kind == "evaluation":
            rows.values.setdefault(run.id, {}).update(evaluation_values(record))
        step = whole_number(record.get("step"), stream.step if name == LEAD else stream.next)
        for metric_name, value in metric_values(name, record, stream.samples):
            metric = run.metrics.get(metric_name) or _new_metric(run, stream, metric_name, rows)
            if metric is not None:
                metric.add(step, moment, value)
                metric.span.add(stream.next, step, moment, value)
                rows.points.append((metric, stream.next, step, moment, value))
                rows.metrics[metric] = None
        if kind == "step":
            stream.samples, stream.step = finite_number(record.get("samples")) or stream.samples, step
        elif kind in ("start", "resume"):
            stream.samples = 0.0 if kind == "start" else finite_number(record.get("samples")) or 0.0
        stream.next += 1
        rows.streams[stream] = None
        if stream.next % SPAN == 0:
            _close_spans(run, stream, rows)

    def _go_back(
        self, transaction: Transaction, run: ReportingRun, stream: RecordStream, step: int, rows: PendingRows
    ) -> None:
        """Delete the points after a step: the run resumes there and trains those steps again."""
        self._write(transaction, rows)
        stream.complete_from = stream.next
        of_stream = {name: metric for name, metric in run.metrics.items() if metric.stream is stream}
        for name, metric in of_stream.items():
            repeated = points.delete().where(points.c.metric == metric.id, points.c.step > step)
            if transaction.execute(repeated).rowcount:
                transaction.execute(spans.delete().where(spans.c.metric == metric.id))
                run.metrics[name] = recomputed_summary(transaction, metric)
                rows.metrics[run.metrics[name]] = None
                insert_spans(transaction, points.c.metric == metric.id, 0, stream.next - stream.next % SPAN)

    def _load(self, transaction: Transaction, number: int) -> ReportingRun:
        columns = [runs.c[name] for name in RUN_COLUMNS]
        row = transaction.execute(sa.select(*columns).where(runs.c.id == number)).one_or_none()
        if row is None:
            raise not_found("run", number)
        self._limit_cache()
        stream_rows = transaction.execute(sa.select(streams).where(streams.c.run == number)).all()
        summaries = transaction.execute(sa.select(summary).where(summary.c.run == number)).mappings().all()
        by_id = {each.id: RecordStream(each.id, each.next, complete_from=each.next) for each in stream_rows}
        progress = RunProgress(
            state=row.state,
            message=row.message,
            host=row.host,
            workers=row.workers,
            epochs=row.epochs,
            epochs_done=row.epochs_done,
            started=row.begun,
            ended=row.ended,
            metrics=row.metrics,
        )
        run = ReportingRun(number, progress, row.updated, RunTimes.read({"times": row.times}))
        run.streams = {each.name: by_id[each.id] for each in stream_rows}
        run.metrics = {
            each["name"]: MetricSummary(
                each["id"], by_id[each["stream"]], **{column: each[column] for column in SUMMARY_COLUMNS}
            )
            for each in summaries
        }
        for stream in run.streams.values():
            _restore_position(transaction, stream)
        self._runs[number] = run
        return run

    def _limit_cache(self) -> None:
        if len(self._runs) >= _MAX_CACHED_RUNS:
            self._runs.clear()

    def _write(self, transaction: Transaction, rows: PendingRows) -> None:
        """Write all pending rows and empty them."""
        rows.write(transaction)
        for stream, begin, end in rows.stored_spans:
            of_stream = sa.select(summary.c.id).where(summary.c.stream == stream.id)
            insert_spans(transaction, points.c.metric.in_(of_stream), begin, end)
        self.records += len(rows.records)
        self.points += len(rows.points)
        vars(rows).update(vars(PendingRows()))


def _close_spans(run: ReportingRun, stream: RecordStream, rows: PendingRows) -> None:
    """A span of a stream's records is complete: add one row per metric."""
    begin = stream.next - SPAN
    if stream.complete_from > begin:
        rows.stored_spans.append((stream, begin, stream.next))
    for metric in run.metrics.values():
        if metric.stream is stream:
            if stream.complete_from <= begin and metric.span.count:
                extent = (metric.span.min, metric.span.max, metric.span.count)
                rows.spans.append((metric, begin // SPAN, *metric.span.point, *extent))
            metric.span = PointSpan()


def _new_metric(run: ReportingRun, stream: RecordStream, name: str, rows: PendingRows) -> MetricSummary | None:
    if len(run.metrics) >= _MAX_METRICS:
        return None
    run.metrics[name] = rows.new_metrics[run.id, name] = MetricSummary(0, stream)
    return run.metrics[name]


def _restore_position(transaction: Transaction, stream: RecordStream) -> None:
    """Read step and samples from the newest step record of a stream."""
    query = sa.select(records.c.body).where(records.c.stream == stream.id, records.c.kind == "step")
    newest = transaction.scalar(query.order_by(records.c.seq.desc()).limit(1)) if stream.next else None
    if newest is not None:
        record = json.loads(newest)
        stream.samples = finite_number(record.get("samples")) or 0.0
        stream.step = whole_number(record.get("step"), 0)
