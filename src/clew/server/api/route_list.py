"""The routes of the server and the scopes that they ask for, read from the code: for the page on security."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from clew.server.api import routers
from clew.server.api.dependencies import ROUTE_SCOPES


class RouteAccess(NamedTuple):
    """A route and who may use it."""

    method: str
    path: str
    access: str
    """Scopes of which the token needs one; `any token`; or `no token`."""


def route_list() -> list[RouteAccess]:
    """Return all routes of the API, by path.

    Example:
        >>> [route.access for route in route_list() if route.path == "/api/v1/jobs"]
        ['read', 'submit']
    """
    routes = [route for router in routers() for route in router.routes if isinstance(route, APIRoute)]
    rows = [
        RouteAccess(method, route.path, _access(route)) for route in routes for method in sorted(route.methods or ())
    ]
    return sorted(rows, key=lambda row: (row.path, row.method))


def markdown_table() -> str:
    """Return the routes as a table of the documentation."""
    lines = [f"| {row.method} | `{row.path}` | {row.access} |" for row in route_list()]
    return "\n".join(["| method | path | scope |", "| --- | --- | --- |", *lines]) + "\n"


def _access(route: APIRoute) -> str:
    scopes: tuple[str, ...] | None = getattr(route, "required_scopes", None)
    asked = [ROUTE_SCOPES[call] for call in _calls(route.dependant) if call in ROUTE_SCOPES]
    if scopes is None and not asked:
        return "no token"
    return " or ".join(scopes or max(asked, key=len)) or "any token"


def _calls(dependant: Dependant) -> Iterator[Callable[..., Any]]:
    if dependant.call is not None:
        yield dependant.call
    for each in dependant.dependencies:
        yield from _calls(each)
