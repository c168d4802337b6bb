"""What routes share: the service, the caller and its scopes, pages of lists, and types of request bodies."""

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
from clew.server.accounts.caller import Caller
from clew.server.accounts.users import USER_NAME
from clew.server.problems import Problem, RequestError, forbidden, not_found
from clew.server.service import Service

SESSION_COOKIE = "clew_session"
SESSION_HEADER = "X-Clew"
"""The header that a page sends with every change. A form of another site cannot send it."""
MAX_ID = 2**63 - 1
_MAX_WORDS = 10
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem} for status in (400, 401, 403, 404, 405, 409, 413, 422, 429, 503)
}
_BEARER = HTTPBearer(auto_error=False, description="A token: `Authorization: Bearer clew_...`")
T = TypeVar("T")


def _without_zero(text: str) -> str:
    if "\x00" in text:
        raise ValueError("a text cannot contain the character 0")
    return text


Text = Annotated[str, AfterValidator(_without_zero), Field(max_length=10_000)]
Search = Annotated[str, Field(max_length=200), AfterValidator(_without_zero)]
"""A search. The database compares it with every place of long texts, so it is short."""
Name = Annotated[
    str, AfterValidator(_without_zero), Field(min_length=1, max_length=200, pattern=r"^[^/\\\s][^\\\n\r\t]*$")
]
Word = Annotated[str, Field(min_length=1, max_length=64, pattern=USER_NAME)]
Number = Annotated[int, Path(ge=1, le=MAX_ID, description="The id.")]
Document = Data


class Body(Section):
    """Base class of request bodies."""


class ResultPage(BaseModel, Generic[T]):
    """A page of a list. `next` is the `after` of the following page; null at the end."""

    items: list[T]
    next: int | None = None


def service_of(request: Request) -> Service:
    """Return the service of this server."""
    service: Service = request.app.state.service
    return service


def address_of(request: Request) -> str:
    """Return the address that a request came from."""
    return request.client.host if request.client else ""


ROUTE_SCOPES: dict[Callable[..., Any], tuple[str, ...]] = {}
"""The scopes that a dependency of routes asks for. `route_list` reads it."""


async def _caller(
    request: Request, bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)] = None
) -> Caller:
    return await authenticate(request, bearer.credentials if bearer else None)


def bearer_token(request: Request) -> str | None:
    """Return the token in the `Authorization` header."""
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else None


async def authenticate(request: Request, bearer: str | None) -> Caller:
    """Return the caller, by the token in the header or by the session cookie.

    Args:
        request: The request.
        bearer: The token of its `Authorization` header.

    Raises:
        RequestError: 401 without a valid token, 429 after too many invalid ones, 403 for a change without the header
            that the dashboard sends.
    """
    service, address = service_of(request), address_of(request)
    text = bearer or request.cookies.get(SESSION_COOKIE, "")
    caller = service.tokens.cached(text) if text else None
    if caller is None and text:
        caller = await run_in_threadpool(service.tokens.look_up, text)
    if caller is None:
        raise service.rate_limit.rejection(address, has_token=bool(text))
    if not bearer and request.method not in ("GET", "HEAD") and SESSION_HEADER not in request.headers:
        raise forbidden(
            f"a change by a browser's session needs the header {SESSION_HEADER}", hint="use the dashboard, or a token"
        )
    caller = caller if caller.address == address else service.tokens.with_address(caller, address)
    request.state.caller = caller
    return caller


def caller_with_scope(*scopes: str) -> Callable[..., Coroutine[Any, Any, Caller]]:
    """Return a dependency that gives the caller, who must have one of these scopes."""

    async def checked_caller(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
        return require_scope(caller, *scopes)

    ROUTE_SCOPES[checked_caller] = scopes
    return checked_caller


def require_scope(caller: Caller, *scopes: str) -> Caller:
    """Return the caller if it has one of these scopes.

    Raises:
        RequestError: it has none of them (403).
    """
    if not caller.scopes.intersection(scopes):
        hint = f"an administrator can make one that has it: `clew token create NAME --scope {scopes[0]} --user USER`"
        raise forbidden(f"this token lacks the scope {' or '.join(scopes)}", hint)
    return caller


ROUTE_SCOPES[_caller] = ()
ServiceOf = Annotated[Service, Depends(service_of)]
AnyCaller = Annotated[Caller, Depends(_caller)]
Reader = Annotated[Caller, Depends(caller_with_scope("read"))]
Author = Annotated[Caller, Depends(caller_with_scope("write"))]
Submitter = Annotated[Caller, Depends(caller_with_scope("submit"))]
AgentCaller = Annotated[Caller, Depends(caller_with_scope("agent"))]
Admin = Annotated[Caller, Depends(caller_with_scope("admin"))]
RunWriter = Annotated[Caller, Depends(caller_with_scope("write", "job"))]
"""A caller that may record a run: its owner, or the token of its job."""
RunReader = Annotated[Caller, Depends(caller_with_scope("read", "job"))]
Limit = Annotated[int, Query(ge=1, le=1000, description="Items per page.")]
After = Annotated[int | None, Query(ge=0, le=MAX_ID, description="The `next` of the page before.")]


def search_words(text: str) -> list[str]:
    """Return the words of a search.

    Raises:
        RequestError: there are too many; each is a condition of the query (422).
    """
    words = text.split(maxsplit=_MAX_WORDS)
    if len(words) > _MAX_WORDS:
        raise RequestError(422, f"a search has at most {_MAX_WORDS} words", where="search", hint="use fewer")
    return words


def paginate(
    connection: sa.Connection,
    query: sa.Select[Any],
    key: sa.Column[int],
    convert: Callable[[dict[str, Any]], T],
    *,
    limit: int,
    after: int | None,
) -> ResultPage[T]:
    """Return a page of a query, the newest first.

    Args:
        connection: An open connection.
        query: The query.
        key: The column of the id; ids only grow.
        convert: Makes an item from a row.
        limit: Items per page.
        after: The `next` of the page before.
    """
    if after is not None:
        query = query.where(key < after)
    rows = [dict(row) for row in connection.execute(query.order_by(key.desc()).limit(limit + 1)).mappings()]
    following = rows[limit - 1][key.name] if len(rows) > limit else None
    return ResultPage(items=[convert(row) for row in rows[:limit]], next=following)


def visible_row(connection: sa.Connection, table: sa.Table, number: int, caller: Caller, kind: str) -> Any:
    """Return a row that the caller may see.

    Raises:
        RequestError: there is none (404).
    """
    row = connection.execute(sa.select(table).where(table.c.id == number)).one_or_none()
    if row is None or not caller.can_see(row):
        raise not_found(kind, number)
    return row
