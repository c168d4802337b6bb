"""What runs report: records in batches, each taken exactly once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, FailFast, Field, ValidationError
from starlette.concurrency import run_in_threadpool

from clew.service.answers import RefusedError, missing
from clew.service.api.given import (
    LARGEST,
    PROBLEMS,
    Body,
    Limit,
    Number,
    Pusher,
    ServiceOf,
    Watcher,
    Word,
    allowed,
    identified,
    one,
    service_of,
)
from clew.service.book import Batch
from clew.service.database.tables import records, runs, streams
from clew.service.numbers import LATEST

router = APIRouter(prefix="/api/v1/runs/{number}/records", tags=["records"], responses=PROBLEMS)
_WRONG = 100
"""Mistakes in a body that are told one by one: to write down millions takes more than the body."""


class Entry(BaseModel, extra="allow"):
    """A record, as it stands in the run's folder."""

    seq: int = Field(ge=0, le=2**53)
    time: float = Field(ge=0, le=LATEST, allow_inf_nan=False)
    kind: str = Field(min_length=1, max_length=40, pattern=r"^[a-z_]+$")


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


class Quick(APIRoute):
    """For the route that is asked most. What FastAPI finds out anew for every request, and spends more time on than all
    else, is written down here; the schema still comes from the function's signature.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers."""

        async def answered(request: Request) -> Response:
            scheme, _, text = request.headers.get("Authorization", "").partition(" ")
            bearer = text.strip() if scheme.lower() == "bearer" else None
            caller = allowed(await identified(request, bearer), "write", "job")
            number = request.path_params["number"]
            if not (number.isascii() and number.isdigit() and len(number) < 19 and int(number)):
                raise missing("run", number)
            try:
                body = _parsed(await request.body())
            except ValidationError as error:
                if error.error_count() > _WRONG:
                    raise RefusedError(422, f"{error.error_count()} things are wrong with it", where="body") from None
                told = error.errors(include_url=False, include_context=False, include_input=False)
                raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in told]) from None
            found = await report(service_of(request), caller, int(number), body)
            return Response(found.model_dump_json(), media_type="application/json")

        return answered


def _parsed(data: bytes) -> Report:
    try:
        return Report.model_validate_json(data)
    except ValidationError as error:
        if error.error_count() > 1 or error.errors()[0]["type"] != "json_invalid":
            raise
        try:
            document = json.loads(data)  # takes what a `Writer` writes, halves of surrogate pairs included
        except (ValueError, RecursionError):
            raise error from None
    return Report.model_validate(document)


async def report(service: ServiceOf, caller: Pusher, number: Number, body: Report) -> Expected:
    """Take what is new; send it again whenever in doubt. What comes behind a gap is not taken: go on from `next`."""
    if not service.known(number, caller):
        await run_in_threadpool(service.look, number, caller)
    found = {name: [dict(entry) for entry in entries] for name, entries in body.streams.items()}
    future = service.writer.join(service.book.take, Batch(number, found))
    return Expected(next=await asyncio.wrap_future(future))


router.add_api_route("", report, methods=["POST"], route_class_override=Quick)


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
def expected(service: ServiceOf, caller: Watcher, number: Number) -> Expected:
    """The streams there are, and what each expects next."""
    with service.database.read() as connection:
        one(connection, runs, number, caller, "run")
        found = connection.execute(sa.select(streams).where(streams.c.run == number).order_by(streams.c.name)).all()
    return Expected(next={row.name: row.next for row in found})
