"""An agent from the options of the command line."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from clew.client.agent_messages import AgentRegistration
from clew.client.client import credentials
from clew.client.connection import Connection
from clew.core.files import write_text
from clew.jobs.agent import commands
from clew.jobs.agent.agent import Agent
from clew.jobs.agent.folder import AgentFolder
from clew.jobs.agent.job_list import TaskOf
from clew.jobs.agent.job_target import JobTarget, Offer
from clew.version import __version__

PARENT_VARIABLE = "CLEW_AGENT_PARENT"
"""An environment variable: the number of the process whose end also ends the agent. A server sets it."""


@dataclass(frozen=True)
class AgentOptions:
    """The options of `clew agent`."""

    server: str | None = None
    folder: Path | None = None
    name: str | None = None
    group: str | None = None
    offer: Offer = field(default_factory=Offer)
    site: str | None = None
    """The site whose scheduler gets the jobs; None: they run on this machine."""
    idle: float | None = None
    """Seconds without a job after which it exits."""
    container_options: tuple[str, ...] = ()
    """Options of what runs container images on this machine."""


def default_folder(site: str | None = None) -> Path:
    """`clew/agent` in the user's data folder; `clew/agent-SITE` for a site's."""
    name = "agent" if site is None else f"agent-{site}"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "clew" / name


def create_agent(
    options: AgentOptions, *, print_message: Callable[[str], None], task_of: TaskOf = commands.order_task
) -> Agent:
    """An agent that is ready to run.

    Raises:
        ConfigError: no server or no such site is known, or no agent can serve the site.
        RunError: the site's scheduler does not answer.
    """
    address, token = credentials(options.server)
    target = JobTarget.named(options.site, options.container_options)
    slots = target.slots(options.offer)
    folder = AgentFolder((options.folder or default_folder(slots.site)).absolute())
    host = socket.gethostname()
    return Agent(
        Connection(address, token, retry_seconds=0),
        folder,
        AgentRegistration(
            name=options.name or re.sub(r"[^A-Za-z0-9_.-]", "-", slots.site or host)[:80].lstrip("_.-") or "agent",
            uid=_uid(folder),
            slots=slots,
            group=options.group,
            host=host,
            version=__version__,
        ),
        target=target,
        idle=options.idle,
        print_message=print_message,
        task_of=task_of,
    )


def _uid(folder: AgentFolder) -> str:
    """What distinguishes this folder's agent from others; created once."""
    if not folder.name_file.exists():
        write_text(folder.name_file, json.dumps({"uid": secrets.token_hex(8)}))
    return str(json.loads(folder.name_file.read_text())["uid"])
