"""Users, groups and tokens: who asks, and what that person may see and do.

A token is `clew_` and 32 random bytes; the database has its SHA-256 alone. What belongs to a person may also belong to
one group; its members see and change it as the owner does. Administrators see everything.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from clew.server.database import Database
from clew.server.database.tables import audit, groups, jobs, members, tokens, users
from clew.server.database.writer import Change
from clew.server.problems import RefusedError, forbidden, missing

SCOPES = {
    "read": "look at what is mine and my groups'",
    "write": "push runs, upload artefacts, tag and delete; read too",
    "submit": "submit, cancel and retry jobs and studies; write too",
    "agent": "pull jobs and run them",
    "admin": "everything, for administrators",
}
"""What tokens of people may be good for; that of a job has the scope `job`: its own run and nothing else."""
_IMPLIED = {"write": {"read"}, "submit": {"read", "write"}, "admin": {"read", "write", "submit", "agent"}}
_FRESH = 30.0
"""Seconds for which a token is not looked up again."""


@dataclass(frozen=True)
class Caller:
    """Who asks."""

    user: int
    name: str
    admin: bool
    """An administrator, by a token that says so."""
    scopes: frozenset[str]
    """With those implied."""
    groups: frozenset[int]
    token: int
    expires: float | None = None
    job: int | None = None
    """Where the token is a job's: nothing but that job's run may be touched."""
    session: bool = False
    """Whether the token is that of a browser's session."""
    address: str = ""

    def sees(self, row: Any) -> bool:
        """Whether something with `owner` and `group` is there for the caller."""
        if self.job is not None:
            return bool(getattr(row, "job", None) == self.job)
        return self.admin or row.owner == self.user or (row.group is not None and row.group in self.groups)

    def seen(self, table: sa.Table) -> sa.ColumnElement[bool]:
        """The same as a condition on a table's rows."""
        if self.job is not None:
            return table.c.job == self.job if "job" in table.c else sa.false()
        if self.admin:
            return sa.true()
        mine = table.c.owner == self.user
        return mine | table.c.group.in_(sorted(self.groups)) if self.groups else mine

    def group(self, name: str | None, connection: sa.Connection) -> int | None:
        """The number of a group that the caller is in; what a job makes is its job's group's.

        Raises:
            RefusedError: there is none of that name, or the caller is not in it.
        """
        if name is None:
            return connection.scalar(sa.select(jobs.c.group).where(jobs.c.id == self.job)) if self.job else None
        found = connection.execute(sa.select(groups.c.id).where(groups.c.name == name)).scalar()
        if found is None or not (self.admin or found in self.groups):
            raise RefusedError(404, f"no such group: {name}", where="group", do="name one you are in")
        return int(found)


class People:
    """Finds who a token belongs to; remembers it for a while."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, tuple[float, Caller]] = {}
        self._used: dict[int, float] = {}
        self.changes = 0
        """How often users, groups or tokens changed."""

    def known(self, text: str) -> Caller | None:
        """Without asking the database; None where that is needed, or would say no."""
        found = self._known.get(digest(text))
        now = time.time()
        if found is None or found[0] < now or _over(found[1].expires, now):
            return None
        self._used[found[1].token] = now
        return found[1]

    def find(self, text: str) -> Caller | None:
        """Whose token this is; None where it is nobody's, or is revoked or has expired, or its user is disabled."""
        key = digest(text)
        with self._database.read() as connection:
            caller = _lookup(connection, tokens.c.hash == key)
        if caller is not None:
            if len(self._known) > 10_000:
                self._known.clear()
            self._known[key] = (time.time() + _FRESH, caller)
            self._used[caller.token] = time.time()
        return caller

    def still(self, caller: Caller) -> bool:
        """Whether somebody who was found a while ago would be found the same now."""
        with self._database.read() as connection:
            found = _lookup(connection, tokens.c.id == caller.token)
        return found is not None and self.at(found, caller.address) == caller

    def note(self, change: Change) -> None:
        """Write down when tokens were last used."""
        used, self._used = self._used, {}
        for token, moment in used.items():
            change.execute(tokens.update().where(tokens.c.id == token).values(used=moment))

    @staticmethod
    def at(caller: Caller, address: str) -> Caller:
        """The same, asking from there."""
        return replace(caller, address=address)

    def forget(self) -> None:
        """Look everybody up again: to be called when users, groups or tokens changed."""
        self.changes += 1
        self._known.clear()


