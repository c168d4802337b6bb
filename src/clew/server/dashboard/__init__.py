"""The dashboard: pages for people, rendered by the server that has the data."""

from __future__ import annotations

from fastapi import FastAPI

from clew.server.dashboard import accounts, compare, data, jobs, login, overview, runs, studies, submit


def mount(app: FastAPI) -> None:
    """Add the pages. They stand beside the API, and are no part of its schema."""
    app.state.drawn = studies.Drawn()
    for part in (login, overview, runs, compare, studies, jobs, submit, data, accounts):
        app.router.routes += part.router.routes
