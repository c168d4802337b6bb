"""Routes for records of runs: they are sent in batches, and each record is stored exactly once."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, cast

import sqlalchemy as sa
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, FailFast, Field, with_config
from starlette.concurrency import run_in_threadpool
from typing_extensions import TypedDict

from clew.runs.record_metrics import LATEST
from clew.runs.records import Record
from clew.server.api.dependencies import (
    MAX_ID,
    PROBLEMS,
    Body,
    Limit,
    Number,
    RunReader,
    RunWriter,
    ServiceOf,
    Word,
    visible_row,
)
from clew.server.api.fast_routes import fast_route
from clew.server.api.runs import next_sequence_numbers
from clew.server.database.tables import records, runs, streams
from clew.server.runs.ingestion import RecordBatch

router = APIRouter(prefix="/api/v1/runs/{number}/records", tags=["records"], responses=PROBLEMS)

_MAX_PAGE_BYTES = 8_000_000
"""Characters of records after which a page ends: one record can be as large as a request."""
_FETCHED = 20
"""Records that are fetched from the database at a time."""


@with_config(extra="allow")
class RecordEntry(TypedDict):
    """A record, as in the run folder."""

    seq: Annotated[int, Field(ge=0, le=2**53)]
    time: Annotated[float, Field(ge=0, le=LATEST, allow_inf_nan=False)]
    kind: Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[a-z_]+$")]


class RecordReport(Body):
    """Records by stream, in the order of their sequence number `seq`."""

    streams: dict[Word, Annotated[list[RecordEntry], FailFast(), Field(max_length=5000)]] = Field(max_length=2000)


class NextSequence(BaseModel):
    """The next expected `seq` by stream. Everything before it is in the database."""

    next: dict[str, int]


class RecordPage(BaseModel):
    """Records of a stream, the oldest first. `next` is the `after` of the following page; null if there is none yet."""

    items: list[dict[str, Any]]
    next: int | None = None


async def report(service: ServiceOf, caller: RunWriter, number: Number, body: RecordReport) -> NextSequence:
    """Store what is new; a batch may be sent again. Records after a gap are not stored: continue from `next`.

    After a power failure of the server `next` may be smaller than before: a client that still reports sends the rest
    again. Once the end of a run is answered, all its records are on disk.
    """
    if not service.is_known_run(number, caller):
        await run_in_threadpool(service.check_run, number, caller)
    batch = RecordBatch(number, cast("dict[str, list[Record]]", body.streams))
    future = service.writer.submit_grouped(service.ingestion.ingest, batch, durable=batch.ends_run)
    return NextSequence(next=await asyncio.wrap_future(future))


router.add_api_route("", report, methods=["POST"], route_class_override=fast_route(RecordReport, "write", "job"))


@router.get("", response_model=RecordPage)
def read(
    service: ServiceOf,
    caller: RunReader,
    number: Number,
    stream: Word = "rank-0",
    kind: Annotated[list[Word] | None, Query(max_length=20)] = None,
    after: Annotated[int, Query(ge=-1, le=MAX_ID)] = -1,
    limit: Limit = 500,
) -> Response:
    """Return the records of a stream after a `seq`, the oldest first; all, or those of some kinds."""
    with service.database.read() as connection:
        visible_row(connection, runs, number, caller, "run")
        query = sa.select(records.c.seq, records.c.body).join(streams, streams.c.id == records.c.stream)
        query = query.where(streams.c.run == number, streams.c.name == stream, records.c.seq > after)
        if kind:
            query = query.where(records.c.kind.in_(kind))
        rows, full = _page(connection, query.order_by(records.c.seq).limit(limit), limit)
    following = rows[-1].seq if full else None
    items = ",".join(body for _, body in rows)  # as they were received: not always valid UTF-8
    return Response(f'{{"items":[{items}],"next":{json.dumps(following)}}}', media_type="application/json")


def _page(connection: sa.Connection, query: sa.Select[Any], limit: int) -> tuple[list[Any], bool]:
    """Return records up to the limits of their number and bytes, and whether one of these was reached."""
    rows, size = list[Any](), 0
    for row in connection.execution_options(yield_per=_FETCHED).execute(query):
        rows.append(row)
        size += len(row.body)
        if size >= _MAX_PAGE_BYTES:
            break
    return rows, len(rows) == limit or size >= _MAX_PAGE_BYTES


@router.get("/streams")
def list_streams(service: ServiceOf, caller: RunReader, number: Number) -> NextSequence:
    """Return the streams of a run and the next expected `seq` of each."""
    with service.database.read() as connection:
        visible_row(connection, runs, number, caller, "run")
        return NextSequence(next=next_sequence_numbers(connection, number))
