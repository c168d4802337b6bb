"""What can be found again from the points there are, by the database."""

from __future__ import annotations

import sqlalchemy as sa

from clew.server.database.tables import SPAN, points, records, spans, streams, summary
from clew.server.database.writer import Change
from clew.server.runs.ingestion_rows import Metric


def sum_up(change: Change, own: sa.ColumnElement[bool], begin: int, end: int) -> None:
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


def counted_again(change: Change, metric: Metric) -> Metric:
    """From the points there are: those that leave a mark are its first, least, greatest and last."""
    own = sa.select(points.c.step, points.c.time, points.c.value).where(points.c.metric == metric.id)
    extent = sa.func.count(), sa.func.min(points.c.value), sa.func.max(points.c.value)
    count, *extremes = change.execute(sa.select(*extent).where(points.c.metric == metric.id)).one()
    fresh = Metric(metric.id, metric.stream)
    first = own.order_by(points.c.seq).limit(1)
    marks = [first.where(points.c.value.is_not(None)), *(first.where(points.c.value == each) for each in extremes)]
    for query in (*marks, own.order_by(points.c.seq.desc()).limit(1)):
        if (found := change.execute(query).one_or_none()) is not None:
            fresh.see(*found)
    fresh.count = count
    return fresh


def erase(change: Change, run: int) -> None:
    """Remove what was recorded of a run."""
    metrics = sa.select(summary.c.id).where(summary.c.run == run)
    for table in (points, spans):
        change.execute(table.delete().where(table.c.metric.in_(metrics)))
    change.execute(records.delete().where(records.c.stream.in_(sa.select(streams.c.id).where(streams.c.run == run))))
