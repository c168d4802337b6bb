"""The page of benchmarks: tables and plots of the documents that `clew bench` and other programs send."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Query, Request, Response

from clew.figure import Figure, figure, line
from clew.runs.comparison import flatten_settings, setting_text
from clew.runs.record_metrics import finite_number
from clew.server.dashboard import files, layout
from clew.server.database.tables import benchmarks, users

router = layout.router()
_PER_PAGE = 20
_MAX_ROWS, _MAX_COLUMNS, _MAX_FACTS = 60, 12, 200
_PARTS = ("conditions", "config", "environment", "hashes", "app", "run_info")
"""Parts of a document that describe the measurement: folded below its figures."""


@router.get("/benchmarks")
def benchmark_page(
    request: Request, viewer: layout.Viewer, after: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None
) -> Response:
    """Measurements of machines."""
    query = sa.select(benchmarks, users.c.name.label("owner_name")).join(users, users.c.id == benchmarks.c.owner)
    query = query.where(viewer.visible(benchmarks)).order_by(benchmarks.c.id.desc()).limit(_PER_PAGE + 1)
    if after is not None:
        query = query.where(benchmarks.c.id < after)
    with request.app.state.service.database.read() as connection:
        rows = [dict(row) for row in connection.execute(query).mappings()]
    page, rest = rows[:_PER_PAGE], rows[_PER_PAGE:]
    following = layout.link("/benchmarks", after=page[-1]["id"]) if rest else None
    values = [{**row, "owner": row["owner_name"], **benchmark_parts(row["document"])} for row in page]
    return layout.page(request, "benchmarks.html", "benchmarks", benchmarks=values, next=following)


def benchmark_parts(document: Any) -> dict[str, Any]:
    """Return the parts of a document that a page shows. It comes from outside: any part may be missing.

    Returns:
        `bars`: measured values and what they should be; `tables`: title, heads and rows; `figures`: plots; `scores`:
        pairs of the most important numbers; `facts`: pairs of all other values.
    """
    document = document if isinstance(document, dict) else {}
    bars = [each for each in _list(document.get("bars")) if isinstance(each, dict)]
    rest = {name: value for name, value in document.items() if name not in ("bars", "sizes", "trainings", "forecasts")}
    tables = [_sizes(document)] if _sizes(document) else list(_tables(rest))
    described = {name: rest[name] for name in _PARTS if name in rest}
    other = {name: value for name, value in rest.items() if name not in _PARTS and not _is_table(value)}
    scores = _pairs(_mapping(_mapping(document.get("report")).get("wl-scores")))
    drawn = [*_speedup(document), *_epochs(document)]
    return {
        "bars": bars,
        "scores": scores,
        "tables": tables,
        "figures": [part for each in drawn if (part := files.figure_parts(each)) is not None],
        "values": _pairs(other) if not bars else [],
        "facts": _pairs(described),
    }


def _sizes(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the table of a scaling study."""
    rows = [each for each in _list(document.get("sizes")) if isinstance(each, dict)]
    if not rows:
        return None
    heads = ("strategy", "workers", "events_per_second", "speedup", "efficiency", "loss", "oversubscribed")
    return _table("Sizes", heads, rows)


def _tables(document: Mapping[str, Any], title: str = "") -> Iterator[dict[str, Any]]:
    """Yield a table for every list of records in a document."""
    for name, value in document.items():
        if _is_table(value):
            heads = list(dict.fromkeys(key for row in value for key, cell in row.items() if _is_cell(cell)))
            if heads:
                yield _table(f"{title}{name}".replace("_", " "), heads[:_MAX_COLUMNS], value)
        elif isinstance(value, dict) and not title.count("›") > 3:
            yield from _tables(value, f"{title}{name} › ")


def _table(title: str, heads: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    cells = [[row.get(head) for head in heads] for row in rows[:_MAX_ROWS]]
    return {"title": title, "heads": [head.replace("_", " ") for head in heads], "rows": cells}


def _speedup(document: Mapping[str, Any]) -> Iterator[Figure]:
    rows = [each for each in _list(document.get("sizes")) if isinstance(each, dict)]
    by_strategy: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        workers, speedup = finite_number(row.get("workers")), finite_number(row.get("speedup"))
        if workers is not None and speedup is not None:
            by_strategy.setdefault(str(row.get("strategy", "")), []).append((workers, speedup))
    if not by_strategy:
        return
    traces = [
        line([x for x, _ in sorted(points)], [y for _, y in sorted(points)], name, colour=place, mode="lines+markers")
        for place, (name, points) in enumerate(by_strategy.items())
    ]
    largest = max(x for points in by_strategy.values() for x, _ in points)
    traces.append(line([1, largest], [1, largest], "ideal", line={"color": "#7f7f7f", "dash": "dot", "width": 1}))
    yield figure(traces, title="Speed-up", x="workers", y="speed-up", showlegend=True)


def _epochs(document: Mapping[str, Any]) -> Iterator[Figure]:
    speeds = _list(_mapping(_mapping(document.get("report")).get("training")).get("throughput_per_epoch"))
    numbers = [value for each in speeds if (value := finite_number(each)) is not None]
    if len(numbers) > 1:
        trace = line(list(range(1, len(numbers) + 1)), numbers, "events/s", mode="lines+markers")
        yield figure([trace], title="Speed of each epoch", x="epoch", y="events/s", yaxis={"rangemode": "tozero"})


def _pairs(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, setting_text(value)) for name, value in list(flatten_settings(dict(values)))[:_MAX_FACTS]]


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _is_cell(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
