"""Runs: make, list, look at, tag, delete."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Query, Response
from pydantic import Field

from clew.client.runs import RunInfo
from clew.server.accounts.callers import Caller, record
from clew.server.api.dependencies import (
    PROBLEMS,
    After,
    Author,
    Body,
    Document,
    Limit,
    Name,
    Number,
    Page,
    Pusher,
    Reader,
    ServiceOf,
    Text,
    Watcher,
    Word,
    one,
    page,
)
from clew.server.api.fast_routes import quick
from clew.server.database.tables import groups, runs, streams, tags, users
from clew.server.database.writer import Change
from clew.server.problems import RefusedError
from clew.server.runs.recompute import erase
from clew.server.runs.run_state import BEGINNING

router = APIRouter(prefix="/api/v1/runs", tags=["runs"], responses=PROBLEMS)
_LISTED = [column for column in runs.c if column.name not in ("config", "environment")]


class NewRun(Body):
    """A run that is about to be recorded."""

    uid: Word
    """Chosen by who pushes: asking twice with the same one makes one run."""
    name: Name
    recipe: Text = ""
    config: Document = Field(default_factory=dict)
    environment: Document = Field(default_factory=dict)
    dataset: Text | None = None
    """The content key of what it is trained on."""
    group: Name | None = None
    study: int | None = Field(None, ge=1, le=2**31 - 1)
    trial: int | None = Field(None, ge=0, le=2**31 - 1)
    tags: list[Word] = Field(default_factory=list, max_length=50)


class RunRow(RunInfo):
    """A run in a list."""

    owner: int
    group: int | None
    uid: str
    workers: int
    updated: float


class RunFacts(RunRow):
    """All of a run but its records."""

    config: Document
    environment: Document


class MadeRun(RunRow):
    """A run, and where to go on with its records."""

    next: dict[str, int]
    """By stream, the `seq` that comes next."""


@router.get("")
def list_runs(
    service: ServiceOf,
    caller: Reader,
    limit: Limit = 100,
    after: After = None,
    state: Annotated[list[Word] | None, Query(max_length=10)] = None,
    tag: Annotated[list[Word] | None, Query(max_length=10)] = None,
    recipe: Text | None = None,
    search: Text | None = None,
) -> Page[RunRow]:
    """Those I see, newest first. `search` looks in names, recipes, hosts, messages, owners, tags and settings."""
    query = listed(caller)
    if state:
        query = query.where(runs.c.state.in_(state))
    for name in tag or ():
        query = query.where(runs.c.id.in_(sa.select(tags.c.run).where(tags.c.name == name)))
    if recipe:
        query = query.where(runs.c.recipe == recipe)
    for word in (search or "").split():
        query = query.where(_has(word))
    with service.database.read() as connection:
        found = page(connection, query, runs.c.id, dict, limit=limit, after=after)
        return Page(items=rows(connection, found.items), next=found.next)


async def make_run(service: ServiceOf, caller: Pusher, body: NewRun) -> Response:
    """Make a run, or find the one that has this `uid` already (200)."""

    def work(change: Change) -> tuple[bool, MadeRun]:
        number = _known(change, caller, body) if body.group else None  # it is found by who has left the group, too
        if number is None:
            made = _make(service, change, caller, body)
            if made is not None:
                return True, made
            number = _known(change, caller, body)
        if number is None:
            raise RefusedError(409, "another job has a run of this uid", where="uid", do="choose another")
        found = change.execute(listed(caller).where(runs.c.id == number)).mappings().one()
        row = rows(change.connection, [dict(found)])[0]
        return False, MadeRun(**row.model_dump(), next=expected(change.connection, number))

    made, row = await service.write_soon(work)
    return Response(row.model_dump_json(), 201 if made else 200, media_type="application/json")


router.add_api_route(
    "",
    make_run,
    methods=["POST"],
    status_code=201,
    response_model=MadeRun,
    route_class_override=quick(NewRun, "write", "job"),
)


@router.get("/{number}")
def get_run(service: ServiceOf, caller: Watcher, number: Number) -> RunFacts:
    """One, with its settings and what it runs on."""
    with service.database.read() as connection:
        full = one(connection, runs, number, caller, "run")
        found = connection.execute(listed(caller).where(runs.c.id == number)).mappings().one()
        row = rows(connection, [dict(found)])[0]
    return RunFacts(**row.model_dump(), config=full.config, environment=full.environment)


class RunChange(Body):
    """What to change; what is not given stays."""

    name: Name | None = None
    group: Name | None = None
    state: Literal["interrupted"] | None = None
    """Of a run that ended without a word; nothing changes where it had one."""
    message: Text | None = None


@router.patch("/{number}")
async def change_run(service: ServiceOf, caller: Pusher, number: Number, body: RunChange) -> RunRow:
    """Rename it, share it with a group, or tell that its process is gone."""

    def work(change: Change) -> RunRow:
        row = one(change.connection, runs, number, caller, "run")
        facts = body.model_dump(exclude_none=True)
        if "group" in facts:
            facts["group"] = caller.group(body.group, change.connection)
        if facts.pop("state", None) and row.state in ("created", "running"):
            facts |= {"state": "interrupted", "ended": row.updated}
        if facts:
            change.execute(runs.update().where(runs.c.id == number).values(facts))
            record(change, caller, "change run", f"run:{number}", **facts)
            service.forget_run(number)
            change.after.append(lambda: service.forget_run(number))
            change.tell(f"run:{number}", "runs")
        found = change.execute(listed(caller).where(runs.c.id == number)).mappings().one()
        return rows(change.connection, [dict(found)])[0]

    return await service.write_soon(work)


class Tags(Body):
    """All tags of a run."""

    tags: list[Word] = Field(max_length=50)


@router.put("/{number}/tags")
async def set_tags(service: ServiceOf, caller: Author, number: Number, body: Tags) -> Tags:
    """Give a run these tags and no others."""

    def work(change: Change) -> Tags:
        one(change.connection, runs, number, caller, "run")
        change.execute(tags.delete().where(tags.c.run == number))
        names = sorted(set(body.tags))
        if names:
            change.execute(tags.insert(), [{"run": number, "name": name} for name in names])
        record(change, caller, "tag", f"run:{number}", tags=names)
        change.tell(f"run:{number}", "runs")
        return Tags(tags=names)

    return await service.write_soon(work)


@router.delete("/{number}", status_code=204)
async def delete_run(service: ServiceOf, caller: Author, number: Number) -> None:
    """Remove a run with its records and artefacts. Its folder, wherever that is, stays."""

    def work(change: Change) -> None:
        row = one(change.connection, runs, number, caller, "run")
        erase(change, number)
        change.execute(runs.delete().where(runs.c.id == number))
        record(change, caller, "delete", f"run:{number}", name=row.name)
        service.forget_run(number)
        change.after.append(lambda: service.forget_run(number))
        change.tell(f"run:{number}", "runs")

    await service.write_soon(work)


def listed(caller: Caller) -> sa.Select[Any]:
    """The rows of a list: what the caller sees, with the owners' names."""
    names = (users.c.name.label("owner_name"), groups.c.name.label("group_name"))
    joined = runs.join(users, users.c.id == runs.c.owner).outerjoin(groups, groups.c.id == runs.c.group)
    return sa.select(*_LISTED, *names).select_from(joined).where(caller.seen(runs))


