"""Artefacts of runs, as pages show them."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa

from clew.errors import RunError
from clew.runs import timeline as spans
from clew.server.database.tables import artefacts
from clew.server.problems import RequestError
from clew.server.service import Service

_MAX_PLOT_BYTES = 8_000_000
"""Bytes of a plot; a larger one is only offered for download."""
_TRACE = re.compile(r"trace/rank-(\d{1,6})\.trace")
_MAX_PLOTS = 60
"""Plots per page."""


def run_artefacts(connection: sa.Connection, run: int) -> list[dict[str, Any]]:
    """Return the artefacts of a run, sorted by name."""
    query = sa.select(artefacts).where(artefacts.c.run == run).order_by(artefacts.c.name)
    return [_with_url(dict(row)) for row in connection.execute(query).mappings()]


def _with_url(row: dict[str, Any]) -> dict[str, Any]:
    address = f"/api/v1/runs/{row['run']}/artefacts/{quote(row['name'])}"
    return {**row, "url": address, "size": row["bytes"], "digest": row["blob"], "time": row["created"]}


def content(service: Service, artefact: dict[str, Any]) -> bytes:
    """Return the content of an artefact; empty if it was deleted meanwhile or the store does not answer."""
    try:
        return service.store.read(artefact["blob"])
    except (FileNotFoundError, RequestError):
        return b""


def figure_groups(service: Service, plots: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the plots that are Plotly figures, grouped by evaluation and task as in the report.

    Plots of an evaluation are stored as `plots/EVALUATION/NAME.json`. Other files are only listed as files.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for plot in plots[:_MAX_PLOTS]:
        if plot["bytes"] > _MAX_PLOT_BYTES or not plot["name"].endswith(".json"):
            continue
        figure = parse_figure(content(service, plot))
        if figure is not None:
            evaluation = plot["name"].removeprefix("plots/").rpartition("/")[0]
            title = f"Evaluation: {evaluation}" if evaluation else "Plots"
            groups.setdefault(f"{title}, {figure['task']}" if figure["task"] else title, []).append(figure)
    return [{"title": title, "figures": figures} for title, figures in sorted(groups.items())]


def parse_figure(text: bytes) -> dict[str, Any] | None:
    """Parse a Plotly figure from JSON; None if it is not one."""
    try:
        return figure_parts(json.loads(text))
    except ValueError:
        return None


def figure_parts(figure: Any) -> dict[str, Any] | None:
    """Return title, data and layout of a figure; None if it is not one. It comes from outside: parts may be missing."""
    try:
        data, layout = list(figure["data"]), dict(figure.get("layout", {}))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    title = layout.pop("title", "")
    text = title.get("text", "") if isinstance(title, dict) else title
    meta = layout.get("meta")
    task = str(meta.get("task", "")) if isinstance(meta, dict) else ""
    return {"title": str(text), "data": data, "layout": layout, "wide": "xaxis2" in layout, "task": task}


def timeline(service: Service, stored: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the timeline of a run whose traces are stored, as a list of at most one figure."""
    ranks = {}
    for each in stored:
        match = _TRACE.fullmatch(each["name"])
        if match and each["bytes"] <= _MAX_PLOT_BYTES:
            with contextlib.suppress(RunError):  # not a trace, or deleted meanwhile
                ranks[int(match[1])] = spans.parse_trace(content(service, each), each["name"])
    if not any(len(each) for each in ranks.values()):
        return []
    figure = figure_parts(spans.timeline_figure(dict(sorted(ranks.items()))))
    return [] if figure is None else [figure]
