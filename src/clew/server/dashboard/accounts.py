"""One's own tokens; for administrators everybody, and what was done."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from fastapi import Request, Response

from clew.client.job import ACTIVE
from clew.server.accounts.callers import SCOPES, Caller
from clew.server.api import accounts as api
from clew.server.api import admin
from clew.server.dashboard import layout
from clew.server.dashboard.formatting import size
from clew.server.database.tables import groups, jobs, runs
from clew.server.service import Service
from clew.server.storage import quota

router = layout.router()


@router.get("/people")
def people(request: Request, viewer: layout.Viewer) -> Response:
    """Who I am and what I may."""
    service: Service = request.app.state.service
    tokens = [each for each in api.list_tokens(service, viewer) if each.revoked is None]
    values: dict[str, Any] = {
        "tokens": tokens,
        "facts": _facts(service, viewer),
        "people": [],
        "audit": [],
        "groups": [],
    }
    values["scopes"] = [scope for scope in SCOPES if scope in viewer.scopes]
    if viewer.admin:
        values |= {"people": _people(service, viewer), "groups": admin.list_groups(service, viewer)}
        values["audit"] = admin.list_deeds(service, viewer, limit=60, after=None).items
    return layout.page(request, "people.html", "people", **values)


def _facts(service: Service, viewer: Caller) -> list[str]:
    with service.database.read() as connection:
        named = connection.scalars(sa.select(groups.c.name).where(groups.c.id.in_(sorted(viewer.groups))))
        teams = sorted(named)
        mine = _taken(connection).get(viewer.user, {})
    limits = service.config.limits
    return [
        "administrator" if viewer.admin else "may " + ", ".join(s for s in SCOPES if s in viewer.scopes),
        *([f"group {', '.join(teams)}"] if teams else []),
        f"{mine.get('jobs', 0)} of {limits.quota_jobs} running jobs",
        f"{size(mine.get('stored', 0))} of {size(limits.quota_bytes)} stored",
    ]


def _people(service: Service, viewer: Caller) -> list[dict[str, Any]]:
    with service.database.read() as connection:
        taken = _taken(connection)
    none = {"runs": 0, "jobs": 0, "stored": 0}
    return [{**each.model_dump(), **none, **taken.get(each.id, {})} for each in admin.list_users(service, viewer)]


def _taken(connection: sa.Connection) -> dict[int, dict[str, int]]:
    """What everybody has, by number of the person."""
    count, active = sa.func.count(), jobs.c.state.in_(ACTIVE)
    queries = {
        "runs": sa.select(runs.c.owner, count).group_by(runs.c.owner),
        "jobs": sa.select(jobs.c.owner, count).where(active).group_by(jobs.c.owner),
    }
    found: dict[int, dict[str, int]] = {}
    for name, query in queries.items():
        for owner, number in connection.execute(query):
            found.setdefault(owner, {})[name] = int(number or 0)
    for owner, stored in quota.taken(connection).items():
        found.setdefault(owner, {})["stored"] = stored
    return found
