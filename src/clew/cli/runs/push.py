"""`clew runs push`: runs that trained without a server, or while it was away."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clew.cli.options import bold, console, progress
from clew.client.connection import Connection
from clew.client.credentials import credentials
from clew.errors import ConfigError, RunError
from clew.runs import Run, list_runs
from clew.runs.push import Pusher


def push(places: Sequence[Path], *, group: str | None, tags: tuple[str, ...], files: bool) -> None:
    """Send each run, a line each."""
    known = credentials()
    if known is None:
        raise ConfigError("no server is known: log in with `clew login`, or set CLEW_SERVER and CLEW_TOKEN")
    found = [run for place in places for run in _runs(place)]
    with Connection(known.server, known.token) as link, progress() as bar:
        task = bar.add_task("push", total=len(found), note="")
        for run in found:
            pusher = Pusher(run, link, group, tags)
            bar.update(task, note=run.name)
            sent = pusher.push()
            made = pusher.push_files() if files else 0
            pusher.save_settings()
            if pusher.number is None:
                console.print(f"{bold(run.path)}: nothing was recorded yet")
                continue
            pusher.note()
            bar.advance(task)
            more = f", {made} files" if made else ""
            told = f"{sent:,} records{more}" if sent or made else "the server has all of it"
            console.print(f"{bold(run.path)} is run {pusher.number} at {known.server}: {told}")


def _runs(place: Path) -> list[Run]:
    if (place / "config.yaml").is_file():
        return [Run.open(place)]
    found = list_runs(place)
    if not found:
        raise RunError(f"{place}: neither a run nor a folder of runs; `clew runs list` shows those there are")
    return found
