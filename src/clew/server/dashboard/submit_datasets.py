"""Datasets in the submit form: those that can be chosen, and why one cannot be used."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import sqlalchemy as sa

from clew.client.datasets import DATASET_KEY
from clew.server.accounts.caller import Caller
from clew.server.database.tables import datasets, jobs, runs

_MAX_LISTED = 50
_RECENT_RUNS = 50
"""Runs whose datasets can be chosen."""


def known_datasets(connection: sa.Connection, viewer: Caller) -> dict[str, str]:
    """Return the datasets that can be chosen: a description by key or place.

    Args:
        connection: An open connection.
        viewer: The user. Registered datasets, datasets that jobs prepared, and those of recent runs are listed.
    """
    choices: dict[str, str] = {}
    query = sa.select(datasets.c.location, datasets.c.name, datasets.c.key).where(viewer.visible(datasets))
    for row in connection.execute(query.order_by(datasets.c.id.desc()).limit(_MAX_LISTED)):
        choices.setdefault(row.location, f"{row.name}, key {row.key[:12]}")
    prepared = sa.select(jobs.c.dataset, jobs.c.name, jobs.c.id).where(*_prepared(viewer))
    for key, name, number in connection.execute(prepared.order_by(jobs.c.id.desc()).limit(_MAX_LISTED)):
        choices.setdefault(key, f"prepared by job {number}, {name}")
    recent = sa.select(runs.c.name, runs.c.config).where(viewer.visible(runs))
    for name, config in connection.execute(recent.order_by(runs.c.id.desc()).limit(_RECENT_RUNS)):
        place = dataset_of(config)
        if place and not dataset_error(connection, viewer, place):
            choices.setdefault(place, f"used by {name}")
    return choices


def dataset_of(config: dict[str, Any] | None) -> str:
    """Return the dataset in the settings of a run; empty if there is none."""
    train = (config or {}).get("train", {})
    return str(train.get("dataset") or "") if isinstance(train, dict) else ""


def dataset_error(connection: sa.Connection, viewer: Caller, dataset: str) -> str:
    """Return why a training cannot use a dataset; empty if nothing speaks against it."""
    if not dataset:
        return "a dataset is needed: choose one, or name its key, its full path on the agent's machine or its URL"
    if ":" in dataset or PurePosixPath(dataset).is_absolute():
        return ""  # the scheme of a URL is checked with the job
    if not DATASET_KEY.fullmatch(dataset):
        return "neither a full path nor a key nor a URL; the agent may run elsewhere, so name the full path"
    registered = sa.select(datasets.c.id).where(datasets.c.key == dataset, datasets.c.owner == viewer.user)
    prepared = sa.select(jobs.c.id).where(*_prepared(viewer), jobs.c.dataset == dataset)
    if any(connection.scalar(query.limit(1)) is not None for query in (registered, prepared)):
        return ""
    return "you have not registered a dataset with this key, so no agent can find it; name its full path or its URL"


def _prepared(viewer: Caller) -> tuple[sa.ColumnElement[bool], ...]:
    is_owner = jobs.c.owner == viewer.user
    return is_owner, jobs.c.kind == "prepare", jobs.c.state == "done", jobs.c.dataset.is_not(None)
