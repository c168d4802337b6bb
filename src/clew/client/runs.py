"""`client.runs`: runs on a server."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel

from clew.client.connection import Connection
from clew.core.trust import mark_origin
from clew.errors import RunError
from clew.runs import Run
from clew.runs.push import Pusher
from clew.runs.times import RunTimes

_STREAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*")
"""Names of streams, which become names of files."""


class RunInfo(BaseModel):
    """A run, as the server lists it. Times are seconds since 1970."""

    id: int
    name: str
    recipe: str
    state: str
    """As in `clew runs list`: created, running, finished, stopped, failed or interrupted."""
    message: str
    """Why the run ended, if it did not succeed."""
    owner_name: str
    group_name: str | None
    host: str
    dataset: str | None
    """The content key of its dataset."""
    job: int | None
    study: int | None
    trial: int | None
    epochs: int
    epochs_done: int
    samples_per_second: float
    """The same as in `times`."""
    times: RunTimes | None = None
    """Speed, time per epoch, load time and data wait; None before the first step."""
    metrics: dict[str, float | None]
    """The newest validation."""
    created: float
    started: float | None
    ended: float | None
    tags: list[str] = []


class Runs:
    """Training runs. All methods raise `ServerError` if the server does not answer or refuses the request.

    Example:
        >>> for run in client.runs.list(state=["running"]):  # doctest: +SKIP
        ...     print(run.name, run.epochs_done, run.metrics)
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(
        self, *, state: Sequence[str] = (), tag: Sequence[str] = (), search: str | None = None, where: str = ""
    ) -> Iterator[RunInfo]:
        """List runs, the newest first.

        Args:
            state: Only runs in these states.
            tag: Only runs with all these tags.
            search: Words that must occur in the name, recipe, host, message, owner, tags or settings.
            where: A query: `lr < 0.01 and efficiency > 0.9 and tag:paper`.
        """
        parameters = {"state": list(state) or None, "tag": list(tag) or None, "search": search, "where": where or None}
        return (RunInfo.model_validate(item) for item in self._connection.pages("/runs", parameters))

    def get(self, run: int) -> RunInfo:
        """Return a run."""
        return RunInfo.model_validate(self._connection.call("GET", f"/runs/{run}"))

    def config(self, run: int) -> dict[str, Any]:
        """Return the settings of a run, as `clew.settings` takes them."""
        return dict(self._connection.call("GET", f"/runs/{run}")["config"])

    def download(self, run: int, folder: Path | str) -> Run:
        """Write the folder of a run: settings, records, weights, plots and report. States to resume from are not sent.

        The folder is marked as brought from elsewhere: code that it brings is not executed before it is trusted.

        Args:
            run: The run.
            folder: The folder to write. It is complete, or it does not appear at all.

        Raises:
            RunError: The folder exists.
            ServerError: The server does not answer, or there is no such run.
        """
        path = Path(folder)
        if path.exists():
            raise RunError(f"{path} exists already; name another folder with --output")
        details = self._connection.call("GET", f"/runs/{run}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".get-", dir=path.parent) as temporary:
            target = Path(temporary) / path.name
            made = Run.create(target, config=details["config"], environment=details["environment"])
            mark_origin(made.path, f"run {run} of {self._connection.server}")
            self._download_records(run, made)
            self._download_artefacts(run, made)
            made.path.rename(path)
        return Run.open(path)

    def _download_records(self, run: int, folder: Run) -> None:
        for stream in self._connection.call("GET", f"/runs/{run}/records/streams")["next"]:
            if not _STREAM.fullmatch(stream):
                raise RunError(f"run {run} has records outside of its folder: {stream}")
            after: int | None = -1
            with (folder.records_folder / f"{stream}.jsonl").open("w") as file:
                while after is not None:
                    parameters = {"stream": stream, "after": after}
                    part = self._connection.call("GET", f"/runs/{run}/records", params=parameters)
                    file.writelines(f"{json.dumps(record)}\n" for record in part["items"])
                    after = part["next"]

    def _download_artefacts(self, run: int, folder: Run) -> None:
        for artefact in self._connection.pages(f"/runs/{run}/artefacts"):
            name = artefact["name"]
            file = folder.path / name
            if folder.path.resolve() not in file.resolve().parents:
                raise RunError(f"run {run} has a file outside of its folder: {name}")
            file.parent.mkdir(parents=True, exist_ok=True)
            self._connection.download(f"/runs/{run}/artefacts/{quote(name)}", file, params={"save": True})

    def metrics(self, run: int) -> Any:
        """Return the metrics of a run, each with its count and its last, smallest and largest value."""
        return self._connection.call("GET", f"/runs/{run}/metrics")

    def curve(self, run: int, metric: str, *, points: int = 1000) -> dict[str, Any]:
        """Return a metric by step.

        Args:
            run: The run.
            metric: Its name, such as `val/loss`.
            points: The number of points at most, roughly.

        Returns:
            Columns of equal length: `step`, `time`, `last`, `min` and `max`.
        """
        return dict(self._connection.call("GET", f"/runs/{run}/metrics/{quote(metric)}", params={"points": points}))

    def push(self, folder: Path | str) -> RunInfo:
        """Send a run's folder: records, plots, report and weights. What the server already has is not sent again.

        Args:
            folder: The run folder.

        Raises:
            RunError: it is not a run folder.
        """
        pusher = Pusher(Run.open(folder), self._connection)
        pusher.push()
        pusher.push_files()
        pusher.save_settings()
        pusher.note()
        assert pusher.number is not None, "a run that was opened has started"
        return self.get(pusher.number)

    def tag(self, run: int, tags: Sequence[str]) -> None:
        """Set the tags of a run; earlier tags are removed."""
        self._connection.call("PUT", f"/runs/{run}/tags", body={"tags": list(tags)})

    def delete(self, run: int) -> None:
        """Delete a run from the server. Its folder stays."""
        self._connection.call("DELETE", f"/runs/{run}")
