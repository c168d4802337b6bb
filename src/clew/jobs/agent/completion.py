"""After the end of a job: sends the rest of its records and its results to the server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clew.client.connection import Connection
from clew.client.job import JobOrder
from clew.errors import ClewError, ServerError
from clew.jobs.agent.folder import AgentFolder
from clew.jobs.agent.outputs import store_outputs
from clew.runs import Run
from clew.runs.folder import list_runs
from clew.runs.push import Pusher
from clew.storage import mask_secrets

_STUDY_KINDS = ("tune", "trial")
"""Kinds of jobs whose runs are trials."""


@dataclass(frozen=True)
class Delivery:
    """What became of the results of a job."""

    missing: str = ""
    """Why some results were not sent; empty if all were."""
    stored: str = ""
    """Where its outputs are in its store."""


def finish(order: JobOrder, root: AgentFolder, server: str, *, succeeded: bool) -> Delivery:
    """Send the results of a job, with the token of the job; if it succeeded, also to its store.

    Raises:
        ServerError: The server is not reachable; try again.
    """
    missing = _send_results(order, root, server)
    if order.store is None or not succeeded:
        return Delivery(missing)
    try:
        stored = store_outputs(order, root)
        if order.kind == "prepare":
            with Connection(server, order.token, retry_seconds=0) as connection:
                _register_dataset(root.job(order.key).output(order.name), order.name, connection, stored)
        return Delivery(missing, stored)
    except ServerError:
        raise
    except (ClewError, OSError, ValueError) as error:
        where = mask_secrets(order.store)
        return Delivery("; ".join(filter(None, (missing, f"not stored at {where}: {mask_secrets(str(error))}"))))


def _send_results(order: JobOrder, root: AgentFolder, server: str) -> str:
    """Send the results to the server. Return why some were not sent."""
    with Connection(server, order.token, retry_seconds=0) as connection:
        try:
            if order.kind == "prepare":
                _register_dataset(root.job(order.key).output(order.name), order.name, connection)
            if order.kind == "bench":
                _send_benchmarks(root.job(order.key).output(order.name), order.name, connection)
            if order.kind == "trial":
                _send_trial_results(root.job(order.key).output(order.name), order, connection)
            for run in _runs(order, root):
                if order.kind not in _STUDY_KINDS:
                    _write_report(run)
                _push(run, connection)
            if order.kind == "tune":
                _push_study(root.job(order.key).output(order.name), connection)
        except ServerError as error:
            if error.status in (0, 429) or error.status >= 500:
                raise
            return f"not everything could be stored: {error}"
        except (ClewError, OSError, ValueError) as error:
            return f"not everything could be sent: {error}"
    return ""


def _runs(order: JobOrder, root: AgentFolder) -> Iterator[Run]:
    folder = root.job(order.key).output(order.name)
    if order.kind == "evaluate":
        evaluated = root.job(str(order.target_key))
        evaluated_order = evaluated.order()
        folder = evaluated.output(evaluated_order.name) if evaluated_order is not None else folder
    if order.kind in _STUDY_KINDS:
        yield from list_runs(folder / "trials") if (folder / "trials").is_dir() else ()
    elif (folder / "config.yaml").is_file() and order.kind not in ("prepare", "bench"):
        yield Run(folder)


def _write_report(run: Run) -> None:
    """Write the report of a run."""
    from clew.runs.report import write_report

    write_report(run)


def _push(run: Run, connection: Connection) -> None:
    pusher = Pusher(run, connection)
    pusher.push()
    pusher.push_files()
    pusher.save_settings()
    pusher.note()


def _register_dataset(folder: Path, name: str, connection: Connection, stored: str = "") -> None:
    """Register a dataset at the server, by its key: in its folder, or where it was stored."""
    file = folder / "manifest.json"
    if file.is_file():
        manifest = json.loads(file.read_text())
        body = {"key": manifest["key"], "name": name, "location": stored or str(folder), "manifest": manifest}
        connection.call("POST", "/datasets", body=body)


def _send_benchmarks(folder: Path, name: str, connection: Connection) -> None:
    """Send the JSON documents that a benchmark wrote into its folder."""
    documents = {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
    results = {stem: document for stem, document in documents.items() if isinstance(document, dict)}
    for stem, document in results.items():
        title = name if len(results) == 1 else f"{name} {stem}"
        connection.call("POST", "/benchmarks", body={"name": title, "host": socket.gethostname(), "document": document})


def _send_trial_results(folder: Path, order: JobOrder, connection: Connection) -> None:
    """Send the results of trials that their job could not send."""
    from clew.tuning.assigned_study import send_results
    from clew.tuning.folder import StudyFolder

    send_results(StudyFolder(folder), order.study or 0, connection)


def _push_study(folder: Path, connection: Connection) -> None:
    if (folder / "config.yaml").is_file():
        from clew.client.studies import Studies

        Studies(connection).push(folder)
