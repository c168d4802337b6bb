"""Several runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Query, Request, Response

from clew.figure import COLOURS
from clew.runs.comparison import ABSENT, differing_values, flatten_settings, setting_text
from clew.server.api.runs import listed, rows
from clew.server.dashboard import layout, panels
from clew.server.dashboard.run_cards import glimpses, summaries
from clew.server.database.tables import runs
from clew.server.problems import RefusedError

router = layout.router()
_MOST = 20
_SURROUNDINGS = ("host", "cpu", "cores_allowed", "memory_gb", "platform", "python", "clew", "commit", "packages")


@router.get("/compare")
def compare(
    request: Request, viewer: layout.Viewer, run: Annotated[list[int] | None, Query(max_length=_MOST)] = None
) -> Response:
    """Curves over each other, what was set differently, which ended best."""
    ids = list(dict.fromkeys(number for number in run or () if 0 < number < 2**63))
    if len(ids) < 2:
        raise RefusedError(422, "Select two runs or more to compare.", do="Tick them in the list of runs.")
    with request.app.state.service.database.read() as connection:
        found = [dict(row) for row in connection.execute(listed(viewer).where(runs.c.id.in_(ids))).mappings()]
        shown = {row["id"]: row for row in glimpses(connection, rows(connection, found))}
        columns = (runs.c.id, runs.c.config, runs.c.environment)
        full = {
            row.id: row
            for row in connection.execute(runs.select().with_only_columns(*columns).where(runs.c.id.in_(list(shown))))
        }
        known = summaries(connection, shown)
    ids = [number for number in ids if number in shown]
    if len(ids) < 2:
        raise RefusedError(404, "Fewer than two of these runs are here.", do="Tick others in the list of runs.")
    settings = differing_values([dict(flatten_settings(full[number].config)) for number in ids])
    values: dict[str, Any] = {
        "sides": [_side(shown[number], place, ids) for place, number in enumerate(ids)],
        "runs": [{name: shown[number][name] for name in ("id", "name", "begun")} for number in ids],
        "panels": _panels([known.get(number, {}) for number in ids]),
        "metrics": metrics([known.get(number, {}) for number in ids]),
        "settings": _texts({key: each for key, each in settings.items() if ABSENT not in each}),
        "partial": _texts({key: each for key, each in settings.items() if ABSENT in each}),
        "surroundings": _texts(differing_values([_surroundings(full[number].environment) for number in ids])),
    }
    return layout.page(request, "compare.html", "runs", **values)


def metrics(known: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The best each run reached in each metric, and who reached most; the last where nobody knows what is better."""
    found = []
    for name in dict.fromkeys(
        name for each in known for name in each if not panels.is_system(name) and not panels.is_rate(name)
    ):
        up = panels.rises(name)
        part = {True: "max", False: "min", None: "last"}[up]
        values = [getattr(each[name], part) if name in each else None for each in known]
        there = [value for value in values if value is not None]
        best = (max if up else min)(there) if there and up is not None else None
        places = [place for place, value in enumerate(values) if value is not None and value == best]
        words = {True: "highest", False: "lowest", None: "last"}[up]
        marked = places if len(places) < len(there) else []
        found.append({"name": name, "direction": words, "values": values, "best": marked})
    return found


def _panels(known: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those of metrics that two runs have, then speed."""
    names = [name for each in known for name in each]
    shared = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    first = {name: next(each[name] for each in known if name in each) for name in shared}
    learning = sorted((name for name in shared if not panels.is_system(name)), key=lambda name: "loss" not in name)
    speed = [name for name in shared if name == panels.SPEED]
    return panels.each_alone([*learning[:24], *speed], first)


def _side(row: dict[str, Any], place: int, ids: list[int]) -> dict[str, Any]:
    without = layout.link("/compare", run=[number for number in ids if number != row["id"]])
    return {**row, "colour": COLOURS[place % len(COLOURS)], "without": without}


def _surroundings(environment: Mapping[str, Any]) -> dict[str, Any]:
    return dict(flatten_settings({name: environment[name] for name in _SURROUNDINGS if name in environment}))


def _texts(found: Mapping[str, list[Any]]) -> dict[str, list[str]]:
    return {name: [setting_text(value) for value in values] for name, values in found.items()}
