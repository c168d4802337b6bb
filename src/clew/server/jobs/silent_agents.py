"""A background task that looks for agents which make no contact any more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from clew.errors import ClewError
from clew.server.database.writer import Transaction
from clew.server.jobs.queue import expire_silent_agents
from clew.server.jobs.topics import JOBS_TOPIC, QUEUE_TOPIC, job_topic
from clew.server.service import Service

_LOG = logging.getLogger("clew.server")
_CHECK_SECONDS = 5.0


async def watch_agents(service: Service) -> None:
    """Every five seconds, end the jobs of silent agents: they are lost, or wait again."""
    started = time.time()

    def work(transaction: Transaction) -> None:
        lost = expire_silent_agents(transaction, since=started, timeout=service.config.limits.agent_seconds)
        if lost:
            _LOG.warning("agents fell silent: jobs %s", lost)
            transaction.notify(QUEUE_TOPIC, JOBS_TOPIC, *map(job_topic, lost))
            transaction.after_commit.append(service.tokens.clear)

    while not service.notifications.stopping:
        with contextlib.suppress(ClewError):
            await service.write_async(work)
        await asyncio.sleep(_CHECK_SECONDS)
