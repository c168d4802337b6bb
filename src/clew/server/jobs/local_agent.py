"""The agent that `clew serve` starts together with the server, so that one command is enough for one user."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import sqlalchemy as sa

from clew.core.process import safe_path
from clew.jobs.agent.setup import PARENT_VARIABLE
from clew.server.accounts.tokens import NewTokenRow, add_token
from clew.server.database.tables import tokens, users
from clew.server.database.writer import Transaction
from clew.server.service import Service

_TOKEN_NAME = "local agent"
_RESTART_SECONDS = 2.0
"""Pause before an agent that ended is started again. It doubles each time the agent ends soon."""
_MAX_RESTART_SECONDS = 300.0


def start_local_agent(service: Service, address: str, user: str) -> None:
    """Start an agent and restart it whenever it ends.

    The agent runs under the account of this process and ends with it. Its jobs continue, and the next agent finds them.

    Args:
        service: The server.
        address: The server's address.
        user: The owner of the agent; if there is no such user, the first user.
    """
    token = service.write(lambda transaction: _make_token(transaction, user))
    folder = service.config.folder / "agent"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = [sys.executable, *safe_path(), "-c", "from clew.cli.main import run; run()", "agent"]
    command += ["--server", address, "--folder", str(folder), "--name", "local"]
    arguments = (command, folder / "agent.log", token)
    threading.Thread(target=_keep_running, args=arguments, name="local agent", daemon=True).start()


def _keep_running(command: list[str], file: Path, token: str) -> None:
    pause = _RESTART_SECONDS
    while True:
        started = time.monotonic()
        _start(command, file, token).wait()
        lasted = time.monotonic() - started
        pause = _RESTART_SECONDS if lasted > _MAX_RESTART_SECONDS else min(2 * pause, _MAX_RESTART_SECONDS)
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


def _make_token(transaction: Transaction, user: str) -> str:
    """Make a token; those of earlier starts are revoked."""
    earlier = (tokens.c.name == _TOKEN_NAME) & (tokens.c.kind == "agent") & tokens.c.revoked.is_(None)
    transaction.execute(tokens.update().where(earlier).values(revoked=time.time()))
    owner = transaction.scalar(sa.select(users.c.id).order_by(users.c.name != user, users.c.id).limit(1))
    assert owner is not None, "the first start made an administrator"
    return add_token(transaction, NewTokenRow(int(owner), ["agent"], _TOKEN_NAME, kind="agent"))[1]
