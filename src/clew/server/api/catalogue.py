"""Routes for datasets, recipes and benchmarks."""

from __future__ import annotations

import time
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, Field

from clew.client.datasets import DatasetInfo
from clew.server.accounts.audit import record_action
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
    ServiceOf,
    Text,
    paginate,
    visible_row,
)
from clew.server.api.fast_routes import BoundedRoute
from clew.server.database.tables import benchmarks, datasets, jobs, runs
from clew.server.database.writer import Transaction
from clew.server.jobs.orders import registered_locations
from clew.server.problems import not_found

router = APIRouter(prefix="/api/v1", tags=["catalogue"], responses=PROBLEMS, route_class=BoundedRoute)


DATASET_KEY = r"^[0-9a-zA-Z._:-]{1,200}$"


class NewDataset(Body):
    """A prepared dataset to register. The server stores its description, not its samples."""

    key: Annotated[str, Field(pattern=DATASET_KEY)]
    """The key of its content, as in the manifest."""
    name: Name
    location: Annotated[Text, Field(min_length=1)]
    manifest: Document = Field(default_factory=dict)
    group: Name | None = None


class DatasetRow(DatasetInfo):
    """A dataset, with its owner."""

    owner: int
    group: int | None
    runs: int = 0
    """The number of visible runs that were trained on it."""


class DatasetLocations(BaseModel):
    """Where the files of a dataset are, the newest registration first."""

    locations: tuple[str, ...]


class DatasetDetail(DatasetRow):
    """A dataset with its manifest."""

    manifest: Document


class NewBenchmark(Body):
    """Measured figures, in the format of `benchmarks/*.py --json` or of HEPscore."""

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
    """A recipe that is part of clew."""

    name: str
    summary: str


class RecipeSchema(RecipeRow):
    """A recipe with the JSON schema of its settings and their defaults, for forms."""

    settings: Document = Field(alias="schema", serialization_alias="schema")
    defaults: Document


@router.get("/datasets")
def list_datasets(
    service: ServiceOf, caller: Reader, limit: Limit = 100, after: After = None
) -> ResultPage[DatasetRow]:
    """List the datasets that the caller may see, the newest first."""
    columns = [column for column in datasets.c if column.name != "manifest"]
    trained = sa.select(sa.func.count()).where(runs.c.dataset == datasets.c.key, caller.visible(runs))
    trained_runs = trained.scalar_subquery().label("runs")
    with service.database.read() as connection:
        query = sa.select(*columns, trained_runs).where(caller.visible(datasets))
        return paginate(connection, query, datasets.c.id, lambda row: DatasetRow(**row), limit=limit, after=after)


@router.post("/datasets", status_code=201)
async def make_dataset(service: ServiceOf, caller: RunWriter, body: NewDataset, response: Response) -> DatasetRow:
    """Register a dataset. The same content at the same location is the same dataset (status 200)."""

    def work(transaction: Transaction) -> tuple[bool, Any]:
        caller.check_job_kind("prepare", transaction.connection)
        if caller.job is not None:
            transaction.execute(jobs.update().where(jobs.c.id == caller.job).values(dataset=body.key))
        same = datasets.c.owner == caller.user, datasets.c.key == body.key, datasets.c.location == body.location
        existing = transaction.scalar(sa.select(datasets.c.id).where(*same))
        if existing is None:
            values = body.model_dump(include={"key", "name", "location", "manifest"})
            group = caller.group_id(body.group, transaction.connection)
            number = transaction.add(datasets, owner=caller.user, group=group, created=time.time(), **values)
            record_action(transaction, caller, "make dataset", f"dataset:{number}", key=body.key)
        number = number if existing is None else existing
        return existing is None, transaction.execute(
            sa.select(datasets).where(datasets.c.id == number)
        ).mappings().one()

    made, row = await service.write_async(work)
    response.status_code = 201 if made else 200
    return DatasetRow(**{name: row[name] for name in DatasetRow.model_fields if name != "runs"})


@router.get("/datasets/key/{key}")
def get_dataset_locations(
    service: ServiceOf, caller: RunReader, key: Annotated[str, Path(pattern=DATASET_KEY)]
) -> DatasetLocations:
    """Return where the caller registered a dataset, by the key of its content. Places of other users are left out.

    The token of a job learns the places of the dataset of its job only, or of one that it would prepare.
    """
    with service.database.read() as connection:
        may_know = caller.job is None or _concerns_job(connection, caller.job, key)
        locations = registered_locations(connection, key, owner=caller.user) if may_know else ()
    if not locations:
        raise not_found("dataset", key)
    return DatasetLocations(locations=locations)


