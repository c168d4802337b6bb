"""Deletes what is no longer needed: old artefacts and logs, unreferenced contents, and expired tokens."""

from __future__ import annotations

import time

import sqlalchemy as sa

from clew.client.job import FINAL_STATES
from clew.server.accounts.audit import record_action
from clew.server.config import RetentionRule
from clew.server.database.tables import artefacts, blobs, jobs, runs, tags, tokens
from clew.server.database.writer import Transaction
from clew.server.jobs.job_logs import JobLogs
from clew.server.service import Service
from clew.server.storage.artefact_store import ArtefactStore

RETENTION_SECONDS = 3600.0
"""Seconds between two runs of `apply_retention`."""
_DAY = 86400.0
_TOKEN_DAYS = 30
"""Days after which an expired token of a session, agent or job is deleted."""


def apply_retention(service: Service) -> int:
    """Apply the rules once.

    Returns:
        The number of deleted artefacts and of jobs whose logs were deleted.
    """
    rules = service.config.retention
    deleted = service.write(lambda transaction: _delete_artefacts(transaction, rules)) + _delete_logs(service)
    for sha256 in service.write(lambda transaction: _unreferenced_contents(transaction, service.store)):
        service.store.delete(sha256)
    for sha256 in _unregistered_contents(service):
        service.store.delete(sha256)
    service.store.clean_up()
    return deleted


def _delete_artefacts(transaction: Transaction, rules: tuple[RetentionRule, ...]) -> int:
    total = 0
    for rule in rules:
        conditions = [artefacts.c.kind == rule.kind, artefacts.c.created < time.time() - _DAY * rule.days]
        if rule.keep_tagged:
            conditions.append(~sa.select(tags.c.run).where(tags.c.run == artefacts.c.run).exists())
        deleted = transaction.execute(artefacts.delete().where(*conditions)).rowcount
        if deleted:
            record_action(transaction, None, "retention", rule.kind, artefacts=deleted, days=rule.days)
        total += deleted
    expired = tokens.c.expires < time.time() - _DAY * _TOKEN_DAYS
    transaction.execute(tokens.delete().where(tokens.c.kind != "token", expired))
    return total


def _delete_logs(service: Service) -> int:
    """Delete logs of jobs by the rules for the kind `log`."""
    old: set[int] = set()
    for rule in (rule for rule in service.config.retention if rule.kind == "log"):
        ended = jobs.c.ended < time.time() - _DAY * rule.days
        conditions = [jobs.c.printed > 0, jobs.c.state.in_(FINAL_STATES), ended]
        if rule.keep_tagged:
            tagged = sa.select(tags.c.run).join(runs, runs.c.id == tags.c.run).where(runs.c.job == jobs.c.id)
            conditions.append(~tagged.exists())
        with service.database.read() as connection:
            old.update(connection.scalars(sa.select(jobs.c.id).where(*conditions)))
    for job in old:
        JobLogs(service.config.folder).delete(job)
    if old:
        service.write(lambda transaction: _record_deleted_logs(transaction, old))
    return len(old)


def _record_deleted_logs(transaction: Transaction, deleted: set[int]) -> None:
    transaction.execute(jobs.update().where(jobs.c.id.in_(deleted)).values(printed=0))
    record_action(transaction, None, "retention", "log", jobs=len(deleted))


def _unregistered_contents(service: Service) -> list[str]:
    """Return contents that are not in the database: their upload was refused, or ended just before its entry."""
    stored = list(service.store.settled())
    with service.database.read() as connection:
        registered = set(connection.scalars(sa.select(blobs.c.sha256)))
    return [sha256 for sha256 in stored if sha256 not in registered]


def _unreferenced_contents(transaction: Transaction, store: ArtefactStore) -> list[str]:
    """Return contents that no artefact refers to and that are not new, and delete them from the database."""
    referenced = sa.select(artefacts.c.id).where(artefacts.c.blob == blobs.c.sha256).exists()
    candidates = transaction.connection.scalars(sa.select(blobs.c.sha256).where(~referenced))
    old = [sha256 for sha256 in candidates if not store.is_new(sha256)]
    for sha256 in old:
        transaction.execute(blobs.delete().where(blobs.c.sha256 == sha256))
    return old
