"""Runs that report to a server: real folders, records and pusher; one thread per run, several runs per process.

    python -m tests.server.load FOLDER --first 0 --runs 50 --seconds 120 --rate 40

reports for this time, sends the rest even if the server is away for long, and writes its figures to
FOLDER/first.json. The server and the token are those of CLEW_SERVER and CLEW_TOKEN.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.client.connection import Connection
from clew.client.credentials import credentials
from clew.errors import ServerError
from clew.runs import Run
from clew.runs.push import Pusher

RATE = 10.0
"""Points per second and run, unless stated otherwise."""
PERIOD = 1.0
"""Seconds between two pushes of a run, as `clew.runs.push_process` has it."""


class Timed(Connection):
    """A connection that logs how long each batch took, here and according to the server."""

    def __init__(self, server: str, token: str) -> None:
        super().__init__(server, token, retry_seconds=0.0)
        self.seen: list[float] = []
        self.inside: list[float] = []
        self.when: list[float] = []
        """For each batch: the time of its answer, in seconds since 1970."""
        self.http.event_hooks = {"response": [self._on_response]}

    def _on_response(self, response: Any) -> None:
        if response.request.method == "POST" and response.request.url.path.endswith("/records"):
            self.when.append(time.time())
            self.inside.append(float(response.headers["Server-Timing"].rpartition("=")[2]) / 1000)

    def call(self, method: str, path: str, **more: Any) -> Any:
        started = time.perf_counter()
        result = super().call(method, path, **more)
        if path.endswith("/records"):
            self.seen.append(time.perf_counter() - started)
        return result


@dataclass(frozen=True)
class Schedule:
    """When runs report: from `begin` (seconds since 1970) for some seconds, `rate` points per second and run."""

    begin: float
    seconds: float
    rate: float = RATE


class Reporter(threading.Thread):
    """One run: writes records at a fixed rate, pushes every second, and at the end all the rest."""

    def __init__(self, folder: Path, number: int, link: Timed, schedule: Schedule) -> None:
        super().__init__(daemon=True)
        environment = {"host": "load", "command": ["load", str(number)]}
        self.run_folder = Run.create(folder / f"run-{number:04d}", config={"recipe": "load"}, environment=environment)
        self.link, self.schedule, self.number = link, schedule, number
        self.written = 0
        self.failed = 0

    def run(self) -> None:
        pusher = Pusher(self.run_folder, self.link)
        with self.run_folder.writer("rank-0") as writer:
            writer.write("start", schema=1, host="load", pid=1, rank=0, ranks=1)
            due = self.schedule.begin + (self.number % 97) / 97 * PERIOD
            push, end = due + PERIOD, due + self.schedule.seconds
            while due < end:
                time.sleep(max(0.0, due - time.time()))
                self._step(writer)
                due += 1 / self.schedule.rate
                if time.time() >= push:
                    push += PERIOD * max(1, int((time.time() - push) / PERIOD) + 1)
                    self._push(pusher)
            writer.write("end", status="finished", message="")
        while not self._push(pusher):
            time.sleep(0.5)

    def _step(self, writer: Any) -> None:
        self.written += 1
        at = {"epoch": 0, "step": self.written, "samples": 64 * self.written}
        times = {"seconds": 0.1, "wait": 0.01, "communicate": 0.0}
        writer.write("step", **at, loss={"loss": 1 / self.written}, lr=0.001, **times)

    def _push(self, pusher: Pusher) -> bool:
        try:
            pusher.push()
        except ServerError:
            self.failed += 1
            return False
        return True


def report(folder: Path, schedule: Schedule, *, first: int, runs: int) -> dict[str, Any]:
    """Report with several runs; return how much was written, and how long batches took."""
    server_login = credentials()
    assert server_login is not None
    links = [Timed(server_login.server, server_login.token) for _ in range(runs)]
    reporters = [Reporter(folder, first + place, link, schedule) for place, link in enumerate(links)]
    for reporter in reporters:
        reporter.start()
    for reporter in reporters:
        reporter.join()
    for link in links:
        link.close()
    return {
        "written": sum(reporter.written for reporter in reporters),
        "failed": sum(reporter.failed for reporter in reporters),
        "seen": [value for link in links for value in link.seen],
        "inside": [value for link in links for value in link.inside],
        "when": [value for link in links for value in link.when],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, kind in (("first", int), ("runs", int), ("seconds", float), ("begin", float)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--rate", type=float, default=RATE)
    values = parser.parse_args()
    schedule = Schedule(values.begin, values.seconds, values.rate)
    result = report(values.folder, schedule, first=values.first, runs=values.runs)
    (values.folder / f"{values.first}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
