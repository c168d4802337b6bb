"""`clew runs list --server` and `clew runs get`: runs on the server of `clew login`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from clew.cli.options import bold, console, program, table
from clew.cli.runs.listing import number
from clew.errors import ConfigError, nearest
from clew.runs.folder import RUNS, STATES

_METRICS = 3
"""Number of metrics in the list."""


def list_server_runs(*, states: Sequence[str], where: str = "", as_json: bool) -> None:
    """Print the runs that the user may see, the newest first."""
    from clew.client.client import Client

    for state in states:
        if state not in STATES:
            raise ConfigError(f"--state {state}: no such state{nearest(state, STATES)}")
    with Client() as client:
        runs = list(client.runs.list(state=list(states), where=where))
    if as_json:
        typer.echo(json.dumps([run.model_dump() for run in runs], indent=1))
        return
    if not runs:
        console.print(f"no runs at {bold(client.server)}; `clew runs push` sends some")
        return
    names = list(dict.fromkeys(name for run in runs for name in run.metrics))[:_METRICS]
    rows = [
        (
            *(
                run.id,
                run.name,
                run.state,
                run.owner_name,
                f"{run.epochs_done}/{run.epochs}" if run.epochs else str(run.epochs_done),
            ),
            *(number(run.metrics.get(name)) for name in names),
        )
        for run in runs
    ]
    console.print(table(("", "run", "state", "owner", "epochs", *names), rows, right=(0, 4, *range(5, 5 + len(names)))))


def get_server_run(run: int, output: Path | None) -> None:
    """Download a run, and print its folder."""
    from clew.client.client import Client

    with Client() as client:
        folder = output or RUNS / client.runs.get(run).name
        fetched = client.runs.download(run, folder)
    console.print(f"{bold(fetched.path)}: run {run} of {client.server}. Next: {program()} runs show {fetched.path}")
