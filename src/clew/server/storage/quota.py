"""How much a person stores, and how much more it may be."""

from __future__ import annotations

import sqlalchemy as sa

from clew.server.config import Limits
from clew.server.database.tables import artefacts, jobs, users
from clew.server.problems import RefusedError

_TAKEN = {"artefacts": (artefacts.c.owner, artefacts.c.bytes), "logs": (jobs.c.owner, jobs.c.printed)}
"""Whose bytes, and how many."""


def used(connection: sa.Connection, user: int) -> int:
    """Bytes of a person's artefacts, and of what their jobs printed."""
    return taken(connection, user).get(user, 0)


def taken(connection: sa.Connection, user: int | None = None) -> dict[int, int]:
    """The same of everybody, or of one."""
    found: dict[int, int] = {}
    for owner, size in _TAKEN.values():
        query = sa.select(owner, sa.func.sum(size)).group_by(owner)
        for who, total in connection.execute(query if user is None else query.where(owner == user)):
            found[who] = found.get(who, 0) + int(total or 0)
    return found


def quota(connection: sa.Connection, user: int, limits: Limits) -> int:
    """Bytes that a person may store."""
    own = connection.execute(sa.select(users.c.quota_bytes).where(users.c.id == user)).scalar()
    return limits.quota_bytes if own is None else int(own)


def left(connection: sa.Connection, user: int, limits: Limits) -> int:
    """Bytes that a person may add; not more than none where there are too many."""
    return quota(connection, user, limits) - used(connection, user)


def full() -> RefusedError:
    """There is no room left."""
    return RefusedError(413, "the storage quota is used up", do="delete artefacts, or ask an administrator for more")