def _concerns_job(connection: sa.Connection, job: int, key: str) -> bool:
    row = connection.execute(sa.select(jobs.c.kind, jobs.c.dataset).where(jobs.c.id == job)).one()
    return bool(row.kind == "prepare" or row.dataset == key)


@router.get("/datasets/{number}")
def get_dataset(service: ServiceOf, caller: Reader, number: Number) -> DatasetDetail:
    """Return a dataset with its manifest."""
    with service.database.read() as connection:
        row = visible_row(connection, datasets, number, caller, "dataset")
        query = sa.select(sa.func.count()).where(runs.c.dataset == row.key, caller.visible(runs))
        trained = connection.execute(query).scalar_one()
    return DatasetDetail(**{**row._mapping, "runs": trained})


@router.delete("/datasets/{number}", status_code=204)
async def delete_dataset(service: ServiceOf, caller: Author, number: Number) -> None:
    """Delete the entry of a dataset. Its files stay."""

    def work(transaction: Transaction) -> None:
        visible_row(transaction.connection, datasets, number, caller, "dataset")
        transaction.execute(datasets.delete().where(datasets.c.id == number))
        record_action(transaction, caller, "delete", f"dataset:{number}")

    await service.write_async(work)


@router.get("/benchmarks")
def list_benchmarks(
    service: ServiceOf, caller: Reader, limit: Limit = 100, after: After = None, name: Text | None = None
) -> ResultPage[BenchmarkRow]:
    """List the benchmarks that the caller may see, the newest first."""
    query = sa.select(benchmarks).where(caller.visible(benchmarks))
    if name is not None:
        query = query.where(benchmarks.c.name == name)
    with service.database.read() as connection:
        return paginate(connection, query, benchmarks.c.id, lambda row: BenchmarkRow(**row), limit=limit, after=after)


@router.post("/benchmarks", status_code=201)
async def add_benchmark(service: ServiceOf, caller: RunWriter, body: NewBenchmark) -> BenchmarkRow:
    """Store a measurement. The same measurement is stored once."""

    def work(transaction: Transaction) -> Any:
        caller.check_job_kind("bench", transaction.connection)
        values = body.model_dump(include={"name", "host", "document"})
        same = [benchmarks.c.owner == caller.user, *(benchmarks.c[name] == value for name, value in values.items())]
        number = transaction.scalar(sa.select(benchmarks.c.id).where(*same))
        if number is None:
            group = caller.group_id(body.group, transaction.connection)
            number = transaction.add(benchmarks, owner=caller.user, group=group, created=time.time(), **values)
            record_action(transaction, caller, "add benchmark", f"benchmark:{number}", name=body.name)
        return transaction.execute(sa.select(benchmarks).where(benchmarks.c.id == number)).mappings().one()

    return BenchmarkRow(**await service.write_async(work))


@router.get("/benchmarks/{number}")
def get_benchmark(service: ServiceOf, caller: Reader, number: Number) -> BenchmarkRow:
    """Return a measurement."""
    with service.database.read() as connection:
        return BenchmarkRow(**visible_row(connection, benchmarks, number, caller, "benchmark")._mapping)


@router.get("/recipes")
def list_recipes(caller: Reader) -> list[RecipeRow]:
    """List the recipes that are part of clew. Recipes of users are sent with their jobs and never loaded here."""
    from clew.recipe import shipped

    return [RecipeRow(name=name, summary=_summary(name)) for name in sorted(shipped())]


@router.get("/recipes/{name}", response_model_by_alias=True)
def get_recipe(caller: Reader, name: Annotated[str, Path(max_length=64)]) -> RecipeSchema:
    """Return the JSON schema of a recipe's settings, from which a form can be made, and all defaults."""
    from clew.recipe import find, shipped
    from clew.settings import load_settings, settings_schema

    if name not in shipped():
        raise not_found("recipe", name)
    return RecipeSchema(
        name=name,
        summary=_summary(name),
        schema=settings_schema(find(name)).model_json_schema(),
        defaults=load_settings(name).data,
    )


def _summary(name: str) -> str:
    from clew.recipe import find

    return (find(name).__doc__ or "").strip().partition("\n")[0]
