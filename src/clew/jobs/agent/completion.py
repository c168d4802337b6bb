"""What is left to do when a job has ended: the server gets the rest of its records, and what it made."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

from clew.client.connection import Connection
from clew.client.job import JobOrder
from clew.errors import ClewError, ServerError
from clew.jobs.agent.folder import AgentFolder
from clew.runs import Run
from clew.runs.folder import list_runs
from clew.runs.push import Pusher


def finish(order: JobOrder, root: AgentFolder, server: str) -> str:
    """Push what there is, with the job's own token. What the server does not want is left; why, or nothing.

    Raises:
        ServerError: the server is away; try again.
    """
    with Connection(server, order.token, retry_seconds=0) as link:
        try:
            if order.kind == "prepare":
                _register(root.job(order.key).output(order.name), order.name, link)
            if order.kind == "bench":
                _tell_figures(root.job(order.key).output(order.name), order.name, link)
            for run in _runs(order, root):
                if order.kind != "tune":
                    _write_report(run)
                _push(run, link)
            if order.kind == "tune":
                _push_study(root.job(order.key).output(order.name), link)
        except ServerError as error:
            if error.status in (0, 429) or error.status >= 500:
                raise
            return f"not everything could be stored: {error}"
        except (ClewError, OSError, ValueError) as error:
            return f"not everything could be sent: {error}"
    return ""


def _runs(order: JobOrder, root: AgentFolder) -> Iterator[Run]:
    place = root.job(order.key).output(order.name)
    if order.kind == "evaluate":
        judged = root.job(str(order.target_key))
        known = judged.order()
        place = judged.output(known.name) if known is not None else place
    if order.kind == "tune":
        yield from list_runs(place / "trials") if (place / "trials").is_dir() else ()
    elif (place / "config.yaml").is_file() and order.kind not in ("prepare", "bench"):
        yield Run(place)


def _write_report(run: Run) -> None:
    """Have a page for people."""
    from clew.runs.report import write_report

    write_report(run)


def _push(run: Run, link: Connection) -> None:
    pusher = Pusher(run, link)
    pusher.push()
    pusher.push_files()
    pusher.save_settings()
    pusher.note()


def _register(folder: Path, name: str, link: Connection) -> None:
    """Have a dataset be known by its key."""
    file = folder / "manifest.json"
    if file.is_file():
        manifest = json.loads(file.read_text())
        body = {"key": manifest["key"], "name": name, "location": str(folder), "manifest": manifest}
        link.call("POST", "/datasets", body=body)


def _tell_figures(folder: Path, name: str, link: Connection) -> None:
    """What a benchmark wrote right into its folder, as JSON."""
    found = {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
    told = {stem: document for stem, document in found.items() if isinstance(document, dict)}
    for stem, document in told.items():
        called = name if len(told) == 1 else f"{name} {stem}"
        link.call("POST", "/benchmarks", body={"name": called, "host": socket.gethostname(), "document": document})


def _push_study(folder: Path, link: Connection) -> None:
    if (folder / "config.yaml").is_file():
        from clew.client.studies import Studies

        Studies(link).push(folder)
