"""Datasets and benchmarks."""

from __future__ import annotations

import json
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Path, Query, Request, Response

from clew.runs.comparison import flatten_settings, setting_text
from clew.server.accounts.callers import Caller
from clew.server.api.runs import listed, rows
from clew.server.dashboard import layout
from clew.server.dashboard.formatting import size
from clew.server.dashboard.run_cards import glimpses
from clew.server.database.tables import benchmarks, datasets, runs, users
from clew.server.problems import missing

router = layout.router()
_PAGE = 50
After = Annotated[int | None, Query(ge=1, le=2**63 - 1)]
Key = Annotated[str, Path(max_length=200)]


@router.get("/datasets")
def index(request: Request, viewer: layout.Viewer, after: After = None) -> Response:
    """Those that somebody told of, and those that runs have learned from."""
    with request.app.state.service.database.read() as connection:
        query = sa.select(datasets).where(viewer.seen(datasets)).order_by(datasets.c.id.desc()).limit(_PAGE + 1)
        if after is not None:
            query = query.where(datasets.c.id < after)
        found = [dict(row) for row in connection.execute(query).mappings()]
        used = _used(connection, viewer)
        heard = _only_heard_of(connection, viewer, used) if after is None else []
    more = layout.link("/datasets", after=found[_PAGE - 1]["id"]) if len(found) > _PAGE else None
    shown = [{**_shown(row), "runs": used.get(row["key"], 0)} for row in found[:_PAGE]]
    return layout.page(request, "datasets.html", "datasets", datasets=[*shown, *heard], next=more)


@router.get("/datasets/{key}")
def dataset(request: Request, viewer: layout.Viewer, key: Key) -> Response:
    """One, with the runs that learned from it."""
    with request.app.state.service.database.read() as connection:
        row = connection.execute(
            sa.select(datasets).where(viewer.seen(datasets), datasets.c.key == key).order_by(datasets.c.id.desc())
        ).mappings()
        found = [dict(each) for each in row]
        chosen = listed(viewer).where(runs.c.dataset == key).order_by(runs.c.id.desc()).limit(_PAGE)
        learned = glimpses(connection, rows(connection, [dict(each) for each in connection.execute(chosen).mappings()]))
    if not found and not learned:
        raise missing("dataset", key)
    shown = _shown(found[0]) if found else {"key": key, "manifest": {}}
    facts = [text for text in (shown.get("recipe", ""), shown.get("splits", ""), _size(shown)) if text]
    facts += [f"at {each['location']}" for each in found]
    manifest = json.dumps(shown["manifest"], indent=2, ensure_ascii=False)[:200_000]
    return layout.page(request, "dataset.html", "datasets", dataset=shown, facts=facts, runs=learned, manifest=manifest)


@router.get("/benchmarks")
def measured(request: Request, viewer: layout.Viewer, after: After = None) -> Response:
    """What machines were measured to do."""
    query = sa.select(benchmarks, users.c.name.label("person")).join(users, users.c.id == benchmarks.c.owner)
    query = query.where(viewer.seen(benchmarks)).order_by(benchmarks.c.id.desc()).limit(21)
    if after is not None:
        query = query.where(benchmarks.c.id < after)
    with request.app.state.service.database.read() as connection:
        found = [dict(row) for row in connection.execute(query).mappings()]
    more = layout.link("/benchmarks", after=found[19]["id"]) if len(found) > 20 else None
    shown = [_benchmark(row) for row in found[:20]]
    return layout.page(request, "benchmarks.html", "benchmarks", benchmarks=shown, next=more)


def _benchmark(row: dict[str, Any]) -> dict[str, Any]:
    """Its bars and conditions, as far as the document has such: it comes from outside."""
    document = row["document"] if isinstance(row["document"], dict) else {}
    bars = [each for each in _list(document.get("bars")) if isinstance(each, dict)]
    conditions = document.get("conditions")
    told = (
        [(name, setting_text(value)) for name, value in flatten_settings(conditions)]
        if isinstance(conditions, dict)
        else []
    )
    if not bars:
        told = [(name, setting_text(value)) for name, value in flatten_settings(document)]
    return {**row, "owner": row["person"], "bars": bars, "conditions": told}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """What a manifest says of itself."""
    manifest = row["manifest"] if isinstance(row["manifest"], dict) else {}
    shards = [each for each in _list(manifest.get("shards")) if isinstance(each, dict)]
    splits: dict[str, int] = {}
    for shard in shards:
        count = shard.get("samples", 0)
        splits[str(shard.get("split", ""))] = splits.get(str(shard.get("split", "")), 0) + (
            count if isinstance(count, int) else 0
        )
    total = sum(each["bytes"] for each in shards if isinstance(each.get("bytes"), int))
    return {
        "key": row["key"],
        "path": row["location"],
        "recipe": str(manifest.get("recipe", "")) or row["name"],
        "samples": sum(splits.values()) or None,
        "splits": " · ".join(f"{name} {count:,}" for name, count in splits.items()),
        "size": total or None,
        "created": row["created"],
        "manifest": manifest,
    }


def _size(shown: dict[str, Any]) -> str:
    return size(shown["size"]) if shown.get("size") else ""


def _used(connection: sa.Connection, viewer: Caller) -> dict[str, int]:
    query = sa.select(runs.c.dataset, sa.func.count()).where(viewer.seen(runs), runs.c.dataset.is_not(None))
    return {row[0]: row[1] for row in connection.execute(query.group_by(runs.c.dataset))}


def _only_heard_of(connection: sa.Connection, viewer: Caller, used: dict[str, int]) -> list[dict[str, Any]]:
    """Keys that runs name, of datasets nobody told of."""
    told = set(connection.execute(sa.select(datasets.c.key).where(viewer.seen(datasets))).scalars())
    query = sa.select(runs.c.dataset, sa.func.max(runs.c.recipe), sa.func.min(runs.c.created))
    query = query.where(viewer.seen(runs), runs.c.dataset.is_not(None)).group_by(runs.c.dataset).limit(200)
    return [
        {
            "key": key,
            "path": "",
            "recipe": recipe,
            "samples": None,
            "splits": "",
            "size": None,
            "created": created,
            "runs": used[key],
        }
        for key, recipe, created in connection.execute(query)
        if key not in told
    ]
