"""Runs of a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel

from clew.client.connection import Link
from clew.runs import Run
from clew.runs.push import Pusher


class RunInfo(BaseModel):
    """A run as the server tells of it."""

    id: int
    name: str
    recipe: str
    state: str
    """As in `clew runs list`: created, running, finished, stopped, failed or interrupted."""
    message: str
    owner_name: str
    group_name: str | None
    host: str
    dataset: str | None
    job: int | None
    study: int | None
    trial: int | None
    epochs: int
    epochs_done: int
    samples_per_second: float
    metrics: dict[str, float | None]
    """Of the newest validation."""
    created: float
    begun: float | None
    ended: float | None
    tags: list[str] = []


class Runs:
    """What was trained."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def list(
        self, *, state: Sequence[str] = (), tag: Sequence[str] = (), search: str | None = None
    ) -> Iterator[RunInfo]:
        """Runs, the newest first."""
        asked = {"state": list(state) or None, "tag": list(tag) or None, "search": search}
        return (RunInfo.model_validate(each) for each in self._link.pages("/runs", asked))

    def get(self, run: int) -> RunInfo:
        """One."""
        return RunInfo.model_validate(self._link.call("GET", f"/runs/{run}"))

    def config(self, run: int) -> dict[str, Any]:
        """Its settings, as `clew.settings` takes them."""
        return dict(self._link.call("GET", f"/runs/{run}")["config"])

    def metrics(self, run: int) -> Any:
        """The metrics there are, each with its count, last, least and largest value."""
        return self._link.call("GET", f"/runs/{run}/metrics")

    def curve(self, run: int, metric: str, *, points: int = 1000) -> dict[str, Any]:
        """A metric by step, in at most so many points."""
        return dict(self._link.call("GET", f"/runs/{run}/metrics/{quote(metric)}", params={"points": points}))

    def push(self, folder: Path | str) -> RunInfo:
        """Bring in a run's folder: records, plots, report and weights; what is there already is not sent again.

        Raises:
            RunError: it is no run's folder.
        """
        pusher = Pusher(Run.open(folder), self._link)
        pusher.push()
        pusher.push_files()
        pusher.save_settings()
        pusher.note()
        assert pusher.number is not None, "a run that was opened has begun"
        return self.get(pusher.number)

    def tag(self, run: int, tags: Sequence[str]) -> None:
        """Give it these tags and no others."""
        self._link.call("PUT", f"/runs/{run}/tags", body={"tags": list(tags)})

    def delete(self, run: int) -> None:
        """Remove it from the server; its folder stays."""
        self._link.call("DELETE", f"/runs/{run}")
