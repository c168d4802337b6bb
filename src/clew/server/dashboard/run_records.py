"""Records of a run as text: the newest of all ranks, and all that a terminal would have shown."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from clew.runs.console_log import CONSOLE
from clew.runs.failure import record_text
from clew.runs.record_metrics import LEAD
from clew.server.dashboard.formatting import duration
from clew.server.database.tables import records, streams

_LAST_RECORDS = 20
"""Records that the log shows."""
_CONSOLE_KINDS = ("start", "plan", "load", "resume", "validation", "checkpoint", "note", "workers", "end")
"""Kinds of records that a terminal shows: all but single steps and measurements."""
_MAX_LINES = 3000


def last_records(connection: sa.Connection, run: int, start: float | None) -> list[dict[str, Any]]:
    """Return the newest records of all streams as text, the oldest first."""
    newest_records = []
    recorded = sa.select(streams).where(streams.c.run == run, sa.not_(streams.c.name.startswith(CONSOLE)))
    for stream in connection.execute(recorded).all():
        newest = sa.select(records.c.time, records.c.kind, records.c.body).where(records.c.stream == stream.id)
        for row in connection.execute(newest.order_by(records.c.seq.desc()).limit(_LAST_RECORDS)):
            since = row.time - (start or row.time)
            newest_records.append(
                {"time": row.time, "seconds": since, "stream": stream.name, "kind": row.kind, "body": row.body}
            )
    ordered = sorted(newest_records, key=lambda each: each["time"])[-_LAST_RECORDS:]
    return [{**each, "text": _text(each["body"])} for each in ordered]


def console_lines(connection: sa.Connection, run: int, start: float | None) -> list[str]:
    """Return one line per record that a terminal would have shown, the oldest first."""
    c = records.c
    query = sa.select(c.time, c.kind, c.body).join(streams, streams.c.id == c.stream)
    query = query.where(streams.c.run == run, streams.c.name == LEAD, c.kind.in_(_CONSOLE_KINDS))
    rows = connection.execute(query.order_by(c.seq.desc()).limit(_MAX_LINES)).all()
    return [
        f"{duration(max(row.time - (start or row.time), 0.0)):>10}  {row.kind:<10}  {_text(row.body)}"
        for row in reversed(rows)
    ]


def _text(body: str) -> str:
    """Return a record as readable text. Records come from outside: one with missing parts is shown as JSON."""
    record = json.loads(body)
    try:
        return record_text(record)
    except (KeyError, TypeError, ValueError, AttributeError):
        return body[:300]
