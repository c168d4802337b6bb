"""What the user means by a name: a job of a server, a job of a site, or a run on this machine.

`clew stop`, `clew follow` and `clew logs` take the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clew.errors import RunError

if TYPE_CHECKING:
    from clew.jobs.submitted import SubmittedJob
    from clew.runs import Run

Work = Annotated[
    str,
    typer.Argument(
        metavar="WORK", help="A run's folder or name, a folder that a site's job makes, or a server's job number."
    ),
]


@dataclass(frozen=True)
class ServerJob:
    """A job of a server."""

    number: int


def find_work(name: str) -> ServerJob | SubmittedJob | Run:
    """What a name refers to: the site's job that makes a run, unless the run was continued here after that job.

    Raises:
        RunError: it refers to nothing.
    """
    from clew.jobs.launchers.launcher import END_STATES
    from clew.jobs.submitted import find_submitted
    from clew.runs import Run
    from clew.runs.folder import find_run_path

    if name.isdecimal() and not Path(name).exists():
        return ServerJob(int(name))
    name = str(find_run_path(name))
    run = Run(Path(name))
    is_run = run.config_file.is_file()
    try:
        submitted = find_submitted(name)
    except RunError:
        if is_run:
            return run
        raise RunError(
            f"{name}: no run and no job of a site; `clew runs list`, `clew site jobs` and `clew jobs` list them"
        ) from None
    continued_here = is_run and run.state == "running" and submitted.launcher.state(submitted.job) in END_STATES
    return run if continued_here else submitted
