"""`clew runs push`: send runs that trained without a server, or while it was not reachable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clew.cli.options import bold, console, progress
from clew.client.connection import Connection
from clew.client.credentials import credentials
from clew.errors import ConfigError, RunError
from clew.runs import Run, list_runs
from clew.runs.folder import find_run_path
from clew.runs.push import Pusher


def push(places: Sequence[Path], *, group: str | None, tags: tuple[str, ...], files: bool) -> None:
    """Send each run and print one line per run."""
    login = credentials()
    if login is None:
        raise ConfigError("no server: log in with `clew login`, or set CLEW_SERVER and CLEW_TOKEN")
    runs = [run for place in places for run in _runs(place)]
    with Connection(login.server, login.token) as connection, progress() as bar:
        task = bar.add_task("push", total=len(runs), note="")
        for run in runs:
            pusher = Pusher(run, connection, group, tags)
            bar.update(task, note=run.name)
            sent = pusher.push()
            files_sent = pusher.push_files() if files else 0
            pusher.save_settings()
            if pusher.number is None:
                console.print(f"{bold(run.path)}: no records yet")
                continue
            pusher.note()
            bar.advance(task)
            more = f", {files_sent} files" if files_sent else ""
            text = f"{sent:,} records{more}" if sent or files_sent else "the server is up to date"
            console.print(f"{bold(run.path)} is run {pusher.number} at {login.server}: {text}")


def _runs(place: Path) -> list[Run]:
    place = find_run_path(place)
    if (place / "config.yaml").is_file():
        return [Run.open(place)]
    runs = list_runs(place)
    if not runs:
        raise RunError(f"{place}: neither a run nor a folder of runs; `clew runs list` lists runs")
    return runs
