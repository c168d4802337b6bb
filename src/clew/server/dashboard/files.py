"""What runs have stored, as pages show it."""

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
from clew.server.problems import RefusedError
from clew.server.service import Service

_LARGEST = 8_000_000
"""Bytes of a plot; a larger one is downloaded, not drawn."""
_TRACE = re.compile(r"trace/rank-(\d{1,6})\.trace")
_MOST = 60
"""Plots on a page."""


def of_run(connection: sa.Connection, run: int) -> list[dict[str, Any]]:
    """By name."""
    query = sa.select(artefacts).where(artefacts.c.run == run).order_by(artefacts.c.name)
    return [_shown(dict(row)) for row in connection.execute(query).mappings()]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    address = f"/api/v1/runs/{row['run']}/artefacts/{quote(row['name'])}"
    return {**row, "url": address, "size": row["bytes"], "digest": row["blob"], "time": row["created"]}


def content(service: Service, artefact: dict[str, Any]) -> bytes:
    """What is in it; nothing where retention has taken it away meanwhile, or the store is away."""
    try:
        return service.store.read(artefact["blob"])
    except (FileNotFoundError, RefusedError):
        return b""


def figures(service: Service, plots: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of plotly's form, ready to be drawn; others stay files."""
    found = []
    for each in plots[:_MOST]:
        if each["bytes"] <= _LARGEST and each["name"].endswith(".json"):
            drawn = drawable(content(service, each))
            if drawn is not None:
                found.append(drawn)
    return found


def drawable(text: bytes) -> dict[str, Any] | None:
    """A figure with its title apart; None where it is none. It comes from outside: anything may be missing."""
    try:
        return apart(json.loads(text))
    except ValueError:
        return None


def apart(given: Any) -> dict[str, Any] | None:
    """The same of what is no text any more."""
    try:
        data, layout = list(given["data"]), dict(given.get("layout", {}))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    title = layout.pop("title", "")
    told = title.get("text", "") if isinstance(title, dict) else title
    return {"title": str(told), "data": data, "layout": layout, "wide": "xaxis2" in layout}


def timeline(service: Service, stored: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What ranks did when, of runs whose traces were stored."""
    ranks = {}
    for each in stored:
        found = _TRACE.fullmatch(each["name"])
        if found and each["bytes"] <= _LARGEST:
            with contextlib.suppress(RunError):  # no trace, or none any more
                ranks[int(found[1])] = spans.parse_trace(content(service, each), each["name"])
    if not any(len(each) for each in ranks.values()):
        return []
    drawn = apart(spans.timeline_figure(dict(sorted(ranks.items()))))
    return [] if drawn is None else [drawn]
