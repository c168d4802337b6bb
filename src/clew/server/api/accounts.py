"""Who I am, sessions of browsers, tokens."""

from __future__ import annotations

import time
from typing import Any, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from clew.server.accounts.callers import Caller, add_token, check_scopes, record, revoke, user_named
from clew.server.api.dependencies import (
    COOKIE,
    PROBLEMS,
    Anybody,
    Author,
    Body,
    Name,
    Number,
    ServiceOf,
    address_of,
    allowed,
)
from clew.server.database.tables import groups, tokens
from clew.server.database.writer import Change
from clew.server.problems import RefusedError, forbidden
from clew.server.service import Service

router = APIRouter(prefix="/api/v1", tags=["people"], responses=PROBLEMS)
_SESSION = 12 * 3600.0
Scope = Literal["read", "write", "submit", "agent", "admin"]


class Me(BaseModel):
    """Who asks."""

    user: int
    name: str
    admin: bool
    scopes: list[str]
    groups: list[str]
    expires: float | None


class LogIn(Body):
    """A token, to be exchanged for a session's cookie."""

    token: str = Field(max_length=200)


class NewToken(Body):
    """A token to make."""

    name: Name
    scopes: list[Scope] = Field(min_length=1, max_length=10)
    user: Name | None = None
    """For whom; only administrators make tokens for others."""
    days: float | None = Field(90, gt=0, le=3660)
    """After which it expires; null: never."""


class Token(BaseModel):
    """One that was made. `token` is its text, told once; the server cannot tell it again."""

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
def me(service: ServiceOf, caller: Anybody) -> Me:
    """Who I am, and what I may."""
    with service.database.read() as connection:
        names = connection.scalars(sa.select(groups.c.name).where(groups.c.id.in_(sorted(caller.groups))))
        known = sorted(names)
    scopes = sorted(caller.scopes)
    return Me(
        user=caller.user, name=caller.name, admin=caller.admin, scopes=scopes, groups=known, expires=caller.expires
    )


@router.post("/session", status_code=204)
async def log_in(service: ServiceOf, body: LogIn, request: Request, response: Response) -> None:
    """Exchange a token for the cookie of a browser's session, of 12 hours."""
    give_cookie(service, response, await open_session(service, body.token, address_of(request)))


@router.delete("/session", status_code=204)
async def log_out(service: ServiceOf, caller: Anybody, response: Response) -> None:
    """End the session, or revoke the token that asks."""
    await close_session(service, caller)
    response.delete_cookie(COOKIE, path="/")


@router.get("/tokens")
def list_tokens(service: ServiceOf, caller: Anybody) -> list[Token]:
    """Mine, without their texts."""
    _not_a_job(caller)
    with service.database.read() as connection:
        query = sa.select(tokens).where(tokens.c.user == caller.user, tokens.c.kind == "token").order_by(tokens.c.id)
        return [Token(**_shown(row)) for row in connection.execute(query).mappings()]


@router.post("/tokens", status_code=201)
async def make_token(service: ServiceOf, caller: Author, body: NewToken) -> Token:
    """A new one for me, which may no more than the one that asks and ends with it; administrators make them for others
    too, and those stand alone.
    """
    check_scopes(caller, body.scopes)
    if body.user not in (None, caller.name) and not caller.admin:
        raise forbidden("only administrators make tokens for others", do="ask one")
    expires = None if body.days is None else time.time() + 86400 * body.days

    def work(change: Change) -> dict[str, Any]:
        user = caller.user if body.user is None else user_named(change.connection, body.user)
        parent, until = _above(change, caller) if user == caller.user else (None, None)
        until = min((each for each in (expires, until) if each is not None), default=None)
        number, text = add_token(change, user, body.scopes, name=body.name, expires=until, parent=parent)
        record(change, caller, "make token", f"token:{number}", user=user, scopes=body.scopes)
        row = change.execute(sa.select(tokens).where(tokens.c.id == number)).mappings().one()
        return {**_shown(row), "token": text}

    return Token(**await service.write_soon(work))


@router.delete("/tokens/{number}", status_code=204)
async def revoke_token(service: ServiceOf, caller: Anybody, number: Number) -> None:
    """End one of mine; administrators may end anybody's. Sessions and tokens made from it end too."""
    if number != caller.token:
        allowed(caller, "write")

    def work(change: Change) -> None:
        revoke(change, caller, number)
        record(change, caller, "revoke token", f"token:{number}")
        change.after.append(service.people.forget)

    await service.write_soon(work)


async def open_session(service: Service, token: str, address: str) -> str:
    """The cookie's value for who has this token.

    Raises:
        RefusedError: the token is not good, or not a person's.
    """
    found = await run_in_threadpool(service.people.find, token)
    if found is None or found.session or found.job is not None:
        raise service.doorman.turned_away(address, given=True)
    caller = service.people.at(found, address)

    def work(change: Change) -> str:
        until = min(time.time() + _SESSION, caller.expires or float("inf"))
        number, text = add_token(
            change,
            caller.user,
            sorted(caller.scopes),
            name="browser",
            expires=until,
            kind="session",
            parent=caller.token,
        )
        record(change, caller, "log in", f"token:{number}")
        return text

    return await service.write_soon(work)


async def close_session(service: Service, caller: Caller) -> None:
    """The token that asked is good no more."""

    def work(change: Change) -> None:
        revoke(change, caller, caller.token)
        record(change, caller, "log out", f"token:{caller.token}")
        change.after.append(service.people.forget)

    await service.write_soon(work)


def give_cookie(service: Service, response: Response, text: str) -> None:
    """Set it so that no script reads it and no other site sends it."""
    secure = service.config.secure
    response.set_cookie(COOKIE, text, max_age=int(_SESSION), httponly=True, samesite="strict", secure=secure, path="/")


def _above(change: Change, caller: Caller) -> tuple[int, float | None]:
    """The token that one made by the caller ends with, and when that expires: a session's is the one that opened it."""
    row = change.execute(sa.select(tokens.c.parent).where(tokens.c.id == caller.token)).one()
    number = row.parent if caller.session else caller.token
    return number, change.scalar(sa.select(tokens.c.expires).where(tokens.c.id == number))


def _not_a_job(caller: Caller) -> None:
    if caller.job is not None:
        raise RefusedError(403, "a job's token lists no tokens", do="use your own")


def _shown(row: Any) -> dict[str, Any]:
    return {name: row[name] for name in ("id", "name", "hint", "scopes", "created", "expires", "used", "revoked")}
