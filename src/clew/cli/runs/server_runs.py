"""`clew runs list --server` and `clew runs get`: runs on the server of `clew login`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.cli.listing import print_list
from clew.cli.options import bold, console, program
from clew.cli.runs.listing import number
from clew.errors import ConfigError, nearest
from clew.runs.folder import RUNS, STATES

if TYPE_CHECKING:
    from clew.client.runs import RunInfo

_METRICS = 3
"""Number of metrics in the list."""


@dataclass(frozen=True)
class ServerList:
    """What the options of the list say."""

    states: Sequence[str] = ()
    where: str = ""
    sort: str = ""
    """A fact or a metric; with a minus the largest or newest first."""
    columns: str = ""
    """Facts and metrics, separated by commas; empty: the usual ones."""


def list_server_runs(choice: ServerList, *, as_json: bool) -> None:
    """Print the runs that the user may see, the newest first unless they are sorted."""
    from clew.client.client import Client

    for state in choice.states:
        if state not in STATES:
            raise ConfigError(f"--state {state}: no such state{nearest(state, STATES)}")
    with Client() as client:
        runs = list(client.runs.list(state=list(choice.states), where=choice.where))
    if not runs and not as_json:
        console.print(f"no runs at {bold(client.server)}; `clew runs push` sends some")
        return
    metrics = list(dict.fromkeys(name for run in runs for name in run.metrics))
    rows = [{**_facts(run), **({} if as_json else run.metrics)} for run in runs]
    sort = "-started" if choice.sort in ("time", "-time") else choice.sort
    usual = ("id", "name", "state", "owner", "done", *metrics[:_METRICS])
    texts = dict.fromkeys(metrics, number)
    print_list(
        rows, usual, sort=sort if runs else "", chosen=choice.columns if runs else "", as_json=as_json, texts=texts
    )


def _facts(run: RunInfo) -> dict[str, Any]:
    done = f"{run.epochs_done}/{run.epochs}" if run.epochs else str(run.epochs_done)
    return {**run.model_dump(mode="json"), "owner": run.owner_name, "done": done}


def get_server_run(run: int, output: Path | None) -> None:
    """Download a run, and print its folder."""
    from clew.client.client import Client

    with Client() as client:
        folder = output or RUNS / client.runs.get(run).name
        fetched = client.runs.download(run, folder)
    console.print(f"{bold(fetched.path)}: run {run} of {client.server}. Next: {program()} runs show {fetched.path}")
