"""An agent from what the command line says."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

from clew.client.agent_messages import Introduction
from clew.client.client import credentials
from clew.client.connection import Link
from clew.client.job import Slots
from clew.core.files import write_text
from clew.errors import ConfigError
from clew.jobs import sites as sites
from clew.jobs.agent import commands
from clew.jobs.agent.agent import Agent
from clew.jobs.agent.folder import AgentFolder
from clew.jobs.agent.job_list import Command
from clew.jobs.agent.resource_slots import slots_at, slots_here
from clew.jobs.agent.runner import Local, Runner
from clew.version import __version__


def default_folder(site: str | None = None) -> Path:
    """`clew/agent` in the user's data folder; `clew/agent-SITE` for a site's."""
    name = "agent" if site is None else f"agent-{site}"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "clew" / name


def make(
    server: str | None,
    *,
    folder: Path | None,
    name: str | None,
    group: str | None,
    cpus: int | None,
    gpus: int | None,
    memory: int | None,
    idle: float | None,
    tell: Callable[[str], None],
    command: Command = commands.command,
    on: str | None = None,
) -> Agent:
    """An agent that is ready to run; `on` names the site whose scheduler gets its jobs.

    Raises:
        ConfigError: no server or no such site is known.
        RunError: the site's scheduler does not answer.
    """
    address, token = credentials(server)
    runner, slots = _where(on, cpus=cpus, gpus=gpus, memory=memory)
    place = AgentFolder((folder or default_folder(slots.site)).absolute())
    host = socket.gethostname()
    return Agent(
        Link(address, token, patience=0),
        place,
        Introduction(
            name=name or re.sub(r"[^A-Za-z0-9_.-]", "-", slots.site or host)[:80].lstrip("_.-") or "agent",
            uid=_uid(place),
            slots=slots,
            group=group,
            host=host,
            version=__version__,
        ),
        runner=runner,
        idle=idle,
        tell=tell,
        command=command,
    )


def _where(on: str | None, *, cpus: int | None, gpus: int | None, memory: int | None) -> tuple[Runner, Slots]:
    """Who carries jobs out, and how much of it."""
    if on is None:
        return Local(), slots_here(cpus=cpus, gpus=gpus, memory=memory)
    site = sites.load_site(on)
    if site.scheduler != "slurm":
        raise ConfigError(
            f"{site.name}: an agent hands jobs to Slurm, not to {site.scheduler}; use --on with the verbs"
        )
    from clew.jobs.agent.slurm import AtSlurm

    return AtSlurm(site), slots_at(site, cpus=cpus, gpus=gpus, memory=memory)


def _uid(folder: AgentFolder) -> str:
    """What tells this folder's agent from others; made once."""
    if not folder.name_file.exists():
        write_text(folder.name_file, json.dumps({"uid": secrets.token_hex(8)}))
    return str(json.loads(folder.name_file.read_text())["uid"])
