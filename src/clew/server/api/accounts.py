"""Routes for the caller itself, browser sessions and tokens."""

from __future__ import annotations

import time
from typing import Any, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from clew.server.accounts.audit import record_action
from clew.server.accounts.caller import Caller
from clew.server.accounts.tokens import NewTokenRow, add_token, check_scopes, revoke_token
from clew.server.accounts.users import user_id
from clew.server.api.dependencies import (
    PROBLEMS,
    SESSION_COOKIE,
    AnyCaller,
    Author,
    Body,
    Name,
    Number,
    ServiceOf,
    address_of,
    require_scope,
)
from clew.server.api.fast_routes import BoundedRoute
from clew.server.database.tables import groups, tokens
from clew.server.database.writer import Transaction
from clew.server.problems import RequestError, forbidden
from clew.server.service import Service

router = APIRouter(prefix="/api/v1", tags=["accounts"], responses=PROBLEMS, route_class=BoundedRoute)
_SESSION_SECONDS = 12 * 3600.0
Scope = Literal["read", "write", "submit", "agent", "admin"]


class CallerInfo(BaseModel):
    """The user of the request, with the rights of the token."""

    user: int
    name: str
    admin: bool
    scopes: list[str]
    groups: list[str]
    expires: float | None


class LogIn(Body):
    """A token to exchange for a session cookie."""

    token: str = Field(max_length=200)


class NewToken(Body):
    """A token to create."""

    name: Name
    scopes: list[Scope] = Field(min_length=1, max_length=10)
    user: Name | None = None
    """The user of the token; only administrators create tokens for other users."""
    days: float | None = Field(90, gt=0, le=3660)
    """Days until it expires; null: never."""


class TokenInfo(BaseModel):
    """A token. `token` is its text, which only the answer to its creation has; the server does not store it."""

    id: int
    name: str
    hint: str
    scopes: list[str]
    created: float
    expires: float | None = None
    used: float | None = None
    revoked: float | None = None
    token: str | None = None


@router.get("/me")
def me(service: ServiceOf, caller: AnyCaller) -> CallerInfo:
    """Return the user of the token and its scopes. The token of a job does not learn the user's groups."""
    numbers = sorted(caller.groups) if caller.job is None else []
    with service.database.read() as connection:
        names = connection.scalars(sa.select(groups.c.name).where(groups.c.id.in_(numbers)))
        group_names = sorted(names)
    scopes = sorted(caller.scopes)
    return CallerInfo(
        user=caller.user,
        name=caller.name,
        admin=caller.admin,
        scopes=scopes,
        groups=group_names,
        expires=caller.expires,
    )


@router.post("/session", status_code=204)
async def log_in(service: ServiceOf, body: LogIn, request: Request, response: Response) -> None:
    """Exchange a token for the cookie of a browser session of 12 hours."""
    set_session_cookie(service, response, await open_session(service, body.token, address_of(request)))


@router.delete("/session", status_code=204)
async def log_out(service: ServiceOf, caller: AnyCaller, response: Response) -> None:
    """End the session, or revoke the token of the request."""
    await close_session(service, caller)
    response.delete_cookie(SESSION_COOKIE, path="/")


@router.get("/tokens")
def list_tokens(service: ServiceOf, caller: AnyCaller) -> list[TokenInfo]:
    """List the caller's tokens, without their texts."""
    _refuse_job_token(caller)
    with service.database.read() as connection:
        query = sa.select(tokens).where(tokens.c.user == caller.user, tokens.c.kind == "token").order_by(tokens.c.id)
        return [TokenInfo(**_token_values(row)) for row in connection.execute(query).mappings()]


