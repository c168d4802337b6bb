"""For administrators: users, groups, what was done."""

from __future__ import annotations

import time
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from clew.server.accounts.callers import add_user, group_named, record, user_named
from clew.server.api.dependencies import PROBLEMS, Admin, After, Anybody, Body, Limit, Page, ServiceOf, Word, page
from clew.server.database.tables import audit, groups, members, users
from clew.server.database.writer import Change
from clew.server.problems import RefusedError

router = APIRouter(prefix="/api/v1", tags=["people"], responses=PROBLEMS)
Called = Annotated[str, Path(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]*$")]


class NewUser(Body):
    """A person to add."""

    name: Word
    admin: bool = False


class UserChange(Body):
    """What to change; what is not given stays. A quota of null is the server's own."""

    admin: bool | None = None
    disabled: bool | None = None
    quota_jobs: int | None = Field(None, ge=0, le=10**6)
    quota_bytes: int | None = Field(None, ge=0, le=10**18)


class User(BaseModel):
    """A person."""

    id: int
    name: str
    admin: bool
    disabled: bool
    quota_jobs: int | None
    quota_bytes: int | None
    created: float
    groups: list[str] = []


class NewGroup(Body):
    """A group to make."""

    name: Word


class Group(BaseModel):
    """A group and who is in it."""

    id: int
    name: str
    members: list[str]


class Deed(BaseModel):
    """Who did what."""

    id: int
    time: float
    user: int | None
    user_name: str | None
    token: int | None
    address: str
    action: str
    what: str
    detail: Any


@router.get("/users")
def list_users(service: ServiceOf, caller: Admin) -> list[User]:
    """Everybody."""
    with service.database.read() as connection:
        named: dict[int, list[str]] = {}
        for user, group in connection.execute(sa.select(members.c.user, groups.c.name).join(groups)):
            named.setdefault(user, []).append(group)
        found = connection.execute(sa.select(users).order_by(users.c.name)).mappings()
        return [User(**row, groups=sorted(named.get(row["id"], []))) for row in found]


@router.post("/users", status_code=201)
async def make_user(service: ServiceOf, caller: Admin, body: NewUser) -> User:
    """Add a person; tokens are made apart."""

    def work(change: Change) -> User:
        number = add_user(change, body.name, admin=body.admin)
        record(change, caller, "make user", f"user:{number}", name=body.name, admin=body.admin)
        return User(**change.execute(sa.select(users).where(users.c.id == number)).mappings().one())

    return await service.write_soon(work)


@router.patch("/users/{name}")
async def change_user(service: ServiceOf, caller: Admin, name: Called, body: UserChange) -> User:
    """Disable a person (their tokens end at once), make an administrator, set quotas."""

    def work(change: Change) -> User:
        number, given = user_named(change.connection, name), body.model_dump(exclude_unset=True)
        if number == caller.user and (given.get("disabled") or given.get("admin") is False):
            raise RefusedError(409, "you would lock yourself out", do="ask another administrator to do it")
        given = {key: value for key, value in given.items() if value is not None or key.startswith("quota")}
        if given:
            change.execute(users.update().where(users.c.id == number).values(given))
            record(change, caller, "change user", f"user:{number}", **given)
            change.after.append(service.people.forget)
        return User(**change.execute(sa.select(users).where(users.c.id == number)).mappings().one())

    return await service.write_soon(work)


@router.get("/groups")
def list_groups(service: ServiceOf, caller: Anybody) -> list[Group]:
    """Mine; administrators see all."""
    with service.database.read() as connection:
        query = sa.select(groups).order_by(groups.c.name)
        if not caller.admin:
            query = query.where(groups.c.id.in_(sorted(caller.groups)))
        found = connection.execute(query).all()
        inside = sa.select(members.c.group, users.c.name).join(users).order_by(users.c.name)
        named: dict[int, list[str]] = {}
        for group, person in connection.execute(inside):
            named.setdefault(group, []).append(person)
        return [Group(id=row.id, name=row.name, members=named.get(row.id, [])) for row in found]


@router.post("/groups", status_code=201)
async def make_group(service: ServiceOf, caller: Admin, body: NewGroup) -> Group:
    """A group with nobody in it."""

    def work(change: Change) -> Group:
        if change.scalar(sa.select(groups.c.id).where(groups.c.name == body.name)) is not None:
            raise RefusedError(409, f"there is a group {body.name} already", where="name", do="choose another name")
        number = change.add(groups, name=body.name, created=time.time())
        record(change, caller, "make group", f"group:{number}", name=body.name)
        return Group(id=number, name=body.name, members=[])

    return await service.write_soon(work)


@router.put("/groups/{group}/members/{name}", status_code=204)
async def join_group(service: ServiceOf, caller: Admin, group: Called, name: Called) -> None:
    """Put a person into a group."""
    await service.write_soon(lambda change: _member(service, change, caller, group, name, inside=True))


@router.delete("/groups/{group}/members/{name}", status_code=204)
async def leave_group(service: ServiceOf, caller: Admin, group: Called, name: Called) -> None:
    """Take a person out of a group."""
    await service.write_soon(lambda change: _member(service, change, caller, group, name, inside=False))


@router.get("/audit")
def list_deeds(service: ServiceOf, caller: Admin, limit: Limit = 100, after: After = None) -> Page[Deed]:
    """Who did what, newest first."""
    query = sa.select(audit, users.c.name.label("user_name")).outerjoin(users, users.c.id == audit.c.user)
    with service.database.read() as connection:
        return page(connection, query, audit.c.id, lambda row: Deed(**row), limit=limit, after=after)


def _member(service: ServiceOf, change: Change, caller: Admin, group: str, name: str, *, inside: bool) -> None:
    row = {"user": user_named(change.connection, name), "group": group_named(change.connection, group)}
    change.execute(members.delete().where(members.c.user == row["user"], members.c.group == row["group"]))
    if inside:
        change.execute(members.insert().values(row))
    record(change, caller, "join group" if inside else "leave group", f"group:{row['group']}", user=row["user"])
    change.after.append(service.people.forget)
