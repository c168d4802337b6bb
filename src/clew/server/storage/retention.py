"""What goes by itself: artefacts and logs that rules say, contents that nothing names, tokens long expired."""

from __future__ import annotations

import time

import sqlalchemy as sa

from clew.client.job import ENDS
from clew.server.accounts.callers import record
from clew.server.config import Retention
from clew.server.database.tables import artefacts, blobs, jobs, runs, tags, tokens
from clew.server.database.writer import Change
from clew.server.jobs.job_logs import Logs
from clew.server.service import Service
from clew.server.storage.artefact_store import Store

EVERY = 3600.0
"""Seconds between two looks."""
_MONTH = 30 * 86400.0


def sweep(service: Service) -> int:
    """Apply the rules once; how many artefacts, and logs of jobs, went."""
    gone = service.write(lambda change: _apply(change, service.config.retention)) + _logs(service)
    for sha256 in service.write(lambda change: _unnamed(change, service.store)):
        service.store.drop(sha256)
    for sha256 in _strays(service):
        service.store.drop(sha256)
    service.store.tidy()
    return gone


def _apply(change: Change, rules: tuple[Retention, ...]) -> int:
    gone = 0
    for rule in rules:
        old = [artefacts.c.kind == rule.kind, artefacts.c.created < time.time() - 86400 * rule.days]
        if rule.keep_tagged:
            tagged = sa.select(tags.c.run).where(tags.c.run == artefacts.c.run).exists()
            old.append(~tagged)
        went = change.execute(artefacts.delete().where(*old)).rowcount
        if went:
            record(change, None, "retention", rule.kind, artefacts=went, days=rule.days)
        gone += went
    change.execute(tokens.delete().where(tokens.c.kind != "token", tokens.c.expires < time.time() - _MONTH))
    return gone


def _logs(service: Service) -> int:
    """What jobs printed goes as artefacts of the kind `log` do."""
    found: set[int] = set()
    for rule in (rule for rule in service.config.retention if rule.kind == "log"):
        old = [jobs.c.printed > 0, jobs.c.state.in_(ENDS), jobs.c.ended < time.time() - 86400 * rule.days]
        if rule.keep_tagged:
            old.append(
                ~sa.select(tags.c.run).join(runs, runs.c.id == tags.c.run).where(runs.c.job == jobs.c.id).exists()
            )
        with service.database.read() as connection:
            found.update(connection.scalars(sa.select(jobs.c.id).where(*old)))
    for job in found:
        Logs(service.config.folder).drop(job)
    if found:
        service.write(lambda change: _dropped(change, found))
    return len(found)


def _dropped(change: Change, found: set[int]) -> None:
    change.execute(jobs.update().where(jobs.c.id.in_(found)).values(printed=0))
    record(change, None, "retention", "log", jobs=len(found))


def _strays(service: Service) -> list[str]:
    """Contents that the database never heard of: their upload was refused, or broke off at the very end."""
    found = list(service.store.settled())
    with service.database.read() as connection:
        known = set(connection.scalars(sa.select(blobs.c.sha256)))
    return [sha256 for sha256 in found if sha256 not in known]


def _unnamed(change: Change, store: Store) -> list[str]:
    """Contents that no artefact has and that did not come in just now; the database forgets them."""
    named = sa.select(artefacts.c.id).where(artefacts.c.blob == blobs.c.sha256).exists()
    found = [
        each for each in change.connection.scalars(sa.select(blobs.c.sha256).where(~named)) if not store.fresh(each)
    ]
    for sha256 in found:
        change.execute(blobs.delete().where(blobs.c.sha256 == sha256))
    return found