@router.post("/tokens", status_code=201)
async def make_token(service: ServiceOf, caller: Author, body: NewToken) -> TokenInfo:
    """Create a token.

    A token for the caller has no more scopes than the token of the request, and ends with it. Administrators also
    create tokens for other users; these do not depend on the administrator's token.
    """
    check_scopes(caller, body.scopes)
    if body.user not in (None, caller.name) and not caller.admin:
        raise forbidden("only administrators create tokens for other users", hint="ask one")
    expires = None if body.days is None else time.time() + 86400 * body.days

    def work(transaction: Transaction) -> dict[str, Any]:
        user = caller.user if body.user is None else user_id(transaction.connection, body.user)
        parent, until = _parent_token(transaction, caller) if user == caller.user else (None, None)
        until = min((moment for moment in (expires, until) if moment is not None), default=None)
        token = NewTokenRow(user, body.scopes, body.name, expires=until, parent=parent)
        number, text = add_token(transaction, token)
        record_action(transaction, caller, "make token", f"token:{number}", user=user, scopes=body.scopes)
        row = transaction.execute(sa.select(tokens).where(tokens.c.id == number)).mappings().one()
        return {**_token_values(row), "token": text}

    return TokenInfo(**await service.write_async(work))


@router.delete("/tokens/{number}", status_code=204)
async def end_token(service: ServiceOf, caller: AnyCaller, number: Number) -> None:
    """Revoke a token of the caller; administrators may revoke any. Sessions and tokens made from it end too."""
    if number != caller.token:
        require_scope(caller, "write")

    def work(transaction: Transaction) -> None:
        revoke_token(transaction, caller, number)
        record_action(transaction, caller, "revoke token", f"token:{number}")
        transaction.after_commit.append(service.tokens.clear)

    await service.write_async(work)


async def open_session(service: Service, token: str, address: str) -> str:
    """Open a browser session.

    Args:
        service: The server.
        token: A token of a user.
        address: Where the request came from.

    Returns:
        The value of the session cookie.

    Raises:
        RequestError: the token is not valid, or it is that of a session or a job.
    """
    owner = await run_in_threadpool(service.tokens.look_up, token)
    if owner is None or owner.session or owner.job is not None:
        raise service.rate_limit.rejection(address, has_token=True)
    caller = service.tokens.with_address(owner, address)

    def work(transaction: Transaction) -> str:
        until = min(time.time() + _SESSION_SECONDS, caller.expires or float("inf"))
        scopes = sorted(caller.scopes)
        session = NewTokenRow(caller.user, scopes, "browser", until, kind="session", parent=caller.token)
        number, text = add_token(transaction, session)
        record_action(transaction, caller, "log in", f"token:{number}")
        return text

    return await service.write_async(work)


async def close_session(service: Service, caller: Caller) -> None:
    """Revoke the token of the caller."""

    def work(transaction: Transaction) -> None:
        revoke_token(transaction, caller, caller.token)
        record_action(transaction, caller, "log out", f"token:{caller.token}")
        transaction.after_commit.append(service.tokens.clear)

    await service.write_async(work)


def set_session_cookie(service: Service, response: Response, text: str) -> None:
    """Set the cookie so that no script can read it and no other site can send it."""
    secure = service.config.secure
    response.set_cookie(
        SESSION_COOKIE, text, max_age=int(_SESSION_SECONDS), httponly=True, samesite="strict", secure=secure, path="/"
    )


def _parent_token(transaction: Transaction, caller: Caller) -> tuple[int, float | None]:
    """Return the token that a new token depends on, and when it expires: for a session, the token that opened it."""
    row = transaction.execute(sa.select(tokens.c.parent).where(tokens.c.id == caller.token)).one()
    number = row.parent if caller.session else caller.token
    return number, transaction.scalar(sa.select(tokens.c.expires).where(tokens.c.id == number))


def _refuse_job_token(caller: Caller) -> None:
    if caller.job is not None:
        raise RequestError(403, "the token of a job cannot list tokens", hint="use your own")


def _token_values(row: Any) -> dict[str, Any]:
    return {name: row[name] for name in ("id", "name", "hint", "scopes", "created", "expires", "used", "revoked")}
