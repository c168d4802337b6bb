"""The web application: routes around an open service."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from clew.errors import ClewError
from clew.server import dashboard, problems
from clew.server.alerts.watch import watch_alerts
from clew.server.api import routers
from clew.server.jobs.silent_agents import watch_agents
from clew.server.middleware import RequestMiddleware
from clew.server.service import Service
from clew.server.storage.retention import RETENTION_SECONDS, apply_retention
from clew.server.studies.open_studies import OpenStudies
from clew.server.studies.trial_proposals import watch_studies

_TOKEN_SECONDS = 60
"""Seconds between two writes of the times at which tokens were used."""


def create_app(service: Service) -> FastAPI:
    """Build the application. It closes the service when it ends.

    Args:
        service: An open service.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.notifications.attach(asyncio.get_running_loop())
        watchers = (watch_agents(service), watch_studies(service, app.state.studies), watch_alerts(service))
        tasks = [asyncio.create_task(watcher) for watcher in (*watchers, _maintain(service))]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="clew",
        version="1",  # of the API: who has no token need not know the version of clew
        summary="Runs, studies, jobs and artefacts of high-energy-physics machine learning",
        lifespan=lifespan,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
    )
    app.state.service = service
    app.state.studies = OpenStudies(service)
    problems.install_handlers(app)
    for router in routers():
        app.router.routes += router.routes  # `include_router` would combine them again for every request
    dashboard.mount(app)
    app.add_middleware(RequestMiddleware, config=service.config, request_metrics=service.request_metrics)
    return app


async def _maintain(service: Service) -> None:
    """Every minute, save when tokens were used; every hour, apply the retention rules."""
    next_retention = time.monotonic()
    while not service.notifications.stopping:
        with contextlib.suppress(ClewError):
            if time.monotonic() >= next_retention:
                next_retention += RETENTION_SECONDS
                await asyncio.to_thread(apply_retention, service)
            await service.write_async(service.tokens.save_last_used)
        await asyncio.sleep(_TOKEN_SECONDS)
