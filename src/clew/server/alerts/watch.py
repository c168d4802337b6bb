"""A background task that looks for runs and jobs to alert about."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from clew.server.alerts.config import AlertSettings
from clew.server.alerts.delivery import Alert, deliver
from clew.server.database.tables import jobs, runs, summary, users
from clew.server.service import Service

_LOG = logging.getLogger("clew.server")
_MAX_PENDING = 100
"""Alerts that wait for a place that does not answer; more are dropped."""
_METRIC = "val/loss"


class AlertWatch:
    """Finds what is new since it was made, and delivers it once."""

    def __init__(self, settings: AlertSettings) -> None:
        self._settings, self._since = settings, time.time()
        self._known: set[tuple[str, int]] = set()
        self.pending: list[Alert] = []

    def look(self, connection: sa.Connection) -> None:
        """Add alerts about what happened since the last look."""
        alerts = list(self._failures(connection)) if self._settings.failures else []
        alerts += self._plateaus(connection) if self._settings.plateau_epochs is not None else []
        for key, alert in alerts:
            if key not in self._known:
                self._known.add(key)
                self.pending.append(alert)
        del self.pending[:-_MAX_PENDING]

    def send(self) -> None:
        """Deliver what is pending. What a place refuses is tried again after the next look."""
        while self.pending:
            try:
                deliver(self._settings, self.pending[0])
            except OSError as error:
                _LOG.warning("an alert was not delivered and is tried again: %s", error)
                return
            self.pending.pop(0)

    def _failures(self, connection: sa.Connection) -> Iterator[tuple[tuple[str, int], Alert]]:
        failed = sa.select(runs.c.id, runs.c.name, runs.c.message, users.c.name.label("owner"))
        failed = failed.join(users, users.c.id == runs.c.owner).where(runs.c.state.in_(("failed", "interrupted")))
        ended = sa.func.coalesce(runs.c.ended, runs.c.updated)
        recent = failed.where(ended > self._since, runs.c.job.is_(None), runs.c.deleted.is_(None))
        for row in connection.execute(recent.limit(_MAX_PENDING)):
            link = f"{self._settings.address}/runs/{row.id}"
            yield ("run", row.id), Alert("failed", row.name, row.message[:500], link, row.owner)
        lost = sa.select(jobs.c.id, jobs.c.name, jobs.c.reason, jobs.c.attempt, users.c.name.label("owner"))
        lost = lost.join(users, users.c.id == jobs.c.owner).where(jobs.c.state.in_(("failed", "lost")))
        for job in connection.execute(lost.where(jobs.c.ended > self._since).limit(_MAX_PENDING)):
            link = f"{self._settings.address}/jobs/{job.id}"
            yield (f"job {job.attempt}", job.id), Alert("failed", job.name, job.reason[:500], link, job.owner)

    def _plateaus(self, connection: sa.Connection) -> Iterator[tuple[tuple[str, int], Alert]]:
        """Yield running runs whose loss was lowest many validations ago. One validation is one epoch."""
        c, epochs = summary.c, self._settings.plateau_epochs or 0
        query = sa.select(runs.c.id, runs.c.name, users.c.name.label("owner"), c.count, c.step, c.min, c.min_step)
        query = query.join(summary, c.run == runs.c.id).join(users, users.c.id == runs.c.owner)
        query = query.where(runs.c.state == "running", runs.c.updated > self._since, c.name == _METRIC)
        for row in connection.execute(query.where(c.count > epochs, c.min_step.is_not(None)).limit(1000)):
            since_best = (row.step - row.min_step) * row.count / row.step if row.step else 0.0
            if since_best >= epochs:
                reason = f"{_METRIC} was lowest ({row.min:.5g}) at step {row.min_step}, {since_best:.0f} epochs ago"
                link = f"{self._settings.address}/runs/{row.id}"
                yield ("plateau", row.id), Alert("plateau", row.name, reason, link, row.owner)


async def watch_alerts(service: Service) -> None:
    """Look for alerts until the server stops; nothing if no place is set."""
    settings = service.config.alerts
    if not settings.on:
        return
    watch = AlertWatch(settings)

    def look() -> None:
        with service.database.read() as connection:
            watch.look(connection)
        watch.send()

    while not service.notifications.stopping:
        try:
            await asyncio.to_thread(look)
        except SQLAlchemyError as error:
            _LOG.warning("alerts: %s", error)
        await asyncio.sleep(settings.seconds)
