"""What the processes of a run printed, from its records: the lines of all ranks in the order of their time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from clew.runs.console_log import CONSOLE, CONSOLE_STREAM, output_text
from clew.server.database.tables import records, streams

_MAX_RECORDS = 4000
"""Records of all ranks that one request reads."""
_MAX_RANKS = 100
_MAX_CHARACTERS = 200_000


@dataclass(frozen=True)
class PrintedOutput:
    """A part of what a run printed."""

    text: str = ""
    positions: Mapping[int, int] = field(default_factory=dict)
    """The newest record of each stream that is included."""

    @property
    def next(self) -> str:
        """The positions as text, for the request of the following part: `12:40,13:7`."""
        return ",".join(f"{stream}:{seq}" for stream, seq in sorted(self.positions.items()))


def parse_positions(text: str) -> dict[int, int]:
    """Parse `PrintedOutput.next`. What is not a position is ignored."""
    pairs = [part.partition(":") for part in text.split(",")]
    numbers = [(left, right) for left, _, right in pairs if _is_number(left) and _is_number(right)]
    return {int(left): int(right) for left, right in numbers}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 17


def printed_output(connection: sa.Connection, run: int, after: Mapping[int, int] | None = None) -> PrintedOutput:
    """Return what a run printed.

    Args:
        connection: A connection to the database.
        run: The run, which the caller may see.
        after: `positions` of the part before. Default: the end of the output.
    """
    of_run = sa.select(streams.c.id, streams.c.name).where(streams.c.run == run)
    of_run = of_run.where(streams.c.name.startswith(CONSOLE)).order_by(streams.c.id).limit(_MAX_RANKS)
    matches = {row.id: CONSOLE_STREAM.fullmatch(row.name) for row in connection.execute(of_run)}
    ranks = {number: match[1] for number, match in matches.items() if match is not None}
    rows: list[Any] = []
    for number in ranks:
        rows += _rows(connection, number, (after or {}).get(number), limit=_MAX_RECORDS // len(ranks))
    newest = {number: max(each.seq for each in rows if each.stream == number) for number in {r.stream for r in rows}}
    positions = {**{number: seq for number, seq in (after or {}).items() if number in ranks}, **newest}
    lines = [output_text(json.loads(row.body), ranks[row.stream]) for row in sorted(rows, key=lambda each: each.time)]
    return PrintedOutput("".join(lines)[-_MAX_CHARACTERS:], positions)


def _rows(connection: sa.Connection, stream: int, after: int | None, limit: int) -> list[Any]:
    """Return the newest records of a stream, or those after a record."""
    c = records.c
    query = sa.select(c.stream, c.seq, c.time, c.body).where(c.stream == stream, c.kind == "output")
    query = query.order_by(c.seq.desc()) if after is None else query.where(c.seq > after).order_by(c.seq)
    return list(connection.execute(query.limit(limit)))
