"""Studies and trials as rows of the database: what the API and the dashboard read."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from clew.client.trial import NewStudy, StudyDetail, StudyRow, Trial
from clew.server.accounts.audit import record_action
from clew.server.accounts.caller import Caller
from clew.server.database.tables import groups, studies, trials, users
from clew.server.database.writer import Transaction
from clew.server.problems import not_found

STUDIES_TOPIC = "studies"
EXTERNAL_FACT = "elsewhere"
"""Key in the facts of a study whose trials are proposed elsewhere."""
TRIAL_JOBS_FACT = "trial_jobs"
"""Key in the facts of a study whose trials are jobs."""


def study_topic(study: int) -> str:
    """Return the notification topic of a study."""
    return f"study:{study}"


def visible_study(connection: sa.Connection, caller: Caller, number: int) -> Any:
    """Return the row of a study that the caller may see.

    Raises:
        RequestError: there is none (404).
    """
    row = connection.execute(sa.select(studies).where(studies.c.id == number)).one_or_none()
    if row is None or not caller.can_see(row):
        raise not_found("study", number)
    return row


def insert_study(
    transaction: Transaction, caller: Caller, new: NewStudy, *, job: int | None, facts: Mapping[str, Any]
) -> int:
    """Insert the row of a study and return its id.

    Args:
        transaction: The open transaction.
        caller: Its owner.
        new: The study.
        job: The job that it belongs to.
        facts: Facts of the row.
    """
    now, tune = time.time(), new.tune.model_dump(mode="json")
    number = transaction.add(
        studies,
        owner=caller.user,
        group=caller.group_id(new.group, transaction.connection),
        name=new.name,
        state="open",
        spec={"tune": tune, "train": {"epochs": new.epochs}},
        space=tune["space"],
        objectives=[objective.model_dump() for objective in new.tune.objectives],
        best=[],
        facts=dict(facts),
        job=job,
        created=now,
        updated=now,
    )
    record_action(transaction, caller, "make study", study_topic(number), name=new.name)
    transaction.notify(STUDIES_TOPIC)
    return number


def save_trial(transaction: Transaction, study: int, trial: Trial) -> None:
    """Insert or update the row of a trial."""
    now = time.time()
    same = (trials.c.study == study) & (trials.c.number == trial.number)
    facts = {**trial.model_dump(include={"reason", "seconds", "attempts", "run"}), "begun": trial.started}
    ended = now if trial.state in ("complete", "pruned", "failed") else None
    values: dict[str, Any] = {"state": trial.state, "params": trial.settings, "values": list(trial.values)}
    values |= {"reports": {str(k): v for k, v in trial.reports.items()}, "facts": facts, "updated": now}
    existing = transaction.execute(sa.select(trials.c.id, trials.c.ended).where(same)).one_or_none()
    if existing is None:
        created = trial.started or now
        transaction.add(trials, study=study, number=trial.number, created=created, ended=ended, **values)
    else:
        ended = existing.ended or ended
        transaction.execute(trials.update().where(trials.c.id == existing.id).values(**values, ended=ended))


def touch_study(transaction: Transaction, number: int, best: list[dict[str, Any]] | None) -> None:
    """Record that a study changed, and its best trials unless `best` is None."""
    values: dict[str, Any] = {"updated": time.time()} | ({} if best is None else {"best": best})
    transaction.execute(studies.update().where(studies.c.id == number).values(values))
    transaction.notify(STUDIES_TOPIC, study_topic(number))


def best_trials(transaction: Transaction, number: int, objectives: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the best trial of a study by its rows, or the Pareto front if it has several objectives."""
    from clew.tuning.best_trials import best_indices

    directions = [objective["direction"] for objective in objectives]
    query = sa.select(trials.c.number, trials.c.params, trials.c["values"].label("values_"))
    query = query.where((trials.c.study == number) & (trials.c.state == "complete")).order_by(trials.c.number)
    complete = [
        row
        for row in transaction.execute(query)
        if len(row.values_ or ()) == len(directions)
        and all(value is not None and math.isfinite(value) for value in row.values_)
    ]
    best = [complete[index] for index in best_indices([row.values_ for row in complete], directions)]
    return [{"number": row.number, "settings": row.params, "values": row.values_} for row in best]


def list_studies(connection: sa.Connection, caller: Caller, *, limit: int, before: int | None = None) -> list[StudyRow]:
    """Return the studies that the caller may see, the newest first; only those with an id below `before`."""
    query = _select_studies().where(caller.visible(studies)).order_by(studies.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(studies.c.id < before)
    rows = connection.execute(query).mappings().all()
    return [StudyRow.model_validate(_study_values(connection, row)) for row in rows]


def study_detail(connection: sa.Connection, caller: Caller, number: int) -> StudyDetail:
    """Return a study with its settings, without its trials.

    Raises:
        RequestError: there is none that the caller may see (404).
    """
    visible_study(connection, caller, number)
    row = connection.execute(_select_studies().where(studies.c.id == number)).mappings().one()
    return StudyDetail.model_validate({**_study_values(connection, row), "tune": row["spec"]["tune"]})


def _select_studies() -> Any:
    names = (users.c.name.label("owner_name"), groups.c.name.label("group_name"))
    joined = studies.join(users, users.c.id == studies.c.owner).outerjoin(groups, groups.c.id == studies.c.group)
    return sa.select(studies, *names).select_from(joined)


def _study_values(connection: sa.Connection, row: sa.RowMapping) -> dict[str, Any]:
    states = sa.select(trials.c.state, sa.func.count().label("count")).where(trials.c.study == row["id"])
    return {
        **{name: row[name] for name in ("id", "name", "objectives", "job", "created", "updated")},
        "owner": row["owner_name"],
        "group": row["group_name"],
        "external": bool(row["facts"].get(EXTERNAL_FACT)),
        "trials": row["spec"]["tune"]["trials"],
        "counts": {each[0]: each[1] for each in connection.execute(states.group_by(trials.c.state))},
        "best": row["best"] or [],
    }


def list_trials(
    connection: sa.Connection, caller: Caller, number: int, *, limit: int, after: int | None = None
) -> list[Trial]:
    """Return the trials of a study in order of number; only those with a number above `after`."""
    visible_study(connection, caller, number)
    query = sa.select(trials).where(trials.c.study == number).order_by(trials.c.number).limit(limit)
    if after is not None:
        query = query.where(trials.c.number > after)
    return [_trial(row) for row in connection.execute(query).mappings()]


def _trial(row: sa.RowMapping) -> Trial:
    facts = dict(row["facts"] or {})
    return Trial(
        number=row["number"],
        state=row["state"],
        settings=row["params"],
        values=tuple(value for value in row["values"] or () if value is not None),
        reports=row["reports"] or {},
        job=row["job"],
        started=facts.pop("begun", 0.0),
        **facts,
    )
