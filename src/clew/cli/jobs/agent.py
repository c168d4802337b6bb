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
        Path | None, typer.Option(metavar="FOLDER", help="The folder of its jobs (default: in the user's data folder).")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Its name (default: this machine's name).")] = None,
    group: Annotated[str | None, typer.Option(help="Run this group's jobs too, not only your own.")] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="Cores to offer in all (default: all).")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs to offer in all (default: all).")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory to offer in all: 64G (default: all).")] = None,
    on: Annotated[
        str | None,
        typer.Option(metavar="SITE", help="Submit jobs to this site, from its login node (`clew site list`)."),
    ] = None,
    idle: Annotated[str | None, typer.Option(help="Exit after this long without a job: 10m.")] = None,
    container_option: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="For jobs in an image: --container-option=--volume=/data:/data."),
    ] = None,
) -> None:
    """Run jobs of a server on this machine, under your own credentials. Start as many as there are machines.

    \b
    Examples:
      clew agent
      clew agent --server https://clew.example.org --cpus 16 --gpus 2 --memory 64G
      clew agent --group trackers --name gpu-node-1
      clew agent --idle 10m
      clew agent --on mycluster

    Ctrl-C ends the agent. Its jobs continue, and an agent that is started again in the same folder finds them.
    """
    from clew.jobs.agent.job_target import Offer
    from clew.jobs.agent.setup import PARENT_VARIABLE, AgentOptions, create_agent

    offer = Offer(cpus, gpus, None if memory is None else int(parse_bytes(memory, "--memory")))
    seconds = None if idle is None else parse_seconds(idle, "--idle")
    options = AgentOptions(server, folder, name, group, offer, on, seconds, tuple(container_option or ()))
    created = create_agent(options, print_message=lambda text: console.print(text, markup=False))
    _stop_on_signals(created)
    parent = os.environ.pop(PARENT_VARIABLE, None)  # jobs do not inherit it
    if parent is not None:
        threading.Thread(target=_exit_with_parent, args=(created, int(parent)), daemon=True).start()
    created.run()


def _stop_on_signals(agent: Agent) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        agent.stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def _exit_with_parent(agent: Agent, parent: int) -> None:
    while os.getppid() == parent:
        if agent.stopping.wait(0.5):
            return
    agent.stopping.set()
