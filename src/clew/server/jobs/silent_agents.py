"""What the server does by itself: it looks for agents that fell silent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from clew.errors import ClewError
from clew.server.database.writer import Change
from clew.server.jobs import actions, queue
from clew.server.service import Service

_LOG = logging.getLogger("clew.server")
_PAUSE = 5.0


async def watch(service: Service) -> None:
    """Until cancelled, jobs of agents that are gone become lost, or wait again."""
    since = time.time()

    def work(change: Change) -> None:
        found = queue.sweep(change, since=since)
        if found:
            _LOG.warning("agents fell silent: jobs %s", found)
            change.tell(actions.QUEUE, actions.ALL, *map(actions.topic, found))
            change.after.append(service.people.forget)

    while not service.hub.stopping:
        with contextlib.suppress(ClewError):
            await service.write_soon(work)
        await asyncio.sleep(_PAUSE)
