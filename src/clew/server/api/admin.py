"""Routes for administrators: users, groups and the audit log."""

from __future__ import annotations

import time
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, Field

from clew.server.accounts.audit import record_action
from clew.server.accounts.caller import Caller
from clew.server.accounts.users import USER_NAME, add_user, group_id, user_id
from clew.server.api.dependencies import (
    PROBLEMS,
    Admin,
    After,
    Body,
    Limit,
    ResultPage,
    ServiceOf,
    Word,
    caller_with_scope,
    paginate,
)
from clew.server.api.fast_routes import BoundedRoute
from clew.server.database.tables import audit, groups, members, users
from clew.server.database.writer import Transaction
from clew.server.problems import RequestError

router = APIRouter(prefix="/api/v1", tags=["accounts"], responses=PROBLEMS, route_class=BoundedRoute)
PathName = Annotated[str, Path(min_length=1, max_length=64, pattern=USER_NAME)]


class NewUser(Body):
    """A user to add."""

    name: Word
    admin: bool = False


class UserChange(Body):
    """Changes of a user; fields that are absent stay. A quota of null is the server's default."""

    admin: bool | None = None
    disabled: bool | None = None
    quota_jobs: int | None = Field(None, ge=0, le=10**6)
    quota_bytes: int | None = Field(None, ge=0, le=10**18)


class UserInfo(BaseModel):
    """A user."""

    id: int
    name: str
    admin: bool
    disabled: bool
    quota_jobs: int | None
    quota_bytes: int | None
    created: float
    groups: list[str] = []


class NewGroup(Body):
    """A group to create."""

    name: Word


class GroupInfo(BaseModel):
    """A group and its members."""

    id: int
    name: str
    members: list[str]


class AuditEntry(BaseModel):
    """An entry of the audit log."""

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
def list_users(service: ServiceOf, caller: Admin) -> list[UserInfo]:
    """List all users."""
    with service.database.read() as connection:
        by_user: dict[int, list[str]] = {}
        for user, group in connection.execute(sa.select(members.c.user, groups.c.name).join(groups)):
            by_user.setdefault(user, []).append(group)
        rows = connection.execute(sa.select(users).order_by(users.c.name)).mappings()
        return [UserInfo(**row, groups=sorted(by_user.get(row["id"], []))) for row in rows]


@router.post("/users", status_code=201)
async def make_user(service: ServiceOf, caller: Admin, body: NewUser) -> UserInfo:
    """Add a user. Tokens are created separately."""

    def work(transaction: Transaction) -> UserInfo:
        number = add_user(transaction, body.name, admin=body.admin)
        record_action(transaction, caller, "make user", f"user:{number}", name=body.name, admin=body.admin)
        return UserInfo(**transaction.execute(sa.select(users).where(users.c.id == number)).mappings().one())

    return await service.write_async(work)


@router.patch("/users/{name}")
async def change_user(service: ServiceOf, caller: Admin, name: PathName, body: UserChange) -> UserInfo:
    """Disable a user (the user's tokens end at once), make an administrator, or set quotas."""

    def work(transaction: Transaction) -> UserInfo:
        number, values = user_id(transaction.connection, name), body.model_dump(exclude_unset=True)
        if number == caller.user and (values.get("disabled") or values.get("admin") is False):
            raise RequestError(409, "you would lock yourself out", hint="ask another administrator to do it")
        values = {key: value for key, value in values.items() if value is not None or key.startswith("quota")}
        if values:
            transaction.execute(users.update().where(users.c.id == number).values(values))
            record_action(transaction, caller, "change user", f"user:{number}", **values)
            transaction.after_commit.append(service.tokens.clear)
        row = transaction.execute(sa.select(users).where(users.c.id == number)).mappings().one()
        query = sa.select(groups.c.name).join(members).where(members.c.user == number).order_by(groups.c.name)
        return UserInfo(**row, groups=list(transaction.execute(query).scalars()))

    return await service.write_async(work)


@router.get("/groups")
def list_groups(
    service: ServiceOf, caller: Annotated[Caller, Depends(caller_with_scope("read", "agent"))]
) -> list[GroupInfo]:
    """List the caller's groups; administrators see all groups."""
    with service.database.read() as connection:
        query = sa.select(groups).order_by(groups.c.name)
        if not caller.admin:
            query = query.where(groups.c.id.in_(sorted(caller.groups)))
        rows = connection.execute(query).all()
        names = sa.select(members.c.group, users.c.name).join(users).order_by(users.c.name)
        by_group: dict[int, list[str]] = {}
        for group, user in connection.execute(names):
            by_group.setdefault(group, []).append(user)
        return [GroupInfo(id=row.id, name=row.name, members=by_group.get(row.id, [])) for row in rows]


@router.post("/groups", status_code=201)
async def make_group(service: ServiceOf, caller: Admin, body: NewGroup) -> GroupInfo:
    """Create a group without members."""

    def work(transaction: Transaction) -> GroupInfo:
        if transaction.scalar(sa.select(groups.c.id).where(groups.c.name == body.name)) is not None:
            raise RequestError(409, f"there is already a group {body.name}", where="name", hint="choose another name")
        number = transaction.add(groups, name=body.name, created=time.time())
        record_action(transaction, caller, "make group", f"group:{number}", name=body.name)
        return GroupInfo(id=number, name=body.name, members=[])

    return await service.write_async(work)


@router.put("/groups/{group}/members/{name}", status_code=204)
async def join_group(service: ServiceOf, caller: Admin, group: PathName, name: PathName) -> None:
    """Add a user to a group."""
    await service.write_async(
        lambda transaction: _set_membership(service, transaction, caller, group, name, member=True)
    )


@router.delete("/groups/{group}/members/{name}", status_code=204)
async def leave_group(service: ServiceOf, caller: Admin, group: PathName, name: PathName) -> None:
    """Remove a user from a group."""
    await service.write_async(
        lambda transaction: _set_membership(service, transaction, caller, group, name, member=False)
    )


@router.get("/audit")
def list_audit(service: ServiceOf, caller: Admin, limit: Limit = 100, after: After = None) -> ResultPage[AuditEntry]:
    """List the audit log, the newest first."""
    query = sa.select(audit, users.c.name.label("user_name")).outerjoin(users, users.c.id == audit.c.user)
    with service.database.read() as connection:
        return paginate(connection, query, audit.c.id, lambda row: AuditEntry(**row), limit=limit, after=after)


def _set_membership(
    service: ServiceOf, transaction: Transaction, caller: Admin, group: str, name: str, *, member: bool
) -> None:
    row = {"user": user_id(transaction.connection, name), "group": group_id(transaction.connection, group)}
    transaction.execute(members.delete().where(members.c.user == row["user"], members.c.group == row["group"]))
    if member:
        transaction.execute(members.insert().values(row))
    record_action(
        transaction, caller, "join group" if member else "leave group", f"group:{row['group']}", user=row["user"]
    )
    transaction.after_commit.append(service.tokens.clear)
