"""The pages of one run: curves, machine, plots, files, log, settings, surroundings, report."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import sqlalchemy as sa
from fastapi import Request, Response

from clew.client.job import JobDetail
from clew.core.config import to_yaml
from clew.figure import COLOURS
from clew.recipe import shipped
from clew.runs.comparison import flatten_settings, setting_text
from clew.runs.failure import words
from clew.server.accounts.callers import Caller
from clew.server.api.dependencies import one
from clew.server.api.runs import listed, rows
from clew.server.dashboard import files, layout, panels
from clew.server.dashboard.formatting import ago, length, number, percent, short, size
from clew.server.dashboard.run_cards import glimpses, summaries
from clew.server.database.tables import records, runs, streams
from clew.server.jobs import actions
from clew.server.jobs.job_logs import Logs
from clew.server.problems import RefusedError, missing
from clew.server.runs.curves import Window, curve
from clew.server.service import Service

_LAST = 20
"""Records that the log shows."""
_TAIL = 200_000
_SAMPLE = Window(points=1000)
"""Enough of a curve for its mean, however long it is."""


@dataclass(frozen=True)
class _Sight:
    """What every part of the page may need."""

    service: Service
    connection: sa.Connection
    viewer: Caller
    row: Any
    """All columns of the run."""
    run: dict[str, Any]
    known: dict[str, Any]
    """Summaries by metric."""
    job: JobDetail | None


def page(request: Request, viewer: Caller, number: int, tab: str) -> Response:
    """One of its parts."""
    if tab not in _TABS:
        raise RefusedError(404, "there is no such page")
    service: Service = request.app.state.service
    with service.database.read() as connection:
        sight = _look(service, connection, viewer, number)
        values = _TABS[tab][1](sight)
        stored = files.of_run(connection, number)
    kinds = [each["kind"] for each in stored]
    counts = {"plots": kinds.count("plot"), "files": len(kinds)}
    head = {
        "run": sight.run,
        "tab": tab,
        "tabs": [(key, name, counts.get(key, 0)) for key, (name, _) in _TABS.items()],
        "facts": _facts(sight),
        "report": "report" in kinds,
        "job": sight.job,
        "may_change": "write" in viewer.scopes,
    }
    return layout.page(request, "run.html", "runs", **{**head, **values})


def report(request: Request, viewer: Caller, number: int) -> Response:
    """The page that the run wrote, in a frame whose content has no origin: it may draw, and reach nothing."""
    service: Service = request.app.state.service
    with service.database.read() as connection:
        run = _look(service, connection, viewer, number).run
        found = _report(connection, number)
    shown = {"name": run["name"], "owner": run["owner"], "back": f"/runs/{number}", "source": found["url"]}
    return layout.page(request, "report.html", "runs", **shown)


def _report(connection: sa.Connection, number: int) -> dict[str, Any]:
    found = next((each for each in files.of_run(connection, number) if each["kind"] == "report"), None)
    if found is None:
        raise missing("report of run", number)
    return found


def _look(service: Service, connection: sa.Connection, viewer: Caller, number: int) -> _Sight:
    row = one(connection, runs, number, viewer, "run")
    found = dict(connection.execute(listed(viewer).where(runs.c.id == number)).mappings().one())
    run = glimpses(connection, rows(connection, [found]))[0]
    known = dict(sorted(summaries(connection, [number]).get(number, {}).items()))
    job = None
    if row.job is not None:
        try:
            job = actions.one(connection, viewer, row.job)
        except RefusedError:
            job = None
    return _Sight(service, connection, viewer, row, run, known, job)


def _facts(sight: _Sight) -> list[str]:
    run, environment = sight.run, sight.row.environment or {}
    workers = f"{run['workers']} worker{'s' if run['workers'] != 1 else ''}" if run["workers"] else ""
    return [
        fact
        for fact in (
            f"recipe {run['recipe']}",
            f"epoch {run['epoch']} of {run['epochs']}" if run["epochs"] else "",
            workers,
            f"on {run['host']}" if run["host"] else "",
            f"clew {environment['clew']}" if "clew" in environment else "",
            f"of {run['owner']}" + (f", group {run['group_name']}" if run["group_name"] else ""),
            f"begun {ago(run['begun'])}" if run["begun"] else "not begun",
        )
        if fact
    ]


def _tile(name: str, value: str, unit: str = "") -> dict[str, str]:
    return {"name": name, "value": value, "unit": unit}


def _curves(sight: _Sight) -> dict[str, Any]:
    run, known = sight.run, sight.known
    tiles = []
    for name, row in known.items():
        if name.startswith("val/") or name == "train/loss":
            up = panels.rises(name)
            best = f"best {number(row.max if up else row.min)}" if up is not None and row.count > 1 else ""
            tiles.append(_tile(name, number(row.last), best))
    order = sorted(
        tiles, key=lambda each: ("loss" not in each["name"], not panels.rises(each["name"]), len(each["name"]))
    )
    tiles = order[:4]
    tiles.append(_tile("speed", short(run["speed"]), "samples/s"))
    if run["wait"] is not None:
        tiles.append(_tile("data wait", percent(run["wait"]), "of the time"))
    tiles.append(_tile("took", length(run["seconds"])))
    return {
        "tiles": tiles + _used(known),
        "panels": panels.of_learning(known),
        "summary": [_summary(name, row) for name, row in known.items()],
    }


def _used(known: dict[str, Any]) -> list[dict[str, str]]:
    """Energy and memory of all ranks, where somebody looked."""
    energy = [row.max for name, row in known.items() if name.startswith("usage/energy") and row.max]
    memory = [row.max for name, row in known.items() if name.startswith("usage/memory") and row.max]
    found = [_tile("energy", short(sum(energy)), "J")] if energy else []
    return found + ([_tile("memory", size(sum(memory)), "at most")] if memory else [])


def _summary(name: str, row: Any) -> dict[str, Any]:
    return {"name": name, **{part: getattr(row, part) for part in ("count", "first", "last", "min", "max", "step")}}


def _system(sight: _Sight) -> dict[str, Any]:
    drawn = files.timeline(sight.service, files.of_run(sight.connection, sight.row.id))
    return {"panels": panels.of_system(sight.known), "shares": _shares(sight), "figures": drawn}


def _shares(sight: _Sight) -> list[dict[str, Any]]:
    """Of the time of training, the parts that went into waiting for data, talking and computing."""
    spent: dict[str, float] = {}
    for label, name in (("load", panels.WAIT), ("communicate and wait", panels.TALK)):
        if name in sight.known:
            told = [value for value in curve(sight.connection, sight.known[name], _SAMPLE).last if value is not None]
            spent[label] = fmean(told) if told else 0.0
    if not spent:
        return []
    parts = {"compute": max(1 - sum(spent.values()), 0.0), **spent}
    return [{"name": name, "share": share, "colour": COLOURS[i]} for i, (name, share) in enumerate(parts.items())]


def _plots(sight: _Sight) -> dict[str, Any]:
    stored = [each for each in files.of_run(sight.connection, sight.row.id) if each["kind"] == "plot"]
    return {"figures": files.figures(sight.service, stored)}


def _files(sight: _Sight) -> dict[str, Any]:
    return {"artefacts": files.of_run(sight.connection, sight.row.id)}


def _log(sight: _Sight) -> dict[str, Any]:
    values: dict[str, Any] = {"log_url": "", "log": "", "lines": _lines(sight)}
    if sight.job is not None:
        logs, attempt = Logs(sight.service.config.folder), sight.job.attempt
        end = logs.read(sight.job.id, attempt, 1 << 62, 16).size
        piece = logs.read(sight.job.id, attempt, max(0, end - _TAIL), _TAIL)
        values |= {"log_url": f"/api/v1/jobs/{sight.job.id}/events?from={piece.next}", "log": piece.text}
    return values


def _lines(sight: _Sight) -> list[dict[str, Any]]:
    """The newest records of all streams in words, oldest first."""
    found = []
    for stream in sight.connection.execute(sa.select(streams).where(streams.c.run == sight.row.id)).all():
        newest = sa.select(records.c.time, records.c.kind, records.c.body).where(records.c.stream == stream.id)
        for row in sight.connection.execute(newest.order_by(records.c.seq.desc()).limit(_LAST)):
            since = row.time - (sight.row.begun or row.time)
            found.append(
                {"time": row.time, "seconds": since, "stream": stream.name, "kind": row.kind, "body": row.body}
            )
    chosen = sorted(found, key=lambda each: each["time"])[-_LAST:]
    return [{**each, "words": _words(each["body"])} for each in chosen]


def _words(body: str) -> str:
    """A record for people; records come from outside, and one that is not as it should be is shown as it is."""
    record = json.loads(body)
    try:
        return words(record)
    except (KeyError, TypeError, ValueError, AttributeError):
        return body[:300]


def _settings(sight: _Sight) -> dict[str, Any]:
    config = sight.row.config
    return {
        "yaml": to_yaml(config) if config else "",
        "may_submit": "submit" in sight.viewer.scopes,
        "recipe_known": sight.row.recipe in shipped(),
    }


def _environment(sight: _Sight) -> dict[str, Any]:
    return {
        "environment": [
            (name.replace("_", " "), setting_text(value))
            for name, value in flatten_settings(sight.row.environment or {})
        ]
    }


_TABS: dict[str, tuple[str, Callable[[_Sight], dict[str, Any]]]] = {
    "curves": ("Curves", _curves),
    "system": ("Speed and system", _system),
    "plots": ("Plots", _plots),
    "files": ("Files", _files),
    "log": ("Log", _log),
    "config": ("Settings", _settings),
    "environment": ("Environment", _environment),
}
