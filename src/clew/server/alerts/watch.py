"""A background task that looks for runs and jobs to alert about."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from clew.server.alerts.config import AlertSettings
from clew.server.alerts.delivery import Alert, delivery_places
from clew.server.database.tables import jobs, runs, summary, users
from clew.server.service import Service

_LOG = logging.getLogger("clew.server")
_MAX_PENDING = 100
"""Alerts that wait for a place that does not answer; more are dropped."""
_MAX_PER_HOUR = 20
"""Alerts about the runs and jobs of one user; more are dropped, so that no user fills a mailbox."""
_PAGE = 1000
"""Rows per look."""
_OVERLAP = 60.0
"""Seconds that are looked at again: a row is saved some time after its clock was read."""
_METRIC = "val/loss"


class AlertWatch:
    """Finds what is new since it was made, and delivers it once to every place."""

    def __init__(self, settings: AlertSettings) -> None:
        self._settings, self._since = settings, time.time()
        self._seen = {runs.name: self._since, jobs.name: self._since}
        """By table: rows that changed before this time were looked at."""
        self._known: set[tuple[str, int]] = set()
        self._of_owner: dict[str, list[float]] = {}
        """When alerts about the runs and jobs of a user were added, in the last hour."""
        self._places = delivery_places(settings)
        self.pending: dict[str, list[Alert]] = {name: [] for name in self._places}

    def look(self, connection: sa.Connection) -> None:
        """Add alerts about what happened since the last look."""
        alerts = list(self._failures(connection)) if self._settings.failures else []
        alerts += self._plateaus(connection) if self._settings.plateau_epochs is not None else []
        for key, alert in alerts:
            if key in self._known:
                continue
            self._known.add(key)
            if self._may_send(alert.owner):
                for waiting in self.pending.values():
                    waiting.append(alert)
                    del waiting[:-_MAX_PENDING]

    def send(self) -> None:
        """Deliver what is pending. What a place refuses is tried again after the next look."""
        for name, waiting in self.pending.items():
            while waiting:
                try:
                    self._places[name](waiting[0])
                except OSError as error:
                    _LOG.warning("%s: an alert was not delivered and is tried again: %s", name, error)
                    break
                except ValueError as error:  # it cannot be written as a message
                    _LOG.warning("%s: an alert was dropped: %s", name, error)
                waiting.pop(0)

    def _may_send(self, owner: str) -> bool:
        """Return whether a user has not caused too many alerts in the last hour, and count one."""
        now = time.time()
        times = self._of_owner[owner] = [each for each in self._of_owner.get(owner, []) if each > now - 3600]
        if len(times) >= _MAX_PER_HOUR:
            return False
        times.append(now)
        return True

    def _failures(self, connection: sa.Connection) -> Iterator[tuple[tuple[str, int], Alert]]:
        failed = sa.select(runs.c.id, runs.c.name, runs.c.message, runs.c.updated, users.c.name.label("owner"))
        failed = failed.join(users, users.c.id == runs.c.owner).where(runs.c.state.in_(("failed", "interrupted")))
        ended = sa.func.coalesce(runs.c.ended, runs.c.updated)
        recent = failed.where(ended > self._since, runs.c.job.is_(None), runs.c.deleted.is_(None))
        for row in self._new_rows(connection, recent, runs):
            link = f"{self._settings.address}/runs/{row.id}"
            yield ("run", row.id), Alert("failed", row.name, row.message[:500], link, row.owner)
        lost = sa.select(jobs.c.id, jobs.c.name, jobs.c.reason, jobs.c.attempt, jobs.c.updated)
        lost = lost.add_columns(users.c.name.label("owner")).join(users, users.c.id == jobs.c.owner)
        lost = lost.where(jobs.c.state.in_(("failed", "lost")), jobs.c.ended > self._since)
        for job in self._new_rows(connection, lost, jobs):
            link = f"{self._settings.address}/jobs/{job.id}"
            yield (f"job {job.attempt}", job.id), Alert("failed", job.name, job.reason[:500], link, job.owner)

    def _new_rows(self, connection: sa.Connection, query: sa.Select[Any], table: sa.Table) -> Sequence[Any]:
        """Return rows that changed since the last look, the oldest first. A full page is continued at the next look."""
        began = time.time()
        since = table.c.updated > self._seen[table.name] - _OVERLAP
        rows = connection.execute(query.where(since).order_by(table.c.updated).limit(_PAGE)).all()
        self._seen[table.name] = rows[-1].updated + _OVERLAP if len(rows) == _PAGE else began
        return rows

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
