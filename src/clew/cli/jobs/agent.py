"""`clew agent`."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.options import console, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from clew.jobs.agent.agent import Agent

Server = Annotated[
    str | None, typer.Option(metavar="URL", help="The server (default: $CLEW_SERVER, or that of `clew login`).")
]


def agent(
    server: Server = None,
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where jobs run (default: in the user's data folder).")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What it is called (default: this machine's name).")] = None,
    group: Annotated[str | None, typer.Option(help="Run this group's jobs too, not only your own.")] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="To give (default: all).")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="To give (default: all).")] = None,
    memory: Annotated[str | None, typer.Option(help="To give: 64G (default: all).")] = None,
    on: Annotated[
        str | None,
        typer.Option(metavar="SITE", help="Hand jobs to this cluster's Slurm, from its login node (`clew site list`)."),
    ] = None,
    idle: Annotated[str | None, typer.Option(help="Leave after so long without a job: 10m.")] = None,
    beside: Annotated[int | None, typer.Option(hidden=True, help="Leave when this process is gone.")] = None,
) -> None:
    """Run jobs of a server on this machine, under your own credentials. Start as many as there are machines.

    \b
    Examples:
      clew agent
      clew agent --server https://clew.example.org --cpus 16 --gpus 2 --memory 64G
      clew agent --group trackers --name gpu-node-1
      clew agent --idle 10m
      clew agent --on mycluster

    Ctrl-C lets it go; its jobs run on, and an agent started again in the same folder finds them.
    """
    from clew.jobs.agent.setup import make

    given = None if memory is None else int(parse_bytes(memory, "--memory"))
    made = make(
        server,
        folder=folder,
        name=name,
        group=group,
        cpus=cpus,
        gpus=gpus,
        memory=given,
        on=on,
        idle=None if idle is None else parse_seconds(idle, "--idle"),
        tell=lambda text: console.print(text, markup=False),
    )
    _until_signalled(made)
    if beside is not None:
        threading.Thread(target=_leave_with, args=(made, beside), daemon=True).start()
    made.run()


def _until_signalled(agent: Agent) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        agent.stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def _leave_with(agent: Agent, parent: int) -> None:
    while os.getppid() == parent:
        if agent.stopping.wait(0.5):
            return
    agent.stopping.set()
