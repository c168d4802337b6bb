"""Orders: a job as an agent receives it, with a token for the run of this job."""

from __future__ import annotations

import time

import sqlalchemy as sa

from clew.client.job import JobOrder
from clew.server.accounts.tokens import NewTokenRow, add_token
from clew.server.database.tables import datasets, jobs
from clew.server.database.writer import Transaction
from clew.server.jobs import queue

_TOKEN_MARGIN = 86400.0
"""Seconds that a job's token is valid beyond its wall time."""
_TOKEN_LIFETIME = 90 * 86400.0
"""Seconds that the token of a job without a wall time is valid."""
_MAX_LOCATIONS = 16


def make_order(transaction: Transaction, job: int) -> JobOrder:
    """Return what an agent needs to run a job. A new token is made; earlier tokens of the job are revoked."""
    row = transaction.execute(sa.select(jobs).where(jobs.c.id == job)).mappings().one()
    now, wall = time.time(), row["resources"].get("wall_time")
    queue.revoke_job_tokens(transaction, job, now=now)
    target = row["facts"]["of"]
    token = NewTokenRow(
        user=row["owner"],
        scopes=["job"],
        name=queue.token_name(job),
        expires=now + (_TOKEN_LIFETIME if wall is None else wall + _TOKEN_MARGIN),
        kind="job",
        job=target if row["kind"] == "evaluate" else job,  # it adds to the run of the job that it evaluates
    )
    content = _study_content(transaction, target) if row["kind"] == "trial" else row
    return JobOrder(
        job=job,
        key=_key(row),
        attempt=row["attempt"],
        kind=row["kind"],
        name=row["name"],
        spec=content["spec"],
        files=content["files"] or {},
        arguments=row["arguments"],
        target_key=_target_key(transaction, target),
        dataset=row["dataset"],
        locations=_dataset_locations(transaction, row),
        store=row["facts"].get("store"),
        resources=row["resources"],
        token=add_token(transaction, token)[1],
        study=row["study"],
        trials=row["spec"]["trials"] if row["kind"] == "trial" else (),
    )


def _study_content(transaction: Transaction, job: int) -> sa.RowMapping:
    """Return the settings and files of a study's job, which all its trials share."""
    query = sa.select(jobs.c.spec, jobs.c.files).where(jobs.c.id == job)
    return transaction.execute(query).mappings().one()


def _key(row: sa.RowMapping) -> str:
    return f"{row['id']}-{row['handle']}"


def _target_key(transaction: Transaction, job: int | None) -> str | None:
    row = transaction.execute(sa.select(jobs.c.id, jobs.c.handle).where(jobs.c.id == job)).mappings().first()
    return None if row is None else _key(row)


def _dataset_locations(transaction: Transaction, row: sa.RowMapping) -> tuple[str, ...]:
    """Return registered locations of the job's dataset: those of the job's owner and group."""
    if row["dataset"] is None:
        return ()
    return registered_locations(transaction.connection, row["dataset"], owner=row["owner"], group=row["group"])


def registered_locations(connection: sa.Connection, key: str, *, owner: int, group: int | None) -> tuple[str, ...]:
    """Return where the dataset with a key was registered by a user or for a group, the newest first."""
    visible = datasets.c.owner == owner
    if group is not None:
        visible = visible | (datasets.c.group == group)
    query = sa.select(datasets.c.location).where(datasets.c.key == key, visible)
    return tuple(connection.execute(query.order_by(datasets.c.id.desc()).limit(_MAX_LOCATIONS)).scalars())
