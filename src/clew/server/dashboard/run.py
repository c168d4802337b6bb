"""The page of one run, in tabs: curves, system, plots, files, log, settings, environment. And its report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from fastapi import Request, Response

from clew.client.job import JobDetail
from clew.core.config import to_yaml
from clew.figure import COLOURS
from clew.recipe import shipped
from clew.runs.comparison import flatten_settings, setting_text
from clew.runs.plotly_script import is_small
from clew.runs.times import RunTimes
from clew.server.accounts.caller import Caller
from clew.server.api.dependencies import visible_row
from clew.server.api.runs import run_rows, visible_runs
from clew.server.dashboard import files, layout, panels
from clew.server.dashboard.formatting import ago, duration, number, percent, short, size
from clew.server.dashboard.printed_output import PrintedOutput, parse_positions, printed_output
from clew.server.dashboard.render import PLOTLY, WHOLE_PLOTLY
from clew.server.dashboard.run_cards import curve_runs, metric_summaries, run_cards
from clew.server.dashboard.run_list import study_facts
from clew.server.dashboard.run_records import console_lines, last_records
from clew.server.database.tables import runs
from clew.server.jobs.job_logs import JobLogs
from clew.server.jobs.job_rows import job_detail
from clew.server.problems import RequestError, not_found
from clew.server.runs.evaluations import run_evaluations, score_rows
from clew.server.service import Service

_LOG_BYTES = 200_000


@dataclass(frozen=True)
class _RunContext:
    """What the tabs of the page need."""

    service: Service
    connection: sa.Connection
    viewer: Caller
    row: Any
    """All columns of the run."""
    run: dict[str, Any]
    summaries: dict[str, Any]
    """Rows of `summary` by metric."""
    job: JobDetail | None

    @property
    def times(self) -> RunTimes | None:
        """Speed, time per epoch, load time and data wait."""
        return RunTimes.read(self.run)


def page(request: Request, viewer: Caller, number: int, tab: str) -> Response:
    """Return one tab of the page."""
    if tab not in _TABS:
        raise RequestError(404, "there is no such page")
    service: Service = request.app.state.service
    with service.database.read() as connection:
        context = _load_context(service, connection, viewer, number)
        values = _TABS[tab][1](context)
        stored = files.run_artefacts(connection, number)
        values["curve_run"] = curve_runs(connection, [context.run])[0]
        values["study"] = study_facts(connection, {context.row.study} - {None}).get(context.row.study)
    kinds = [each["kind"] for each in stored]
    counts = {"plots": kinds.count("plot"), "files": len(kinds)}
    head = {
        "run": context.run,
        "tab": tab,
        "tabs": [(key, name, counts.get(key, 0)) for key, (name, _) in _TABS.items()],
        "facts": _facts(context),
        "report": "report" in kinds,
        "job": context.job,
        "may_change": "write" in viewer.scopes,
    }
    return layout.page(request, "run.html", "runs", **{**head, **values})


def output_after(request: Request, viewer: Caller, number: int, after: str) -> PrintedOutput:
    """Return what the run printed after the positions of an earlier answer."""
    with request.app.state.service.database.read() as connection:
        visible_row(connection, runs, number, viewer, "run")
        return printed_output(connection, number, parse_positions(after))


def report(request: Request, viewer: Caller, number: int) -> Response:
    """Return the report that the run wrote, in a sandbox: it may draw plots and cannot reach anything."""
    service: Service = request.app.state.service
    with service.database.read() as connection:
        run = _load_context(service, connection, viewer, number).run
        source = _report(connection, number)["url"]
    values = {"name": run["name"], "owner": run["owner"], "back": f"/runs/{number}", "source": source}
    return layout.page(request, "report.html", "runs", **values)


def _report(connection: sa.Connection, number: int) -> dict[str, Any]:
    artefacts = files.run_artefacts(connection, number)
    reports = [artefact for artefact in artefacts if artefact["kind"] == "report"]
    if not reports:
        raise not_found("report of run", number)
    return reports[0]


def _load_context(service: Service, connection: sa.Connection, viewer: Caller, number: int) -> _RunContext:
    row = visible_row(connection, runs, number, viewer, "run")
    values = dict(connection.execute(visible_runs(viewer).where(runs.c.id == number)).mappings().one())
    run = run_cards(connection, run_rows(connection, [values]))[0]
    summaries = dict(sorted(metric_summaries(connection, [number]).get(number, {}).items()))
    job = None
    if row.job is not None:
        try:
            job = job_detail(connection, viewer, row.job)
        except RequestError:
            job = None
    return _RunContext(service, connection, viewer, row, run, summaries, job)


def _facts(context: _RunContext) -> list[str]:
    run, environment = context.run, context.row.environment or {}
    workers = f"{run['workers']} worker{'s' if run['workers'] != 1 else ''}" if run["workers"] else ""
    return [
        fact
        for fact in (
            f"recipe {run['recipe']}",
            f"epoch {run['epoch']} of {run['epochs']}" if run["epochs"] else "",
            workers,
            f"on {run['host']}" if run["host"] else "",
            f"clew {environment['clew']}" if "clew" in environment else "",
            f"owner {run['owner']}" + (f", group {run['group_name']}" if run["group_name"] else ""),
            f"started {ago(run['started'])}" if run["started"] else "not started",
        )
        if fact
    ]


def _tile(name: str, value: str, unit: str = "") -> dict[str, str]:
    return {"name": name, "value": value, "unit": unit}


def _curves(context: _RunContext) -> dict[str, Any]:
    run, summaries = context.run, context.summaries
    evaluations = list(run_evaluations(context.connection, [context.row.id]).get(context.row.id, {}).values())
    tiles = []
    for name, row in summaries.items():
        if name.startswith("val/") or name == "train/loss":
            higher = panels.higher_is_better(name)
            best = f"best {number(row.max if higher else row.min)}" if higher is not None and row.count > 1 else ""
            tiles.append(_tile(name, number(row.last), best))
    order = sorted(
        tiles,
        key=lambda each: ("loss" not in each["name"], not panels.higher_is_better(each["name"]), len(each["name"])),
    )
    tiles = order[:4]
    tiles.append(_tile("speed", short(run["speed"]), "samples/s"))
    tiles += _time_tiles(context)
    tiles.append(_tile("took", duration(run["seconds"])))
    return {
        "tiles": tiles + _usage_tiles(summaries),
        "panels": panels.training_panels(summaries),
        "evaluations": evaluations,
        "scores": score_rows(evaluations),
        "summary": [_summary(name, row) for name, row in summaries.items()],
    }


def _time_tiles(context: _RunContext) -> list[dict[str, str]]:
    """Return tiles of the time per epoch, the load time and the data wait, as far as they are known."""
    times = context.times
    if times is None:
        return []
    known = {"time per epoch": times.seconds_per_epoch, "load time": times.load_seconds}
    tiles = [_tile(name, duration(seconds)) for name, seconds in known.items() if seconds is not None]
    share = times.shares.get("data wait")
    return [*tiles, *([] if share is None else [_tile("data wait", percent(share), "of the time")])]


def _usage_tiles(summaries: dict[str, Any]) -> list[dict[str, str]]:
    """Return tiles of energy and memory of all ranks, if they were measured."""
    energy = [row.max for name, row in summaries.items() if name.startswith("usage/energy") and row.max]
    memory = [row.max for name, row in summaries.items() if name.startswith("usage/memory") and row.max]
    tiles = [_tile("energy", short(sum(energy)), "J")] if energy else []
    return tiles + ([_tile("memory", size(sum(memory)), "peak")] if memory else [])


def _summary(name: str, row: Any) -> dict[str, Any]:
    return {"name": name, **{part: getattr(row, part) for part in ("count", "first", "last", "min", "max", "step")}}


def _system(context: _RunContext) -> dict[str, Any]:
    figures = files.timeline(context.service, files.run_artefacts(context.connection, context.row.id))
    return {
        "panels": panels.system_panels(context.summaries),
        "fractions": _time_fractions(context),
        "figures": figures,
    }


def _time_fractions(context: _RunContext) -> list[dict[str, Any]]:
    """Return the fractions of the run's time, with the colours of the report."""
    shares = context.times.shares if context.times is not None else {}
    return [{"name": name, "fraction": share, "colour": COLOURS[i]} for i, (name, share) in enumerate(shares.items())]


