"""What is left to do when a job has ended: the server gets the rest of its records, and what it made."""

from __future__ import annotations

from collections.abc import Callable

from clew.service.agent.folder import AgentFolder
from clew.service.agent.work import Working
from clew.service.job import Result


def finish(working: Working, result: Result, root: AgentFolder, server: str, tell: Callable[[str], None]) -> bool:
    """Push what there is, with the job's own token; whether all of it arrived.

    Raises:
        ServerError: the server is away.
    """
    return True
