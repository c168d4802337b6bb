"""What runs report: records in batches, each taken exactly once."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, cast

import sqlalchemy as sa
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, FailFast, Field, with_config
from starlette.concurrency import run_in_threadpool
from typing_extensions import TypedDict

from clew.runs.records import Record
from clew.server.api.dependencies import LARGEST, PROBLEMS, Body, Limit, Number, Pusher, ServiceOf, Watcher, Word, one
from clew.server.api.fast_routes import quick
from clew.server.api.runs import expected
from clew.server.database.tables import records, runs, streams
from clew.server.runs.ingestion import Batch
from clew.server.runs.record_numbers import LATEST

router = APIRouter(prefix="/api/v1/runs/{number}/records", tags=["records"], responses=PROBLEMS)


@with_config(extra="allow")
class Entry(TypedDict):
    """A record, as it stands in the run's folder."""

    seq: Annotated[int, Field(ge=0, le=2**53)]
    time: Annotated[float, Field(ge=0, le=LATEST, allow_inf_nan=False)]
    kind: Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[a-z_]+$")]


class Report(Body):
    """Records by stream, in the order of `seq`."""

    streams: dict[Word, Annotated[list[Entry], FailFast(), Field(max_length=5000)]] = Field(max_length=2000)


class Expected(BaseModel):
    """By stream, the `seq` that comes next. Everything before it is in the database."""

    next: dict[str, int]


class Listing(BaseModel):
    """Records of a stream, oldest first; `next` is the `after` of the page behind, null where there is no more yet."""

    items: list[dict[str, Any]]
    next: int | None = None


async def report(service: ServiceOf, caller: Pusher, number: Number, body: Report) -> Expected:
    """Take what is new; send it again whenever in doubt. What comes behind a gap is not taken: go on from `next`."""
    if not service.known(number, caller):
        await run_in_threadpool(service.look, number, caller)
    future = service.writer.join(service.book.take, Batch(number, cast("dict[str, list[Record]]", body.streams)))
    return Expected(next=await asyncio.wrap_future(future))


router.add_api_route("", report, methods=["POST"], route_class_override=quick(Report, "write", "job"))


@router.get("", response_model=Listing)
def read(
    service: ServiceOf,
    caller: Watcher,
    number: Number,
    stream: Word = "rank-0",
    kind: Annotated[list[Word] | None, Query(max_length=20)] = None,
    after: Annotated[int, Query(ge=-1, le=LARGEST)] = -1,
    limit: Limit = 500,
) -> Response:
    """The records of a stream behind a `seq`, oldest first, all or of some kinds."""
    with service.database.read() as connection:
        one(connection, runs, number, caller, "run")
        query = sa.select(records.c.seq, records.c.body).join(streams, streams.c.id == records.c.stream)
        query = query.where(streams.c.run == number, streams.c.name == stream, records.c.seq > after)
        if kind:
            query = query.where(records.c.kind.in_(kind))
        found = connection.execute(query.order_by(records.c.seq).limit(limit)).all()
    following = found[-1].seq if len(found) == limit else None
    items = ",".join(body for _, body in found)  # as they were taken, which is not always what UTF-8 can say
    return Response(f'{{"items":[{items}],"next":{json.dumps(following)}}}', media_type="application/json")


@router.get("/streams")
def places(service: ServiceOf, caller: Watcher, number: Number) -> Expected:
    """The streams there are, and what each expects next."""
    with service.database.read() as connection:
        one(connection, runs, number, caller, "run")
        return Expected(next=expected(connection, number))
