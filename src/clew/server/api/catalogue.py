"""Datasets, recipes and benchmarks."""

from __future__ import annotations

import time
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, Field

from clew.client.datasets import DatasetInfo
from clew.server.accounts.callers import record
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
    one,
    page,
)
from clew.server.database.tables import benchmarks, datasets, runs
from clew.server.database.writer import Change
from clew.server.problems import missing

router = APIRouter(prefix="/api/v1", tags=["catalogue"], responses=PROBLEMS)


class NewDataset(Body):
    """A prepared dataset that lies somewhere: the server keeps what it is, not its samples."""

    key: Annotated[str, Field(pattern=r"^[0-9a-zA-Z._:-]{1,200}$")]
    """Of its content, as the manifest has it."""
    name: Name
    location: Annotated[Text, Field(min_length=1)]
    manifest: Document = Field(default_factory=dict)
    group: Name | None = None


class DatasetRow(DatasetInfo):
    """A dataset, and whose it is."""

    owner: int
    group: int | None
    runs: int = 0
    """How many were trained on it, of those I see."""


class DatasetFacts(DatasetRow):
    """With its manifest."""

    manifest: Document


class NewBenchmark(Body):
    """Figures that were measured, as `benchmarks/*.py --json` write them or in HEPscore's format."""

    name: Name
    host: Text = ""
    document: Document
    group: Name | None = None


class BenchmarkRow(BaseModel):
    """A measurement."""

    id: int
    owner: int
    group: int | None
    name: str
    host: str
    document: Document
    created: float


class RecipeRow(BaseModel):
    """A recipe that clew brings."""

    name: str
    summary: str


class RecipeSchema(RecipeRow):
    """With the schema of its settings and their defaults, for forms."""

    settings: Document = Field(alias="schema", serialization_alias="schema")
    defaults: Document


@router.get("/datasets")
def list_datasets(service: ServiceOf, caller: Reader, limit: Limit = 100, after: After = None) -> Page[DatasetRow]:
    """Those I see, newest first."""
    columns = [column for column in datasets.c if column.name != "manifest"]
    seen = caller.seen(runs)
    trained = sa.select(sa.func.count()).where(runs.c.dataset == datasets.c.key, seen).scalar_subquery().label("runs")
    with service.database.read() as connection:
        query = sa.select(*columns, trained).where(caller.seen(datasets))
        return page(connection, query, datasets.c.id, lambda row: DatasetRow(**row), limit=limit, after=after)


@router.post("/datasets", status_code=201)
async def make_dataset(service: ServiceOf, caller: Pusher, body: NewDataset, response: Response) -> DatasetRow:
    """Register one; the same content at the same place is the same dataset (200)."""

    def work(change: Change) -> tuple[bool, Any]:
        same = datasets.c.owner == caller.user, datasets.c.key == body.key, datasets.c.location == body.location
        known = change.scalar(sa.select(datasets.c.id).where(*same))
        if known is None:
            facts = body.model_dump(include={"key", "name", "location", "manifest"})
            group = caller.group(body.group, change.connection)
            number = change.add(datasets, owner=caller.user, group=group, created=time.time(), **facts)
            record(change, caller, "make dataset", f"dataset:{number}", key=body.key)
        number = number if known is None else known
        return known is None, change.execute(sa.select(datasets).where(datasets.c.id == number)).mappings().one()

    made, row = await service.write_soon(work)
    response.status_code = 201 if made else 200
    return DatasetRow(**{name: row[name] for name in DatasetRow.model_fields if name != "runs"})


@router.get("/datasets/{number}")
def get_dataset(service: ServiceOf, caller: Reader, number: Number) -> DatasetFacts:
    """One, with its manifest."""
    with service.database.read() as connection:
        row = one(connection, datasets, number, caller, "dataset")
        query = sa.select(sa.func.count()).where(runs.c.dataset == row.key, caller.seen(runs))
        trained = connection.execute(query).scalar_one()
    return DatasetFacts(**{**row._mapping, "runs": trained})


@router.delete("/datasets/{number}", status_code=204)
async def delete_dataset(service: ServiceOf, caller: Author, number: Number) -> None:
    """Forget one; its files stay."""

    def work(change: Change) -> None:
        one(change.connection, datasets, number, caller, "dataset")
        change.execute(datasets.delete().where(datasets.c.id == number))
        record(change, caller, "delete", f"dataset:{number}")

    await service.write_soon(work)


@router.get("/benchmarks")
def list_benchmarks(
    service: ServiceOf, caller: Reader, limit: Limit = 100, after: After = None, name: Text | None = None
) -> Page[BenchmarkRow]:
    """Measurements that I see, newest first."""
    query = sa.select(benchmarks).where(caller.seen(benchmarks))
    if name is not None:
        query = query.where(benchmarks.c.name == name)
    with service.database.read() as connection:
        return page(connection, query, benchmarks.c.id, lambda row: BenchmarkRow(**row), limit=limit, after=after)


@router.post("/benchmarks", status_code=201)
async def add_benchmark(service: ServiceOf, caller: Pusher, body: NewBenchmark) -> BenchmarkRow:
    """Keep a measurement. Told twice, it is kept once."""

    def work(change: Change) -> Any:
        facts = body.model_dump(include={"name", "host", "document"})
        same = [benchmarks.c.owner == caller.user, *(benchmarks.c[name] == value for name, value in facts.items())]
        number = change.scalar(sa.select(benchmarks.c.id).where(*same))
        if number is None:
            group = caller.group(body.group, change.connection)
            number = change.add(benchmarks, owner=caller.user, group=group, created=time.time(), **facts)
            record(change, caller, "add benchmark", f"benchmark:{number}", name=body.name)
        return change.execute(sa.select(benchmarks).where(benchmarks.c.id == number)).mappings().one()

    return BenchmarkRow(**await service.write_soon(work))


@router.get("/benchmarks/{number}")
def get_benchmark(service: ServiceOf, caller: Reader, number: Number) -> BenchmarkRow:
    """One measurement."""
    with service.database.read() as connection:
        return BenchmarkRow(**one(connection, benchmarks, number, caller, "benchmark")._mapping)


@router.get("/recipes")
def list_recipes(caller: Reader) -> list[RecipeRow]:
    """Those that clew brings. Anybody's own travel with their jobs, and are never loaded here."""
    from clew.recipe import shipped

    return [RecipeRow(name=name, summary=_summary(name)) for name in sorted(shipped())]


@router.get("/recipes/{name}", response_model_by_alias=True)
def get_recipe(caller: Reader, name: Annotated[str, Path(max_length=64)]) -> RecipeSchema:
    """The schema of a recipe's document, from which a form can be made, and every default."""
    from clew.recipe import find, shipped
    from clew.settings import load_settings, settings_schema

    if name not in shipped():
        raise missing("recipe", name)
    return RecipeSchema(
        name=name,
        summary=_summary(name),
        schema=settings_schema(find(name)).model_json_schema(),
        defaults=load_settings(name).data,
    )


def _summary(name: str) -> str:
    from clew.recipe import find

    return (find(name).__doc__ or "").strip().partition("\n")[0]
