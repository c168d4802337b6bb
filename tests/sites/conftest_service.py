"""A server, and agents on the login node of the private Slurm: lines of Python, or real jobs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clew import Client
from tests.jobs.agent.conftest import AgentProcess
from tests.server.conftest import Live
from tests.sites.cluster import Cluster

Login = Callable[..., AgentProcess]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server for these tests."""
    live = Live(tmp_path_factory.mktemp("service") / "service").start()
    yield live
    live.stop()


@pytest.fixture
def ada(service: Live) -> Iterator[Client]:
    """A user with all permissions."""
    with Client(service.url, service.token) as client:
        yield client
        for job in client.jobs.list(state=["waiting", "claimed", "running"]):
            client.jobs.cancel(job.id)


@pytest.fixture
def login(site: Cluster, service: Live, ada: Client, tmp_path: Path) -> Iterator[Login]:
    """Starts an agent of the site `here`; `clew=True`: `clew agent --on here` as users start it."""
    started: list[AgentProcess] = []

    def start(*, clew: bool = False) -> AgentProcess:
        folder = tmp_path / "agent"
        if clew:
            command = [sys.executable, "-m", "clew", "agent", "--server", service.url, "--folder", str(folder)]
            command += ["--on", "here", "--name", f"clew-{tmp_path.name[-40:]}"]
        else:
            command = [
                sys.executable,
                "-m",
                "tests.jobs.agent.quick",
                service.url,
                str(folder),
                tmp_path.name[-40:].lstrip("_"),
                "6",
            ]
        started.append(_Hand(command, service.token, folder).start())
        return started[-1]

    yield start
    for agent_process in started:
        if agent_process.process is not None and agent_process.process.poll() is None:
            agent_process.end(signal.SIGKILL)
    site.call("scancel", "--user=root", "--signal=KILL", "--full")
    site.call("scancel", "--user=root")


class _Hand(AgentProcess):
    """An agent that submits jobs to Slurm, from any folder."""

    def start(self) -> AgentProcess:
        root = str(Path(__file__).parents[2])
        os.environ["CLEW_TEST_ON"] = "here"
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*os.environ.get("PYTHONPATH", "").split(":"), root]))
        return super().start()
