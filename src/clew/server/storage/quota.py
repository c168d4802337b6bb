"""Storage quotas: how much a user stores, and how much more is allowed."""

from __future__ import annotations

import sqlalchemy as sa

from clew.server.config import ServerLimits
from clew.server.database.tables import artefacts, jobs, users
from clew.server.problems import RequestError

_OWNER_AND_BYTES = ((artefacts.c.owner, artefacts.c.bytes), (jobs.c.owner, jobs.c.printed))
"""Columns of what counts towards the quota: artefacts and logs of jobs."""


def stored_bytes(connection: sa.Connection, user: int) -> int:
    """Return the bytes of a user's artefacts and job logs."""
    return stored_bytes_by_user(connection, user).get(user, 0)


def stored_bytes_by_user(connection: sa.Connection, user: int | None = None) -> dict[int, int]:
    """Return the stored bytes of all users, or of one, by user id."""
    totals: dict[int, int] = {}
    for owner, size in _OWNER_AND_BYTES:
        query = sa.select(owner, sa.func.sum(size)).group_by(owner)
        for number, total in connection.execute(query if user is None else query.where(owner == user)):
            totals[number] = totals.get(number, 0) + int(total or 0)
    return totals


def storage_quota(connection: sa.Connection, user: int, limits: ServerLimits) -> int:
    """Return the bytes that a user may store."""
    quota = connection.execute(sa.select(users.c.quota_bytes).where(users.c.id == user)).scalar()
    return limits.quota_bytes if quota is None else int(quota)


def remaining_bytes(connection: sa.Connection, user: int, limits: ServerLimits) -> int:
    """Return the bytes that a user may add; zero or less if the quota is used up."""
    return storage_quota(connection, user, limits) - stored_bytes(connection, user)


def quota_exceeded() -> RequestError:
    """Return the error for a user whose quota is used up."""
    return RequestError(413, "the storage quota is used up", hint="delete artefacts, or ask an administrator for more")
