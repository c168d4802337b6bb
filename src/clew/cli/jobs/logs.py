"""`clew logs`."""

from __future__ import annotations

from typing import Annotated

import typer

from clew.cli.jobs.agent import Server
from clew.cli.options import console


def logs(
    job: Annotated[int, typer.Argument(metavar="JOB", min=1, help="Its number.")],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until it has ended; the exit code is the job's.")
    ] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="An earlier one (default: the newest).")] = None,
    server: Server = None,
) -> None:
    """What a job has printed.

    \b
    Examples:
      clew logs 12
      clew logs 12 --follow
      clew logs 12 --attempt 1
    """
    from clew.cli.jobs.jobs import ended, watch
    from clew.client.client import Client

    with Client(server) as client:
        if follow:
            raise typer.Exit(ended(watch(client, job, log=True)))
        for text in client.jobs.log(job, attempt=attempt):
            console.out(text, end="", highlight=False)
