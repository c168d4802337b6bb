"""The page of accounts: the user's own tokens; for administrators all users, groups and the audit log."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from fastapi import Request, Response

from clew.client.job import ACTIVE_STATES
from clew.server.accounts.caller import Caller
from clew.server.accounts.tokens import SCOPES
from clew.server.api import accounts as api
from clew.server.api import admin
from clew.server.dashboard import layout
from clew.server.dashboard.formatting import size
from clew.server.database.tables import groups, jobs, runs
from clew.server.service import Service
from clew.server.storage.quota import stored_bytes_by_user

router = layout.router()
_AUDIT_ENTRIES = 60


@router.get("/accounts")
def accounts(request: Request, viewer: layout.Viewer) -> Response:
    """The user's rights and tokens, and for administrators all users."""
    service: Service = request.app.state.service
    values: dict[str, Any] = {
        "tokens": [token for token in api.list_tokens(service, viewer) if token.revoked is None],
        "facts": _facts(service, viewer),
        "scopes": [scope for scope in SCOPES if scope in viewer.scopes],
        "users": [],
        "groups": [],
        "audit": [],
    }
    if viewer.admin:
        values |= {"users": _users(service, viewer), "groups": admin.list_groups(service, viewer)}
        values["audit"] = admin.list_audit(service, viewer, limit=_AUDIT_ENTRIES, after=None).items
    return layout.page(request, "accounts.html", "accounts", **values)


def _facts(service: Service, viewer: Caller) -> list[str]:
    with service.database.read() as connection:
        names = connection.scalars(sa.select(groups.c.name).where(groups.c.id.in_(sorted(viewer.groups))))
        group_names = sorted(names)
        usage = _usage(connection).get(viewer.user, {})
    limits = service.config.limits
    return [
        "administrator" if viewer.admin else "scopes " + ", ".join(s for s in SCOPES if s in viewer.scopes),
        *([f"group {', '.join(group_names)}"] if group_names else []),
        f"{usage.get('jobs', 0)} of {limits.quota_jobs} running jobs",
        f"{size(usage.get('stored', 0))} of {size(limits.quota_bytes)} stored",
    ]


def _users(service: Service, viewer: Caller) -> list[dict[str, Any]]:
    with service.database.read() as connection:
        usage = _usage(connection)
    none = {"runs": 0, "jobs": 0, "stored": 0}
    return [{**user.model_dump(), **none, **usage.get(user.id, {})} for user in admin.list_users(service, viewer)]


def _usage(connection: sa.Connection) -> dict[int, dict[str, int]]:
    """Return the numbers of runs and active jobs and the stored bytes, by user id."""
    count, active = sa.func.count(), jobs.c.state.in_(ACTIVE_STATES)
    queries = {
        "runs": sa.select(runs.c.owner, count).group_by(runs.c.owner),
        "jobs": sa.select(jobs.c.owner, count).where(active).group_by(jobs.c.owner),
    }
    usage: dict[int, dict[str, int]] = {}
    for name, query in queries.items():
        for owner, number in connection.execute(query):
            usage.setdefault(owner, {})[name] = int(number or 0)
    for owner, stored in stored_bytes_by_user(connection).items():
        usage.setdefault(owner, {})["stored"] = stored
    return usage