def digest(text: str) -> str:
    """What the database has of a token. It is random, so nothing slower is needed."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _over(expires: float | None, now: float) -> bool:
    return expires is not None and expires <= now


def _lookup(connection: sa.Connection, which: sa.ColumnElement[bool]) -> Caller | None:
    query = sa.select(tokens, users.c.name.label("person"), users.c.admin, users.c.disabled).join(users)
    row = connection.execute(query.where(which)).one_or_none()
    if row is None or row.disabled or not _good(connection, row):
        return None
    found = connection.scalars(sa.select(members.c.group).where(members.c.user == row.user))
    scopes = implied(row.scopes)
    if not row.admin:
        scopes -= {"admin"}
    return Caller(
        user=row.user,
        name=row.person,
        admin="admin" in scopes,
        scopes=scopes,
        groups=frozenset(found),
        token=row.id,
        expires=row.expires,
        job=row.job,
        session=row.kind == "session",
    )


def _good(connection: sa.Connection, row: Any) -> bool:
    """Neither it nor the token it was made from is revoked or has expired."""
    if row.revoked is not None or _over(row.expires, time.time()):
        return False
    if row.parent is None:
        return True
    parent = connection.execute(sa.select(tokens).where(tokens.c.id == row.parent)).one_or_none()
    return parent is not None and _good(connection, parent)


def implied(scopes: Iterable[str]) -> frozenset[str]:
    """Scopes with what they bring."""
    return frozenset(scopes).union(*(_IMPLIED.get(scope, ()) for scope in scopes))


def add_user(change: Change, name: str, *, admin: bool = False) -> int:
    """A person; the number.

    Raises:
        RefusedError: the name is taken.
    """
    if change.scalar(sa.select(users.c.id).where(users.c.name == name)) is not None:
        raise RefusedError(409, f"there is a user {name} already", where="name", do="choose another name")
    return change.add(users, name=name, admin=admin, disabled=False, created=time.time())


def user_named(connection: sa.Connection, name: str) -> int:
    """Their number.

    Raises:
        RefusedError: there is none.
    """
    found = connection.execute(sa.select(users.c.id).where(users.c.name == name)).scalar()
    if found is None:
        raise missing("user", name)
    return int(found)


def group_named(connection: sa.Connection, name: str) -> int:
    """Likewise."""
    found = connection.execute(sa.select(groups.c.id).where(groups.c.name == name)).scalar()
    if found is None:
        raise missing("group", name)
    return int(found)


def add_token(
    change: Change,
    user: int,
    scopes: Sequence[str],
    *,
    name: str,
    expires: float | None = None,
    kind: str = "token",
    parent: int | None = None,
    job: int | None = None,
) -> tuple[int, str]:
    """Make a token; its number and its text, which is nowhere else."""
    text = f"clew_{secrets.token_urlsafe(32)}"
    row = {"user": user, "name": name, "kind": kind, "hash": digest(text), "hint": text[:10], "scopes": list(scopes)}
    row |= {"parent": parent, "job": job, "created": time.time(), "expires": expires}
    return change.add(tokens, **row), text


def revoke(change: Change, caller: Caller, token: int) -> None:
    """End a token, and those made from it.

    Raises:
        RefusedError: it is not the caller's.
    """
    row = change.execute(sa.select(tokens).where(tokens.c.id == token)).one_or_none()
    if row is None or not (caller.admin or row.user == caller.user):
        raise missing("token", token)
    change.execute(tokens.update().where(tokens.c.id == token, tokens.c.revoked.is_(None)).values(revoked=time.time()))


def check_scopes(caller: Caller, asked: Sequence[str]) -> None:
    """A token makes no token that may more than itself.

    Raises:
        RefusedError: it would.
    """
    more = set(asked) - caller.scopes
    if more:
        raise forbidden(f"this token cannot give {', '.join(sorted(more))}: it has not got that itself")


def record(change: Change, caller: Caller | None, action: str, what: str, **detail: Any) -> None:
    """Write down who did what."""
    user, token, address = (caller.user, caller.token, caller.address) if caller else (None, None, "")
    who = {"user": user, "token": token, "address": address}
    change.add_later(audit, time=time.time(), action=action, what=what, detail=detail or None, **who)
