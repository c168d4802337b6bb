"""What routes are given: the service, who asks, a page of a list; and the types their bodies share."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Generic, TypeVar

import sqlalchemy as sa
from fastapi import Depends, Path, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import AfterValidator, BaseModel, Field
from starlette.concurrency import run_in_threadpool

from clew.client.job import Data
from clew.core.config import Section
from clew.server.accounts.callers import Caller
from clew.server.problems import Problem, forbidden, missing
from clew.server.service import Service

COOKIE = "clew_session"
HEADER = "X-Clew"
"""What a page sends with every change, and what another site's form cannot."""
LARGEST = 2**63 - 1
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem} for status in (400, 401, 403, 404, 405, 409, 413, 422, 429, 503)
}
_BEARER = HTTPBearer(auto_error=False, description="A token: `Authorization: Bearer clew_...`")
T = TypeVar("T")


def _plain(text: str) -> str:
    if "\x00" in text:
        raise ValueError("a text cannot have the character 0 in it")
    return text


Text = Annotated[str, AfterValidator(_plain), Field(max_length=10_000)]
Name = Annotated[str, AfterValidator(_plain), Field(min_length=1, max_length=200, pattern=r"^[^/\\\s][^\\\n\r\t]*$")]
Word = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]*$")]
Number = Annotated[int, Path(ge=1, le=LARGEST, description="The number of what is asked for.")]
Document = Data


class Body(Section):
    """Base of what is sent."""


class Page(BaseModel, Generic[T]):
    """A part of a list; `next` is the `after` of the part that follows, null at the end."""

    items: list[T]
    next: int | None = None


def service_of(request: Request) -> Service:
    """The one that answers."""
    found: Service = request.app.state.service
    return found


def address_of(request: Request) -> str:
    """Where a request comes from."""
    return request.client.host if request.client else ""


async def _caller(
    request: Request, bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)] = None
) -> Caller:
    return await identified(request, bearer.credentials if bearer else None)


async def identified(request: Request, bearer: str | None) -> Caller:
    """Who asks, by the token in the header or the session's cookie.

    Raises:
        RefusedError: 401 without a good token, 429 after too many bad ones, 403 for a change that came from elsewhere.
    """
    service, address = service_of(request), address_of(request)
    text = bearer or request.cookies.get(COOKIE, "")
    found = service.people.known(text) if text else None
    if found is None and text:
        found = await run_in_threadpool(service.people.find, text)
    if found is None:
        raise service.doorman.turned_away(address, given=bool(text))
    if not bearer and request.method not in ("GET", "HEAD") and HEADER not in request.headers:
        raise forbidden(
            f"a change by a browser's session needs the header {HEADER}", do="use the dashboard, or a token"
        )
    caller = found if found.address == address else service.people.at(found, address)
    request.state.caller = caller
    return caller


def needs(*scopes: str) -> Callable[..., Coroutine[Any, Any, Caller]]:
    """A dependency: the caller, who must have one of these scopes."""

    async def checked(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
        return allowed(caller, *scopes)

    return checked


def allowed(caller: Caller, *scopes: str) -> Caller:
    """The caller, who must have one of these scopes.

    Raises:
        RefusedError: 403.
    """
    if not caller.scopes.intersection(scopes):
        raise forbidden(f"this token may not: it lacks the scope {' or '.join(scopes)}")
    return caller


ServiceOf = Annotated[Service, Depends(service_of)]
Anybody = Annotated[Caller, Depends(_caller)]
Reader = Annotated[Caller, Depends(needs("read"))]
Author = Annotated[Caller, Depends(needs("write"))]
Submitter = Annotated[Caller, Depends(needs("submit"))]
AgentOf = Annotated[Caller, Depends(needs("agent"))]
Admin = Annotated[Caller, Depends(needs("admin"))]
Pusher = Annotated[Caller, Depends(needs("write", "job"))]
"""Who records a run: its owner, or the job that does it."""
Watcher = Annotated[Caller, Depends(needs("read", "job"))]
Limit = Annotated[int, Query(ge=1, le=1000, description="How many at most.")]
After = Annotated[int | None, Query(ge=0, le=LARGEST, description="The `next` of the page before.")]


def page(
    connection: sa.Connection,
    query: sa.Select[Any],
    key: sa.Column[int],
    shown: Callable[[dict[str, Any]], T],
    *,
    limit: int,
    after: int | None,
) -> Page[T]:
    """Newest first, by a number that only grows."""
    if after is not None:
        query = query.where(key < after)
    rows = [dict(row) for row in connection.execute(query.order_by(key.desc()).limit(limit + 1)).mappings()]
    following = rows[limit - 1][key.name] if len(rows) > limit else None
    return Page(items=[shown(row) for row in rows[:limit]], next=following)


def one(connection: sa.Connection, table: sa.Table, number: int, caller: Caller, what: str) -> Any:
    """A row that the caller sees.

    Raises:
        RefusedError: 404.
    """
    row = connection.execute(sa.select(table).where(table.c.id == number)).one_or_none()
    if row is None or not caller.sees(row):
        raise missing(what, number)
    return row
