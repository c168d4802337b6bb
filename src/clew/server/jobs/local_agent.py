"""The agent that `clew serve` starts beside the server, so that one command is enough for one person."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import sqlalchemy as sa

from clew.jobs.agent.setup import PARENT_VARIABLE
from clew.server.accounts.callers import add_token
from clew.server.database.tables import tokens, users
from clew.server.database.writer import Change
from clew.server.service import Service

_NAME = "local agent"
_PAUSE = 2.0
"""Seconds before one that died is started again; twice as long each time where it dies soon."""
_LONGEST = 300.0


def beside(service: Service, address: str, user: str) -> None:
    """Keep an agent of a user's, or where there is none of that name the first one's, under the credentials of this
    process: one that dies is started again.

    It leaves when this process is gone; its jobs go on, and the next one finds them.
    """
    token = service.write(lambda change: _token(change, user))
    folder = service.config.folder / "agent"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = [sys.executable, "-c", "from clew.cli.main import run; run()", "agent"]
    command += ["--server", address, "--folder", str(folder), "--name", "local"]
    threading.Thread(target=_keep, args=(command, folder / "agent.log", token), name="beside", daemon=True).start()


def _keep(command: list[str], file: Path, token: str) -> None:
    pause = _PAUSE
    while True:
        begun = time.monotonic()
        _start(command, file, token).wait()
        pause = _PAUSE if time.monotonic() - begun > _LONGEST else min(2 * pause, _LONGEST)
        time.sleep(pause)


def _start(command: list[str], file: Path, token: str) -> subprocess.Popen[bytes]:
    with file.open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the server
            env={**os.environ, "CLEW_TOKEN": token, PARENT_VARIABLE: str(os.getpid())},
        )


def _token(change: Change, user: str) -> str:
    """A new one; those of earlier starts are void."""
    old = (tokens.c.name == _NAME) & (tokens.c.kind == "agent") & tokens.c.revoked.is_(None)
    change.execute(tokens.update().where(old).values(revoked=time.time()))
    owner = change.scalar(sa.select(users.c.id).order_by(users.c.name != user, users.c.id).limit(1))
    assert owner is not None, "the first start made an administrator"
    return add_token(change, int(owner), ["agent"], name=_NAME, kind="agent")[1]
