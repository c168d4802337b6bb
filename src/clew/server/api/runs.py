"""Routes for runs: create, list, change, tag and delete."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Query, Response
from pydantic import Field

from clew.client.runs import RunInfo
from clew.runs.push import TRIAL_NAME
from clew.server.accounts.audit import record_action
from clew.server.accounts.caller import Caller
from clew.server.api.dependencies import (
    PROBLEMS,
    After,
    Author,
    Body,
    Document,
    Limit,
    Name,
    Number,
    Reader,
    ResultPage,
    RunReader,
    RunWriter,
    Search,
    ServiceOf,
    Text,
    Word,
    paginate,
    search_words,
    visible_row,
)
from clew.server.api.fast_routes import BoundedRoute, fast_route
from clew.server.database.tables import artefacts, groups, jobs, records, runs, streams, studies, tags, users
from clew.server.database.writer import Transaction
from clew.server.problems import RequestError
from clew.server.runs.recompute import delete_records
from clew.server.runs.run_query import run_query
from clew.server.runs.run_values import save_values, setting_values

router = APIRouter(prefix="/api/v1/runs", tags=["runs"], responses=PROBLEMS, route_class=BoundedRoute)
_LIST_COLUMNS: list[sa.ColumnElement[Any]] = [
    column for column in runs.c if column.name not in ("config", "environment", "begun")
]
_LIST_COLUMNS.append(runs.c.begun.label("started"))


class NewRun(Body):
    """A run to create before its records are sent."""

    uid: Word
    """Chosen by the client: a request with the same uid gives the same run."""
    name: Name
    recipe: Text = ""
    config: Document = Field(default_factory=dict)
    environment: Document = Field(default_factory=dict)
    dataset: Text | None = None
    """The content key of its dataset."""
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
    study: int | None = None
    trial: int | None = None
    note: str = ""
    archived: float | None = None
    """When it was archived."""
    deleted: float | None = None
    """When it was deleted; it can be restored."""


class RunDetail(RunRow):
    """A run with its settings and environment."""

    config: Document
    environment: Document


class CreatedRun(RunRow):
    """A run, and where to continue with its records."""

    next: dict[str, int]
    """The next expected `seq` by stream."""


@router.get("")
def list_runs(
    service: ServiceOf,
    caller: Reader,
    limit: Limit = 100,
    after: After = None,
    state: Annotated[list[Word] | None, Query(max_length=10)] = None,
    tag: Annotated[list[Word] | None, Query(max_length=10)] = None,
    recipe: Text | None = None,
    search: Search | None = None,
    where: Text = "",
) -> ResultPage[RunRow]:
    """List the runs that the caller may see, the newest first, without deleted ones.

    `where` is a query: `lr < 0.01 and efficiency > 0.9 and tag:paper`.
    `search` looks in names, recipes, hosts, messages, owners, tags and settings.
    """
    query = visible_runs(caller).where(runs.c.deleted.is_(None))
    if state:
        query = query.where(runs.c.state.in_(state))
    for name in tag or ():
        query = query.where(runs.c.id.in_(sa.select(tags.c.run).where(tags.c.name == name)))
    if recipe:
        query = query.where(runs.c.recipe == recipe)
    for word in search_words(search or ""):
        query = query.where(_matches(word))
    with service.database.read() as connection:
        query = query.where(run_query(connection, caller, where).condition) if where.strip() else query
        page = paginate(connection, query, runs.c.id, dict, limit=limit, after=after)
        return ResultPage(items=run_rows(connection, page.items), next=page.next)


async def make_run(service: ServiceOf, caller: RunWriter, body: NewRun) -> Response:
    """Create a run, or return the one with this `uid` (status 200)."""

    def work(transaction: Transaction) -> tuple[bool, CreatedRun]:
        number = (
            _existing_run(transaction, caller, body) if body.group else None
        )  # users who left the group find it, too
        if number is None:
            created = _insert_run(service, transaction, caller, body)
            if created is not None:
                return True, created
            number = _existing_run(transaction, caller, body)
        if number is None:
            raise RequestError(409, "another job has a run with this uid", where="uid", hint="choose another")
        row = _run_row(transaction.connection, caller, number)
        return False, CreatedRun(**row.model_dump(), next=next_sequence_numbers(transaction.connection, number))

    is_new, row = await service.write_async(work)
    return Response(row.model_dump_json(), 201 if is_new else 200, media_type="application/json")


router.add_api_route(
    "",
    make_run,
    methods=["POST"],
    status_code=201,
    response_model=CreatedRun,
    route_class_override=fast_route(NewRun, "write", "job"),
)


@router.get("/{number}")
def get_run(service: ServiceOf, caller: RunReader, number: Number) -> RunDetail:
    """Return a run with its settings and environment."""
    with service.database.read() as connection:
        full = visible_row(connection, runs, number, caller, "run")
        row = _run_row(connection, caller, number)
    return RunDetail(**row.model_dump(), config=full.config, environment=full.environment)


class RunChange(Body):
    """Changes of a run; fields that are absent stay."""

    name: Name | None = None
    group: Name | None = None
    """The group to share it with; null ends the sharing. Only the owner can change it."""
    state: Literal["interrupted"] | None = None
    """For a run whose process is gone. A run whose end is recorded does not change."""
    message: Text | None = None
    note: Text | None = None
    archived: bool | None = None
    """Whether lists leave it out."""
    deleted: bool | None = None
    """Whether it is hidden. False restores it. `DELETE` removes a run for good."""


class RunChanges(Body):
    """The same changes of several runs."""

    runs: list[Annotated[int, Field(ge=1, le=2**63 - 1)]] = Field(min_length=1, max_length=500)
    add_tags: list[Word] = Field(default_factory=list, max_length=20)
    archived: bool | None = None
    deleted: bool | None = None


@router.post("/changes", status_code=204)
async def change_runs(service: ServiceOf, caller: Author, body: RunChanges) -> None:
    """Tag, archive, delete or restore several runs; all or none."""

    def work(transaction: Transaction) -> None:
        for number in dict.fromkeys(body.runs):
            visible_row(transaction.connection, runs, number, caller, "run")
            known = set(transaction.execute(sa.select(tags.c.name).where(tags.c.run == number)).scalars())
            new = sorted(set(body.add_tags) - known)
            if new:
                transaction.execute(tags.insert(), [{"run": number, "name": name} for name in new])
        times = _times_of_marks(body.archived, body.deleted)
        if times:
            transaction.execute(runs.update().where(runs.c.id.in_(body.runs)).values(times))
        facts = body.model_dump(exclude_none=True, exclude={"runs"})
        record_action(transaction, caller, "change runs", f"run:{body.runs[0]}", runs=body.runs, **facts)
        transaction.notify("runs", *(f"run:{number}" for number in body.runs))

    await service.write_async(work)


def _times_of_marks(archived: bool | None, deleted: bool | None) -> dict[str, float | None]:
    """Return the columns that archive, delete or restore a run; a mark that is None stays as it is."""
    marks = {"archived": archived, "deleted": deleted}
    return {name: time.time() if mark else None for name, mark in marks.items() if mark is not None}


@router.patch("/{number}")
async def change_run(service: ServiceOf, caller: RunWriter, number: Number, body: RunChange) -> RunRow:
    """Rename, annotate, share, archive, delete or restore a run, or mark it as interrupted."""

    def work(transaction: Transaction) -> RunRow:
        row = visible_row(transaction.connection, runs, number, caller, "run")
        facts = body.model_dump(exclude_none=True, exclude={"archived", "deleted"})
        facts |= _times_of_marks(body.archived, body.deleted)
        if "group" in body.model_fields_set:
            facts["group"] = _new_group(transaction, caller, row, body.group)
        if facts.pop("state", None) and row.state in ("created", "running"):
            now = {"state": "interrupted", "ended": _newest_record_time(transaction, row), "updated": time.time()}
            facts |= now
        if facts:
            transaction.execute(runs.update().where(runs.c.id == number).values(facts))
            record_action(transaction, caller, "change run", f"run:{number}", **facts)
            service.forget_run(number)
            transaction.after_commit.append(lambda: service.forget_run(number))
            transaction.notify(f"run:{number}", "runs")
        return _run_row(transaction.connection, caller, number)

    return await service.write_async(work)


def _newest_record_time(transaction: Transaction, run: Any) -> float:
    """Return when a run wrote its newest record; it may have been sent much later."""
    newest = sa.and_(records.c.stream == streams.c.id, records.c.seq == streams.c.next - 1)
    query = sa.select(sa.func.max(records.c.time)).join(streams, newest).where(streams.c.run == run.id)
    return float(transaction.scalar(query) or run.updated)


def _new_group(transaction: Transaction, caller: Caller, run: Any, name: str | None) -> int | None:
    """Return the id of the group that a run is shared with from now on; its artefacts are shared with it, too."""
    group = None if name is None else caller.group_id(name, transaction.connection)
    if group != run.group and not (caller.admin or caller.user == run.owner):
        raise RequestError(403, "only the owner of a run can change whom it is shared with", where="group")
    transaction.execute(artefacts.update().where(artefacts.c.run == run.id).values(group=group))
    return group


class Tags(Body):
    """The tags of a run."""

    tags: list[Word] = Field(max_length=50)


@router.put("/{number}/tags")
async def set_tags(service: ServiceOf, caller: Author, number: Number, body: Tags) -> Tags:
    """Set the tags of a run; earlier tags are removed."""

    def work(transaction: Transaction) -> Tags:
        visible_row(transaction.connection, runs, number, caller, "run")
        transaction.execute(tags.delete().where(tags.c.run == number))
        names = sorted(set(body.tags))
        if names:
            transaction.execute(tags.insert(), [{"run": number, "name": name} for name in names])
        record_action(transaction, caller, "tag", f"run:{number}", tags=names)
        transaction.notify(f"run:{number}", "runs")
        return Tags(tags=names)

    return await service.write_async(work)


@router.delete("/{number}", status_code=204)
async def delete_run(service: ServiceOf, caller: Author, number: Number) -> None:
    """Delete a run with its records and artefacts. Its run folder stays."""

    def work(transaction: Transaction) -> None:
        row = visible_row(transaction.connection, runs, number, caller, "run")
        delete_records(transaction, number)
        transaction.execute(runs.delete().where(runs.c.id == number))
        record_action(transaction, caller, "delete", f"run:{number}", name=row.name)
        service.forget_run(number)
        transaction.after_commit.append(lambda: service.forget_run(number))
        transaction.notify(f"run:{number}", "runs")

    await service.write_async(work)


def visible_runs(caller: Caller) -> sa.Select[Any]:
    """Select the runs that the caller may see, with the names of their owners and groups."""
    names = (users.c.name.label("owner_name"), groups.c.name.label("group_name"))
    joined = runs.join(users, users.c.id == runs.c.owner).outerjoin(groups, groups.c.id == runs.c.group)
    return sa.select(*_LIST_COLUMNS, *names).select_from(joined).where(caller.visible(runs))


def run_rows(connection: sa.Connection, selected: list[dict[str, Any]]) -> list[RunRow]:
    """Return rows of `visible_runs` with their tags."""
    query = sa.select(tags).where(tags.c.run.in_([row["id"] for row in selected])).order_by(tags.c.name)
    by_run: dict[int, list[str]] = {}
    for tag in connection.execute(query) if selected else ():
        by_run.setdefault(tag.run, []).append(tag.name)
    return [RunRow(**row, tags=by_run.get(row["id"], [])) for row in selected]


def _run_row(connection: sa.Connection, caller: Caller, number: int) -> RunRow:
    row = connection.execute(visible_runs(caller).where(runs.c.id == number)).mappings().one()
    return run_rows(connection, [dict(row)])[0]


def _matches(word: str) -> sa.ColumnElement[bool]:
    columns = (runs.c.name, runs.c.recipe, runs.c.host, runs.c.message, users.c.name, sa.cast(runs.c.config, sa.Text))
    tagged = sa.select(tags.c.run).where(tags.c.name == word)
    return sa.or_(*(column.icontains(word, autoescape=True) for column in columns), runs.c.id.in_(tagged))


def next_sequence_numbers(connection: sa.Connection, run: int) -> dict[str, int]:
    """Return the next expected `seq` of each stream of a run."""
    rows = connection.execute(sa.select(streams).where(streams.c.run == run).order_by(streams.c.name)).all()
    return {row.name: row.next for row in rows}


def _existing_run(transaction: Transaction, caller: Caller, body: NewRun) -> int | None:
    """Return the id of the run with this `uid`."""
    same = sa.select(runs.c.id).where(runs.c.owner == caller.user, runs.c.uid == body.uid)
    return transaction.scalar(same if caller.job is None else same.where(runs.c.job == caller.job))


def _study_of(transaction: Transaction, caller: Caller, body: NewRun) -> dict[str, Any]:
    """Return the study and the trial of a new run; a study that the caller may not see is left out."""
    if caller.job is not None and body.study is None:
        job = sa.select(jobs.c.study).where(jobs.c.id == caller.job, jobs.c.kind == "trial")
        trial = TRIAL_NAME.match(body.name)
        return {"study": transaction.scalar(job), "trial": int(trial[1]) if trial else body.trial}
    if body.study is None:
        return {}
    row = transaction.execute(sa.select(studies).where(studies.c.id == body.study)).one_or_none()
    visible = row is not None and caller.can_see(row)
    return {"study": body.study if visible else None, "trial": body.trial if visible else None}


def _insert_run(service: ServiceOf, transaction: Transaction, caller: Caller, body: NewRun) -> CreatedRun | None:
    """Insert a run; None if there is already a run with this `uid`."""
    now = time.time()
    values = body.model_dump(include={"uid", "name", "recipe", "config", "environment", "dataset", "study", "trial"})
    host = str(body.environment.get("host", ""))[:200].replace("\x00", "")
    values |= _study_of(transaction, caller, body)
    values |= {"owner": caller.user, "group": caller.group_id(body.group, transaction.connection), "job": caller.job}
    values |= {"state": "created", "message": "", "host": host, "metrics": {}, "created": now, "updated": now}
    number = transaction.add_if_absent(runs, **values)
    if number is None:
        return None
    names = sorted(set(body.tags))
    if names:
        transaction.execute(tags.insert(), [{"run": number, "name": name} for name in names])
    save_values(transaction, {number: setting_values(body.config)})
    record_action(transaction, caller, "make run", f"run:{number}", name=body.name)
    transaction.notify("runs")
    service.start_run(transaction, number, values)
    row = _run_row(transaction.connection, caller, number)
    return CreatedRun(**row.model_dump(), next={})