def _plots(context: _RunContext) -> dict[str, Any]:
    stored = [each for each in files.run_artefacts(context.connection, context.row.id) if each["kind"] == "plot"]
    groups = files.figure_groups(context.service, stored)
    drawn = [figure for group in groups for figure in group["figures"]]
    return {"groups": groups, "plotly": PLOTLY if is_small(drawn) else WHOLE_PLOTLY}


def _files(context: _RunContext) -> dict[str, Any]:
    return {"artefacts": files.run_artefacts(context.connection, context.row.id)}


def _log(context: _RunContext) -> dict[str, Any]:
    """Return what the processes of the run printed: the log of its job, or its own; else its records as text."""
    values: dict[str, Any] = {
        "log_url": "",
        "records": last_records(context.connection, context.row.id, context.row.begun),
    }
    if context.job is not None:
        logs = JobLogs(context.service.config.folder)
        part = logs.tail(context.job.id, context.job.attempt, _LOG_BYTES)
        return values | {"log_url": f"/api/v1/jobs/{context.job.id}/events?from={part.next}", "log": part.text}
    is_live = context.run["state"] in ("created", "running")
    stored = [each for each in files.run_artefacts(context.connection, context.row.id) if each["kind"] == "log"]
    if stored and not is_live:
        text = files.content(context.service, stored[-1])[-_LOG_BYTES:].decode("utf-8", "replace")
        return values | {"log": text, "printed": True}
    printed = printed_output(context.connection, context.row.id)
    if printed.text or is_live:
        return values | {"log": printed.text, "printed": True, "console_next": printed.next, "is_live": is_live}
    return values | {"log": "\n".join(console_lines(context.connection, context.row.id, context.row.begun))}


def _settings(context: _RunContext) -> dict[str, Any]:
    config = context.row.config
    return {
        "yaml": to_yaml(config) if config else "",
        "may_submit": "submit" in context.viewer.scopes,
        "recipe_known": context.row.recipe in shipped(),
    }


def _environment(context: _RunContext) -> dict[str, Any]:
    return {
        "environment": [
            (name.replace("_", " "), setting_text(value))
            for name, value in flatten_settings(context.row.environment or {})
        ]
    }


_TABS: dict[str, tuple[str, Callable[[_RunContext], dict[str, Any]]]] = {
    "curves": ("Curves", _curves),
    "system": ("Speed and system", _system),
    "plots": ("Plots", _plots),
    "files": ("Files", _files),
    "log": ("Log", _log),
    "config": ("Settings", _settings),
    "environment": ("Environment", _environment),
}
