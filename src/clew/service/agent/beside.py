"""The agent that `clew serve` starts beside the server, so that one command is enough for one person."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import sqlalchemy as sa

from clew.service.database.tables import tokens, users
from clew.service.people import add_token
from clew.service.service import Service
from clew.service.writer import Change

_NAME = "local agent"


def beside(service: Service, address: str, user: str) -> subprocess.Popen[bytes]:
    """Start an agent of a user's, or where there is none of that name the first one's, under the credentials of this
    process.

    It leaves when this process is gone; its jobs go on, and the next one finds them.
    """
    token = service.write(lambda change: _token(change, user))
    folder = service.config.folder / "agent"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = [sys.executable, "-c", "from clew.cli.main import run; run()", "agent"]
    command += ["--server", address, "--folder", str(folder), "--name", "local", "--beside", str(os.getpid())]
    with (folder / "agent.log").open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the server
            env={**os.environ, "CLEW_TOKEN": token},
        )


def _token(change: Change, user: str) -> str:
    """A new one; those of earlier starts are void."""
    old = (tokens.c.name == _NAME) & (tokens.c.kind == "agent") & tokens.c.revoked.is_(None)
    change.execute(tokens.update().where(old).values(revoked=time.time()))
    owner = change.scalar(sa.select(users.c.id).order_by(users.c.name != user, users.c.id).limit(1))
    assert owner is not None, "the first start made an administrator"
    return add_token(change, int(owner), ["agent"], name=_NAME, kind="agent")[1]
