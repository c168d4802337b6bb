"""Pages of datasets."""

from __future__ import annotations

import json
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Path, Query, Request, Response

from clew.server.accounts.caller import Caller
from clew.server.api.runs import run_rows, visible_runs
from clew.server.dashboard import layout
from clew.server.dashboard.formatting import size
from clew.server.dashboard.run_cards import run_cards, short_recipe
from clew.server.database.tables import datasets, runs
from clew.server.problems import not_found

router = layout.router()
_PAGE = 50
_MAX_MANIFEST = 200_000
"""Characters of a manifest that are shown."""
After = Annotated[int | None, Query(ge=1, le=2**63 - 1)]
Key = Annotated[str, Path(max_length=200)]


@router.get("/datasets")
def index(request: Request, viewer: layout.Viewer, after: After = None) -> Response:
    """Registered datasets, and datasets that only runs name."""
    with request.app.state.service.database.read() as connection:
        query = sa.select(datasets).where(viewer.visible(datasets)).order_by(datasets.c.id.desc()).limit(_PAGE + 1)
        if after is not None:
            query = query.where(datasets.c.id < after)
        rows = [dict(row) for row in connection.execute(query).mappings()]
        run_counts = _run_counts(connection, viewer)
        unregistered = _unregistered(connection, viewer, run_counts) if after is None else []
    following = layout.link("/datasets", after=rows[_PAGE - 1]["id"]) if len(rows) > _PAGE else None
    registered = [{**_dataset_values(row), "runs": run_counts.get(row["key"], 0)} for row in rows[:_PAGE]]
    return layout.page(request, "datasets.html", "datasets", datasets=[*registered, *unregistered], next=following)


@router.get("/datasets/{key}")
def dataset(request: Request, viewer: layout.Viewer, key: Key) -> Response:
    """The page of a dataset, with the runs that were trained on it."""
    with request.app.state.service.database.read() as connection:
        query = sa.select(datasets).where(viewer.visible(datasets), datasets.c.key == key)
        rows = [dict(row) for row in connection.execute(query.order_by(datasets.c.id.desc())).mappings()]
        of_dataset = visible_runs(viewer).where(runs.c.dataset == key).order_by(runs.c.id.desc()).limit(_PAGE)
        cards = run_cards(
            connection, run_rows(connection, [dict(each) for each in connection.execute(of_dataset).mappings()])
        )
    if not rows and not cards:
        raise not_found("dataset", key)
    values = _dataset_values(rows[0]) if rows else {"key": key, "manifest": {}}
    bytes_text = size(values["size"]) if values.get("size") else ""
    facts = [text for text in (values.get("recipe", ""), values.get("splits", ""), bytes_text) if text]
    facts += [f"at {row['location']}" for row in rows]
    manifest = json.dumps(values["manifest"], indent=2, ensure_ascii=False)[:_MAX_MANIFEST]
    return layout.page(request, "dataset.html", "datasets", dataset=values, facts=facts, runs=cards, manifest=manifest)


def _shards(manifest: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the shards of every split; clients send manifests, so anything may be in them."""
    splits = manifest.get("splits")
    return {
        str(split): [each for each in part if isinstance(each, dict)]
        for split, part in (splits if isinstance(splits, dict) else {}).items()
        if isinstance(part, list)
    }


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _dataset_values(row: dict[str, Any]) -> dict[str, Any]:
    """Return the values that templates show of a dataset, from its manifest."""
    manifest = row["manifest"] if isinstance(row["manifest"], dict) else {}
    shards = _shards(manifest)
    counts = {split: sum(_whole(each.get("events")) for each in part) for split, part in shards.items()}
    total = sum(_whole(each.get("bytes")) for part in shards.values() for each in part)
    return {
        "key": row["key"],
        "path": row["location"],
        "recipe": short_recipe(str(manifest.get("recipe", "")) or row["name"]),
        "samples": sum(counts.values()) or None,
        "splits": " · ".join(f"{split} {count:,}" for split, count in counts.items()),
        "size": total or None,
        "created": row["created"],
        "manifest": manifest,
    }


def _run_counts(connection: sa.Connection, viewer: Caller) -> dict[str, int]:
    query = sa.select(runs.c.dataset, sa.func.count()).where(viewer.visible(runs), runs.c.dataset.is_not(None))
    return {row[0]: row[1] for row in connection.execute(query.group_by(runs.c.dataset))}


def _unregistered(connection: sa.Connection, viewer: Caller, run_counts: dict[str, int]) -> list[dict[str, Any]]:
    """Return the datasets that runs name and that are not registered."""
    registered = set(connection.execute(sa.select(datasets.c.key).where(viewer.visible(datasets))).scalars())
    query = sa.select(runs.c.dataset, sa.func.max(runs.c.recipe), sa.func.min(runs.c.created))
    query = query.where(viewer.visible(runs), runs.c.dataset.is_not(None)).group_by(runs.c.dataset).limit(200)
    return [
        {
            "key": key,
            "path": "",
            "recipe": short_recipe(recipe or ""),
            "samples": None,
            "splits": "",
            "size": None,
            "created": created,
            "runs": run_counts[key],
        }
        for key, recipe, created in connection.execute(query)
        if key not in registered
    ]
