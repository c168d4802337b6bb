"""Studies and their trials as rows of the database: what everybody sees of them."""

from __future__ import annotations

import math
import time
from typing import Any

import sqlalchemy as sa

from clew.client.trial import StudyFacts, StudyRow, Trial
from clew.server.accounts.callers import Caller
from clew.server.database.tables import groups, studies, trials, users
from clew.server.database.writer import Change
from clew.server.problems import missing

TOPIC = "studies"


def topic(study: int) -> str:
    """What tells of a study."""
    return f"study:{study}"


def look(connection: sa.Connection, caller: Caller, number: int) -> Any:
    """The row of a study that the caller may see.

    Raises:
        RefusedError: there is none.
    """
    row = connection.execute(sa.select(studies).where(studies.c.id == number)).one_or_none()
    if row is None or not caller.sees(row):
        raise missing("study", number)
    return row


def put(change: Change, study: int, given: Trial) -> None:
    """Have the row of a trial say how it stands."""
    now = time.time()
    same = (trials.c.study == study) & (trials.c.number == given.number)
    facts = given.model_dump(include={"reason", "seconds", "attempts", "begun", "run"})
    ended = now if given.state in ("complete", "pruned", "failed") else None
    values: dict[str, Any] = {"state": given.state, "params": given.settings, "values": list(given.values)}
    values |= {"reports": {str(k): v for k, v in given.reports.items()}, "facts": facts, "updated": now}
    known = change.execute(sa.select(trials.c.id, trials.c.ended).where(same)).one_or_none()
    if known is None:
        change.add(trials, study=study, number=given.number, created=given.begun or now, ended=ended, **values)
    else:
        change.execute(trials.update().where(trials.c.id == known.id).values(**values, ended=known.ended or ended))


def settle(change: Change, number: int, best: list[dict[str, Any]] | None) -> None:
    """A study has changed; `best` where that may have, too."""
    values: dict[str, Any] = {"updated": time.time()} | ({} if best is None else {"best": best})
    change.execute(studies.update().where(studies.c.id == number).values(values))
    change.tell(TOPIC, topic(number))


def best_of(change: Change, number: int, objectives: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the best trial of a study in the database, or its Pareto front."""
    from clew.tuning.best_trials import best_indices

    directions = [objective["direction"] for objective in objectives]
    query = sa.select(trials.c.number, trials.c.params, trials.c["values"].label("values_"))
    query = query.where((trials.c.study == number) & (trials.c.state == "complete")).order_by(trials.c.number)
    complete = [
        row
        for row in change.execute(query)
        if len(row.values_ or ()) == len(directions)
        and all(value is not None and math.isfinite(value) for value in row.values_)
    ]
    best = [complete[index] for index in best_indices([row.values_ for row in complete], directions)]
    return [{"number": row.number, "settings": row.params, "values": row.values_} for row in best]


def listed(connection: sa.Connection, caller: Caller, *, limit: int, before: int | None = None) -> list[StudyRow]:
    """Studies that the caller may see, the newest first."""
    query = _selected().where(caller.seen(studies)).order_by(studies.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(studies.c.id < before)
    return [StudyRow.model_validate(_told(connection, row)) for row in connection.execute(query).mappings().all()]


def one(connection: sa.Connection, caller: Caller, number: int) -> StudyFacts:
    """Everything about a study but its trials."""
    look(connection, caller, number)
    row = connection.execute(_selected().where(studies.c.id == number)).mappings().one()
    return StudyFacts.model_validate({**_told(connection, row), "tune": row["spec"]["tune"]})


def _selected() -> Any:
    names = (users.c.name.label("person"), groups.c.name.label("team"))
    joined = studies.join(users, users.c.id == studies.c.owner).outerjoin(groups, groups.c.id == studies.c.group)
    return sa.select(studies, *names).select_from(joined)


def _told(connection: sa.Connection, row: sa.RowMapping) -> dict[str, Any]:
    counted = (
        sa.select(trials.c.state, sa.func.count().label("count"))
        .where(trials.c.study == row["id"])
        .group_by(trials.c.state)
    )
    return {
        **{name: row[name] for name in ("id", "name", "objectives", "job", "created", "updated")},
        "owner": row["person"],
        "group": row["team"],
        "elsewhere": bool(row["facts"].get("elsewhere")),
        "trials": row["spec"]["tune"]["trials"],
        "counts": {each[0]: each[1] for each in connection.execute(counted)},
        "best": row["best"] or [],
    }


def outcomes(
    connection: sa.Connection, caller: Caller, number: int, *, limit: int, after: int | None = None
) -> list[Trial]:
    """The trials of a study, in order of number."""
    look(connection, caller, number)
    query = sa.select(trials).where(trials.c.study == number).order_by(trials.c.number).limit(limit)
    if after is not None:
        query = query.where(trials.c.number > after)
    return [
        Trial(
            number=row["number"],
            state=row["state"],
            settings=row["params"],
            values=tuple(value for value in row["values"] or () if value is not None),
            reports=row["reports"] or {},
            **(row["facts"] or {}),
        )
        for row in connection.execute(query).mappings()
    ]
