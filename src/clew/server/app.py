"""The application: routes around a service."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from clew.errors import ClewError
from clew.server import dashboard, problems
from clew.server.api import routers
from clew.server.jobs.silent_agents import watch
from clew.server.middleware import Shell
from clew.server.service import Service
from clew.server.storage.retention import EVERY, sweep
from clew.server.studies.open_studies import Studies
from clew.version import __version__


def create_app(service: Service) -> FastAPI:
    """Routes, errors and headers around an open service, which is closed when the application ends."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.hub.attach(asyncio.get_running_loop())
        tasks = [asyncio.create_task(watch(service)), asyncio.create_task(_tidy(service))]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="clew",
        version=__version__,
        summary="Runs, studies, jobs and artefacts of high-energy-physics machine learning",
        lifespan=lifespan,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
    )
    app.state.service = service
    app.state.studies = Studies(service)
    problems.install(app)
    for router in routers():
        app.router.routes += router.routes  # `include_router` would put them together again for every request
    dashboard.mount(app)
    app.add_middleware(Shell, config=service.config, meter=service.meter)
    return app


async def _tidy(service: Service) -> None:
    """Every minute the times at which tokens were used, every hour what retention asks for."""
    due = time.monotonic()
    while not service.hub.stopping:
        with contextlib.suppress(ClewError):
            if time.monotonic() >= due:
                due += EVERY
                await asyncio.to_thread(sweep, service)
            await service.write_soon(service.people.note)
        await asyncio.sleep(60)
