"""Spans and summaries that the database computes again from the stored points."""

from __future__ import annotations

import sqlalchemy as sa

from clew.server.database.tables import SPAN, points, records, spans, streams, summary
from clew.server.database.writer import Transaction
from clew.server.runs.ingestion_rows import MetricSummary


def insert_spans(transaction: Transaction, condition: sa.ColumnElement[bool], begin: int, end: int) -> None:
    """Insert one row of `spans` per metric and span, so that long curves are drawn from few rows.

    Args:
        transaction: The open transaction.
        condition: Selects the metrics among the points.
        begin: First sequence number of the records.
        end: The sequence number after the last.
    """
    keys = (points.c.metric, (points.c.seq // SPAN).label("span"))
    values = (
        sa.func.min(points.c.value).label("smallest"),
        sa.func.max(points.c.value).label("largest"),
        sa.func.count().label("number"),
        sa.func.max(points.c.seq).label("newest"),
    )
    in_range = condition, points.c.seq >= begin, points.c.seq < end
    groups = sa.select(*keys, *values).where(*in_range).group_by(*keys).subquery()
    last = sa.and_(points.c.metric == groups.c.metric, points.c.seq == groups.c.newest)
    columns = (groups.c.metric, groups.c.span, points.c.seq, points.c.step, points.c.time, points.c.value)
    query = sa.select(*columns, groups.c.smallest, groups.c.largest, groups.c.number).join(points, last)
    transaction.execute(spans.insert().from_select([column.name for column in spans.c], query))


def recomputed_summary(transaction: Transaction, metric: MetricSummary) -> MetricSummary:
    """Return the summary of a metric from its points: the first, the smallest, the largest and the last one."""
    of_metric = points.c.metric == metric.id
    point = sa.select(points.c.step, points.c.time, points.c.value).where(of_metric)
    extent = sa.func.count(), sa.func.min(points.c.value), sa.func.max(points.c.value)
    count, *extremes = transaction.execute(sa.select(*extent).where(of_metric)).one()
    result = MetricSummary(metric.id, metric.stream)
    first = point.order_by(points.c.seq).limit(1)
    queries = [first.where(points.c.value.is_not(None)), *(first.where(points.c.value == value) for value in extremes)]
    for query in (*queries, point.order_by(points.c.seq.desc()).limit(1)):
        if (row := transaction.execute(query).one_or_none()) is not None:
            result.add(*row)
    result.count = count
    return result


def delete_records(transaction: Transaction, run: int) -> None:
    """Delete the records, points and spans of a run."""
    metrics = sa.select(summary.c.id).where(summary.c.run == run)
    for table in (points, spans):
        transaction.execute(table.delete().where(table.c.metric.in_(metrics)))
    of_run = sa.select(streams.c.id).where(streams.c.run == run)
    transaction.execute(records.delete().where(records.c.stream.in_(of_run)))
