"""An agent from what the command line says."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

from clew.files import write_text
from clew.ledger.link import Link
from clew.service.agent import commands
from clew.service.agent.agent import Agent
from clew.service.agent.folder import AgentFolder
from clew.service.agent.messages import Introduction
from clew.service.agent.slots import slots_here
from clew.service.agent.work import Command
from clew.service.client import credentials
from clew.version import __version__


def default_folder() -> Path:
    """`clew/agent` in the user's data folder."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "clew" / "agent"


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
) -> Agent:
    """An agent that is ready to run.

    Raises:
        ConfigError: no server is known.
    """
    address, token = credentials(server)
    place = AgentFolder((folder or default_folder()).absolute())
    host = socket.gethostname()
    return Agent(
        Link(address, token, patience=0),
        place,
        Introduction(
            name=name or re.sub(r"[^A-Za-z0-9_.-]", "-", host)[:80].lstrip("_.-") or "agent",
            uid=_uid(place),
            slots=slots_here(cpus=cpus, gpus=gpus, memory=memory),
            group=group,
            host=host,
            version=__version__,
        ),
        idle=idle,
        tell=tell,
        command=command,
    )


def _uid(folder: AgentFolder) -> str:
    """What tells this folder's agent from others; made once."""
    if not folder.name_file.exists():
        write_text(folder.name_file, json.dumps({"uid": secrets.token_hex(8)}))
    return str(json.loads(folder.name_file.read_text())["uid"])
