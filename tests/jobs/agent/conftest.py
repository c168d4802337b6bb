"""Agents in separate processes, and clients of users."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from clew import Client
from clew.client.job import JobDetail, Submission
from clew.jobs.launchers.launcher import LaunchedJob
from clew.jobs.launchers.local import LocalLauncher
from clew.jobs.supervisor import end_file
from tests.server.conftest import client, client_for, person, server, shared_server
from tests.tuning.conftest import flat

__all__ = ["client", "client_for", "flat", "person", "server", "shared_server"]


@dataclass
class AgentProcess:
    """An agent's process, which can be killed and started again."""

    command: list[str]
    token: str
    folder: Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> AgentProcess:
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            environment = {**os.environ, "CLEW_TOKEN": self.token, "OMP_NUM_THREADS": "1"}
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=environment)
        return self

    def end(self, sign: int = signal.SIGTERM) -> None:
        assert self.process is not None
        self.process.send_signal(sign)
        self.process.wait(30)

    @property
    def log(self) -> str:
        return (self.folder.parent / f"{self.folder.name}.log").read_text()


StartAgent = Callable[..., AgentProcess]


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[StartAgent]:
    """Starts agents: `start_agent(client, "a", cpus=2)` runs lines of Python, `clew=True` real jobs."""
    started: list[AgentProcess] = []

    def start(client: Client, name: str = "a", *, cpus: int = 2, group: str = "", clew: bool = False) -> AgentProcess:
        folder = tmp_path / f"agent-{name}"
        if clew:
            command = [sys.executable, "-c", "from clew.cli.main import run; run()", "agent", "--server", client.server]
            command += ["--folder", str(folder), "--name", name, "--cpus", str(cpus)]
        else:
            command = [sys.executable, "-m", "tests.jobs.agent.quick", client.server, str(folder), name, str(cpus)]
            command += [group] if group else []
        token = client.connection.http.headers["Authorization"].removeprefix("Bearer ")
        started.append(AgentProcess(command, token, folder).start())
        return started[-1]

    yield start
    for agent_process in started:
        if agent_process.process is not None and agent_process.process.poll() is None:
            agent_process.end(signal.SIGKILL)
        for attempt in agent_process.folder.glob("jobs/*/attempt-*"):
            if not end_file(attempt).exists():
                LocalLauncher().kill(LaunchedJob("local", "", str(attempt)))


def python(client: Client, code: str, *, name: str = "job", **options: Any) -> JobDetail:
    """Submit a line of Python to a quick agent."""
    return client.jobs.submit(Submission(name=name, spec={"recipe": "none", "code": code}, **options))
