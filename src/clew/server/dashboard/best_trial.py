"""Fills the submit form with the best trial of a study, to train it on more epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from clew.recipe import shipped
from clew.runs.run_trust import code_references
from clew.server.accounts.caller import Caller
from clew.server.api.dependencies import visible_row
from clew.server.dashboard.earlier_job import can_be_changed, earlier_job
from clew.server.dashboard.foreign_code import brings_code, check_author
from clew.server.dashboard.submit_datasets import dataset_of
from clew.server.database.tables import jobs, runs, studies, trials
from clew.server.jobs.job_rows import job_detail
from clew.server.problems import RequestError

_MORE = 4
"""How many times more epochs the form proposes."""


def best_trial_form(
    connection: sa.Connection, viewer: Caller, number: int
) -> tuple[str, str, dict[str, Any], dict[str, str]]:
    """Return kind, recipe, settings and further fields of the form for the best trial of a study.

    Args:
        connection: An open connection.
        viewer: The user.
        number: The study.

    Raises:
        RequestError: the study does not exist, has no complete trial, or its settings are not on this server.
    """
    study = visible_row(connection, studies, number, viewer, "study")
    best = _best(connection, study)
    source = None if best is None else _of_job(connection, viewer, study) or _of_run(connection, viewer, best)
    if best is None or source is None:
        raise RequestError(
            422, "the settings of the best trial are not on this server", hint="use clew tune best --apply"
        )
    recipe, settings, values = source
    settings = {key: value for key, value in settings.items() if key != "tune"}
    before = code_references({**settings, "recipe": recipe})
    for key, value in best["params"].items():
        _assign(settings, key, value)
    if code_references({**settings, "recipe": recipe}) != before:  # members of the group can push trials
        check_author({**settings, "recipe": recipe}, own=study.owner == viewer.user and study.group is None)
    epochs = settings.get("train", {}).get("epochs")
    if isinstance(epochs, int):
        _assign(settings, "train.epochs", _MORE * epochs)
    name = f"{study.name}-best"
    return "train", recipe, settings, {**values, "job.name": name, "job.trials_as_jobs": "false"}


def can_train_best(connection: sa.Connection, viewer: Caller, study: Any) -> bool:
    """Return whether the form can show the viewer the best trial of a study."""
    if study.job is not None:
        job = connection.execute(sa.select(jobs).where(jobs.c.id == study.job)).one_or_none()
        own = job is not None and job.owner == viewer.user
        if job is not None and can_be_changed(job) and (own or not brings_code(job.spec, job.files)):
            return True
    best = _best(connection, study)
    return best is not None and _of_run(connection, viewer, best) is not None


def _best(connection: sa.Connection, study: Any) -> Mapping[str, Any] | None:
    if not study.best:
        return None
    query = sa.select(trials).where(trials.c.study == study.id, trials.c.number == study.best[0]["number"])
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else dict(row)


def _of_job(connection: sa.Connection, viewer: Caller, study: Any) -> tuple[str, dict[str, Any], dict[str, str]] | None:
    try:
        job = job_detail(connection, viewer, study.job)
        _, recipe, settings, values = earlier_job(job)
    except RequestError:
        return None
    check_author(job.spec, job.files, own=job.owner == viewer.name)
    return recipe, settings, values


def _of_run(
    connection: sa.Connection, viewer: Caller, trial: Mapping[str, Any]
) -> tuple[str, dict[str, Any], dict[str, str]] | None:
    named = sa.and_(runs.c.study == trial["study"], runs.c.trial == trial["number"])
    query = sa.select(runs).where(viewer.visible(runs), sa.or_(runs.c.id == trial["run"], named))
    run = connection.execute(query.order_by(runs.c.id.desc()).limit(1)).one_or_none()
    if run is None or run.recipe not in shipped() or not run.config:
        return None
    if run.owner != viewer.user and brings_code({**run.config, "recipe": run.recipe}):
        return None
    return run.recipe, dict(run.config), {"job.dataset": dataset_of(run.config)}


def _assign(settings: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    place = settings
    for section in sections:
        inner = place.get(section)
        place[section] = dict(inner) if isinstance(inner, Mapping) else {}
        place = place[section]
    place[last] = value
