"""The server and an agent, kept running as systemd would, and a user who submits jobs and sends points.

Run as `python -m tests.chaos.service FOLDER`; started again it continues. It ends when everything has arrived. With
`--hosts` the server, the user and the agent are on virtual hosts of their own, so that their links can fail.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clew import Client, Run
from clew.bench.strategies.hosts import hosts
from clew.client.job import Submission
from clew.errors import ClewError
from tests.chaos.faults import USER_PROGRAM

JOBS, POINTS, STREAM = 8, 500, "rank-1"
_FINISHED = ("done", "failed", "cancelled", "lost")
_JOB = f"""
import fcntl, time  # {USER_PROGRAM}
with open({{path!r}}, "a") as file:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    time.sleep(0.3)
    file.write("done")
"""
"""A job that fails if it already runs. It may run again: what was killed before its end was recorded is repeated."""


def _close(process: subprocess.Popen[str] | None) -> None:
    if process is not None and process.stdout is not None:
        process.stdout.close()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Service:
    """The two processes. Each is started again when it has died."""

    def __init__(self, folder: Path, places: Mapping[str, str] | None = None) -> None:
        """Take the folder of everything, and the namespaces and addresses of server and agent if they have hosts."""
        self.folder, self._places = folder, places or {}
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.access = folder / "access.json"

    def keep_running(self) -> None:
        """Start what does not run."""
        for name, start in (("server", self._start_server), ("agent", self._start_agent)):
            process = self.processes.get(name)
            if process is not None and process.poll() is None:
                continue
            if name == "agent" and not self.access.exists():
                continue  # the server was killed before it had printed its address
            _close(process)
            self.processes[name] = start()

    def client(self) -> Client:
        """A client of the administrator."""
        url, token = json.loads(self.access.read_text())
        return Client(url, token)

    def stop(self) -> None:
        """End both, the agent first."""
        for name in ("agent", "server"):
            self.processes[name].terminate()
            self.processes[name].wait(60)
            _close(self.processes[name])

    def _token(self) -> str:
        """Return a token of the administrator, made in the database before the first start of the server."""
        file = self.folder / "token"
        if not file.exists():
            options = ["--user", "chaos", "--scope", "admin", "--folder", str(self.folder / "service")]
            made = subprocess.run([*_CLEW, "token", "create", "chaos", *options], stdout=subprocess.PIPE, text=True)
            if made.returncode == 0:
                new = file.with_suffix(".written")
                new.write_text(made.stdout.split()[0])
                new.replace(file)
        return file.read_text() if file.exists() else ""

    def _start_server(self) -> subprocess.Popen[str]:
        token = self._token()
        url = json.loads(self.access.read_text())[0] if self.access.exists() else ""
        command = ["serve", "--folder", str(self.folder / "service"), "--no-agent", "--port"]
        command += [url.rpartition(":")[2] or "0"]
        if token and "address" in self._places:  # only a server that has a token may be reached from elsewhere
            command += ["--host", self._places["address"]]
        process = self._start("server", [*_CLEW, *command], stdout=subprocess.PIPE)
        message = ""
        assert process.stdout is not None
        while "clew serves" not in message and (line := process.stdout.readline()):
            message += line
        addresses = re.findall(r"http://\S+", message)
        if addresses and token:
            new = self.access.with_suffix(".json.written")
            new.write_text(json.dumps([addresses[-1], token]))
            new.replace(self.access)
        return process

    def _start_agent(self) -> subprocess.Popen[str]:
        url, token = json.loads(self.access.read_text())
        command = [sys.executable, "-m", "tests.jobs.agent.quick", url, str(self.folder / "agent"), "a", "2"]
        return self._start("agent", command, environment={"CLEW_TOKEN": token})

    def _start(
        self, name: str, command: list[str], *, stdout: int | None = None, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        host = ["ip", "netns", "exec", self._places[name]] if name in self._places else []
        return subprocess.Popen(
            [*host, *command],
            stdout=stdout,
            env={**os.environ, **(environment or {})},
            preexec_fn=_end_with_parent,
            text=True,
        )


_CLEW = [sys.executable, "-c", "from clew.cli.main import run; run()"]


def work(service: Service) -> bool:
    """Do what is left to do; return whether everything has arrived."""
    folder = service.folder
    with service.client() as client:
        known = {job.name: job for job in client.jobs.list()}
        for number in range(JOBS):
            name = f"job-{number}"
            if name not in known:
                spec = {"recipe": "none", "code": _JOB.format(path=str(folder / "done" / name))}
                client.jobs.submit(Submission(name=name, spec=spec, requeue=9))
        pushed = client.runs.push(folder / "run")
        streams = client.connection.call("GET", f"/runs/{pushed.id}/records/streams")["next"]
        names = {f"job-{number}" for number in range(JOBS)}
        ended = {name for name, job in known.items() if job.state in _FINISHED}
        return streams.get(STREAM) == POINTS and names <= ended


def add_points(run: Run) -> None:
    """Add some points to a run, as a training does."""
    last = run.last("note", STREAM) if (run.records_folder / f"{STREAM}.jsonl").exists() else None
    first = 0 if last is None else int(last["message"]) + 1
    with run.writer(STREAM) as writer:
        for step in range(first, min(first + 25, POINTS)):
            writer.write("note", message=str(step))


def result(folder: Path) -> Any:
    """The state of every job, the jobs that were done, and the number of points."""
    service = Service(folder)
    service.keep_running()
    try:
        with service.client() as client:
            jobs = sorted((job.name, job.state) for job in client.jobs.list())
            runs = [_steps(client, run.id) for run in client.runs.list()]
    finally:
        service.stop()
    return jobs, sorted(path.name for path in (folder / "done").iterdir() if path.read_text()), runs


def _steps(client: Client, run: int) -> list[int]:
    """The points of a run on the server."""
    steps: list[int] = []
    after: int | None = -1
    while after is not None:
        page = client.connection.call("GET", f"/runs/{run}/records", params={"stream": STREAM, "after": after})
        steps += [int(record["message"]) for record in page["items"]]
        after = page["next"]
    return steps


def run_on_hosts(folder: Path) -> int:
    """Run with three virtual hosts: of the server, of the user, of the agent. Their names are in `hosts.json`."""
    with hosts(3) as (server, user, agent):
        places = {"server": server.namespace, "agent": agent.namespace, "address": server.address}
        (folder / "places.json").write_text(json.dumps(places))
        (folder / "hosts.json").write_text(json.dumps([each.namespace for each in (server, user, agent)]))
        process = user.start([sys.executable, "-m", "tests.chaos.service", str(folder)], output=sys.stdout.fileno())
        try:
            return process.wait()
        finally:
            (folder / "hosts.json").unlink()
            (folder / "places.json").unlink()


def main() -> None:
    """Run until everything has arrived."""
    folder = Path(sys.argv[1])
    if sys.argv[2:] == ["--hosts"]:
        sys.exit(run_on_hosts(folder))
    places = folder / "places.json"
    (folder / "done").mkdir(exist_ok=True)
    service = Service(folder, json.loads(places.read_text()) if places.exists() else {})
    arrived = False
    while not arrived:
        service.keep_running()
        add_points(Run(folder / "run"))
        with contextlib.suppress(ClewError):
            arrived = service.access.exists() and work(service)
        time.sleep(0.2)
    service.stop()


if __name__ == "__main__":
    main()