def rows(connection: sa.Connection, found: list[dict[str, Any]]) -> list[RunRow]:
    """With their tags."""
    query = sa.select(tags).where(tags.c.run.in_([row["id"] for row in found])).order_by(tags.c.name)
    named: dict[int, list[str]] = {}
    for tag in connection.execute(query) if found else ():
        named.setdefault(tag.run, []).append(tag.name)
    return [RunRow(**row, tags=named.get(row["id"], [])) for row in found]


def _has(word: str) -> sa.ColumnElement[bool]:
    places = (runs.c.name, runs.c.recipe, runs.c.host, runs.c.message, users.c.name, sa.cast(runs.c.config, sa.Text))
    tagged = sa.select(tags.c.run).where(tags.c.name == word)
    return sa.or_(*(place.icontains(word, autoescape=True) for place in places), runs.c.id.in_(tagged))


def expected(connection: sa.Connection, run: int) -> dict[str, int]:
    """The streams of a run, and the `seq` that each expects next."""
    found = connection.execute(sa.select(streams).where(streams.c.run == run).order_by(streams.c.name)).all()
    return {row.name: row.next for row in found}


def _known(change: Change, caller: Caller, body: NewRun) -> int | None:
    """The run that has this `uid` already."""
    same = sa.select(runs.c.id).where(runs.c.owner == caller.user, runs.c.uid == body.uid)
    return change.scalar(same if caller.job is None else same.where(runs.c.job == caller.job))


def _make(service: ServiceOf, change: Change, caller: Caller, body: NewRun) -> MadeRun | None:
    """None where there is a run of this `uid` already."""
    now = time.time()
    facts = body.model_dump(include={"uid", "name", "recipe", "config", "environment", "dataset", "study", "trial"})
    host = str(body.environment.get("host", ""))[:200].replace("\x00", "")
    facts |= {"owner": caller.user, "group": caller.group(body.group, change.connection), "job": caller.job}
    facts |= {"state": "created", "message": "", "host": host, "metrics": {}, "created": now, "updated": now}
    number = change.add_new(runs, **facts)
    if number is None:
        return None
    named = sorted(set(body.tags))
    if named:
        change.execute(tags.insert(), [{"run": number, "name": name} for name in named])
    record(change, caller, "make run", f"run:{number}", name=body.name)
    change.tell("runs")
    service.begin_run(change, number, facts)
    group = facts["group"] and change.scalar(sa.select(groups.c.name).where(groups.c.id == facts["group"]))
    told: dict[str, Any] = {"id": number, "owner_name": caller.name, "group_name": group, "tags": named, "next": {}}
    return MadeRun(**BEGINNING, **{name: facts[name] for name in facts.keys() & RunRow.model_fields.keys()}, **told)
