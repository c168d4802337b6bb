"""The service under load: 200 runs with 10 points per second each, on SQLite and on PostgreSQL, and its failures.

Runs are real folders, sent by the pusher that trainings use, one batch per second and run, from processes on the cores
of the server. A point is a step record; each gives five curves a value. Times inside the server are those it puts into
`Server-Timing`: from the moment it has read the last byte of a batch to the first byte of the answer, with all waiting
for the event loop, for threads, for the writer and for the commit on disk. What they leave out, bytes that wait in a
socket for the server to read them, is in what clients see: whole calls, sending and receiving included. Batches of the
first second, in which all runs are created, count as well. The overview is requested every 0.5 s meanwhile. Then the
server is killed with SIGKILL every 10 s under the same load; then one run has a million points, and all data of its
page is requested.

    python benchmarks/service.py                  # 2 minutes, 5 times on each database: about half an hour
    python benchmarks/service.py --quick          # five times 5 seconds
    python benchmarks/service.py --only sqlite --part load --repeats 1
    python benchmarks/service.py --runs 48 --busy 1   # fewer runs, larger batches; another process keeps a core busy
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
import psutil
from _contest import Sheet, main, options

sys.path.insert(0, str(Path(__file__).parent.parent))

from clew.client.connection import Connection
from clew.runs import Run
from clew.runs.push import Pusher
from tests.server.conftest import Live
from tests.server.postgres import running, why_not

POINTS_PER_SECOND, PROCESSES = 2000, 4
CURVES = 5
"""Curves that get a value from a step record."""


@contextmanager
def server(folder: Path, kind: str) -> Iterator[Live]:
    """A server on a new database."""
    if kind == "sqlite":
        yield from _live(folder, ("--no-agent",))
        return
    with running() as url:
        yield from _live(folder, ("--no-agent", "--database", url))


def _live(folder: Path, options: tuple[str, ...]) -> Iterator[Live]:
    live = Live(folder / "service", options).start()
    try:
        yield live
    finally:
        live.stop()


class Asking(threading.Thread):
    """Requests the overview every 0.5 s."""

    def __init__(self, live: Live) -> None:
        super().__init__(daemon=True)
        self.times: list[float] = []
        self.over = threading.Event()
        self._client = live.client()

    def run(self) -> None:
        while not self.over.wait(0.5):
            start = time.perf_counter()
            self._client.get("/api/v1/overview").raise_for_status()
            self.times.append(time.perf_counter() - start)
        self._client.close()


class Pulse(threading.Thread):
    """Wakes up fifty times per second: its delays are those of every process on this machine."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest = 0.0
        """Seconds of delay."""
        self.over = threading.Event()

    def run(self) -> None:
        start = time.perf_counter()
        while not self.over.wait(0.02):
            now = time.perf_counter()
            self.longest, start = max(self.longest, now - start - 0.02), now


@contextmanager
def other_load(processes: int) -> Iterator[None]:
    """Keep cores busy with processes that have nothing to do with the service."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def load(live: Live, folder: Path, runs: int, seconds: float, *, processes: int = PROCESSES) -> dict[str, Any]:
    """Let all processes report; return their joined results."""
    folder.mkdir(parents=True)
    server_environment = {"CLEW_SERVER": live.url, "CLEW_TOKEN": live.token}
    begin, each = time.time() + 4, runs // processes
    command = ["--runs", str(each), "--seconds", str(seconds), "--begin", str(begin)]
    command += ["--rate", str(POINTS_PER_SECOND / (each * processes))]
    root = Path(__file__).parent.parent
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.server.load", str(folder), "--first", str(number * each), *command],
            env={**os.environ, **server_environment},
            cwd=root,
        )
        for number in range(processes)
    ]
    try:
        assert [process.wait() for process in started] == [0] * processes
    finally:
        for process in started:
            process.kill()
    report = [json.loads((folder / f"{number * each}.json").read_text()) for number in range(processes)]
    return {key: sum((part[key] for part in report), start=type(report[0][key])()) for key in report[0]}


def lost(live: Live, folder: Path, written: int) -> int:
    """Points that are not stored exactly once in records, curves and sums."""
    missing = 0
    with live.client() as client:
        rows, after = [], None
        while True:
            page = client.get("/api/v1/runs", params={"limit": 500, "after": after} if after else {"limit": 500}).json()
            rows += page["items"]
            after = page["next"]
            if after is None:
                break
        there = {row["name"]: row["id"] for row in rows}
        total = 0
        for path in sorted(folder.glob("run-*")):
            here = list(Run(path).records())
            number = there[path.name]
            stored, after = [], -1
            while after is not None:
                page = client.get(f"/api/v1/runs/{number}/records", params={"limit": 1000, "after": after}).json()
                stored += page["items"]
                after = page["next"]
            missing += 0 if stored == here else abs(len(here) - len(stored)) or 1
            steps = len(here) - 2
            counts = {
                each["name"]: each["count"] for each in client.get(f"/api/v1/runs/{number}/metrics").json()["items"]
            }
            drawn = client.get(f"/api/v1/runs/{number}/metrics/train/loss", params={"points": 5000}).json()["count"]
            missing += (
                sum(abs(count - steps) for count in counts.values()) + abs(CURVES - len(counts)) + abs(drawn - steps)
            )
            total += steps
    return missing + abs(total - written)


def reporting(sheet: Sheet, folder: Path, kind: str, arguments: argparse.Namespace) -> None:
    """The load, several times on fresh databases."""
    inside, client_times, overview_times, missing_points, busy, still = [], [], [], 0, [], 0.0
    seconds = arguments.seconds
    for number in range(arguments.repeats):
        here = folder / f"{kind}-{number}"
        here.mkdir()
        with other_load(arguments.busy), server(here, kind) as live:
            assert live.process is not None
            asking, pulse, process = Asking(live), Pulse(), psutil.Process(live.process.pid)
            asking.start()
            pulse.start()
            before = process.cpu_times()
            results = load(live, here / "runs", arguments.runs, seconds)
            after = process.cpu_times()
            for thread in (asking, pulse):
                thread.over.set()
                thread.join()
            still = max(still, pulse.longest)
            missing_points += lost(live, here / "runs", results["written"])
            inside.append(float(np.percentile(results["inside"], 99)))
            client_times.append(float(np.percentile(results["seen"], 99)))
            overview_times.append(float(np.percentile(asking.times, 99)))
            busy.append((after.user + after.system - before.user - before.system) / seconds)
    sheet.bar(f"{kind}: points lost or doubled", missing_points, 0, "points", lower=True)
    sheet.bar(f"{kind}: p99 inside the server", 1000 * median(inside), 50, "ms", lower=True)
    sheet.bar(f"{kind}: p99 seen by clients", 1000 * median(client_times), 500, "ms", lower=True)
    sheet.bar(f"{kind}: overview, p99", 1000 * median(overview_times), 300, "ms", lower=True)
    sheet.state(f"{kind}: points a second", results["written"] / seconds, "1/s")
    sheet.state(f"{kind}: batches a second", len(results["seen"]) / seconds, "1/s")
    sheet.state(f"{kind}: longest that the machine stood still", 1000 * still, "ms")
    sheet.state(f"{kind}: server's use of a core", median(busy), "cores")


def killing(sheet: Sheet, folder: Path, kind: str, arguments: argparse.Namespace) -> None:
    """The same load while the server is killed again and again."""
    here = folder / f"{kind}-killed"
    here.mkdir()
    kills, every = 0, 4 if arguments.quick else 10
    with other_load(arguments.busy), server(here, kind) as live:
        finished = threading.Event()

        def kill() -> None:
            nonlocal kills
            due = time.monotonic() + 4 + every
            while not finished.wait(max(0.0, due - time.monotonic())):
                live.stop(signal.SIGKILL)
                kills, due = kills + 1, due + every
                live.start()

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            results = load(live, here / "runs", arguments.runs, arguments.seconds)
        finally:
            finished.set()
            killer.join()
        missing_points = lost(live, here / "runs", results["written"])
    sheet.bar(f"{kind}: lost or doubled after {kills} kills", missing_points, 0, "points", lower=True)
    sheet.state(f"{kind}: pushes that failed meanwhile", results["failed"], "pushes")


def million(sheet: Sheet, folder: Path, kind: str, records: int) -> None:
    """One long run, and everything its page asks for."""
    here = folder / f"{kind}-long"
    here.mkdir()
    run = Run.create(here / "long", config={"recipe": "load"}, environment={"host": "load"})
    times = {"seconds": 0.1, "wait": 0.01, "communicate": 0.0}
    with (run.records_folder / "rank-0.jsonl").open("w") as file:
        for seq in range(records):
            facts = {"epoch": 0, "step": seq + 1, "samples": 64 * seq, "loss": {"loss": 1 / (seq + 1)}, "lr": 1e-3}
            file.write(json.dumps({"seq": seq, "time": 1e9 + seq / 10, "kind": "step", **facts, **times}) + "\n")
    with server(here, kind) as live, Connection(live.url, live.token) as link, live.client() as client:
        start = time.perf_counter()
        pusher = Pusher(run, link)
        pusher.push()
        sheet.state(f"{kind}: records a second of `clew runs push`", records / (time.perf_counter() - start), "1/s")
        drawn, zoomed = [], []
        for _ in range(5):
            drawn.append(_page(client, pusher.number))
            start = time.perf_counter()
            window = {"from": records // 2, "to": records // 2 + records // 20}
            client.get(f"/api/v1/runs/{pusher.number}/curves", params=window).raise_for_status()
            zoomed.append(time.perf_counter() - start)
    points = records * CURVES
    sheet.bar(f"{kind}: a page's data, {points / 1e6:.2g} million points", max(drawn), 2, "s", lower=True)
    sheet.bar(f"{kind}: zoom into a twentieth of it", max(zoomed), 2, "s", lower=True)


def _page(client: httpx.Client, number: int | None) -> float:
    start = time.perf_counter()
    for path in ("", "/metrics", "/curves", "/artefacts", "/records/streams"):
        client.get(f"/api/v1/runs/{number}{path}").raise_for_status()
    return time.perf_counter() - start


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    quick = arguments.quick
    arguments.seconds = arguments.seconds or (5 if quick else 120)
    arguments.repeats = arguments.repeats or 5
    kinds = [arguments.only] if arguments.only else ["sqlite", "postgresql"]
    if why_not() and "postgresql" in kinds:
        print(f"postgresql is left out: {why_not()}")
        kinds.remove("postgresql")
    parts = {
        "load": lambda kind: reporting(sheet, folder, kind, arguments),
        "kill": lambda kind: killing(sheet, folder, kind, arguments),
        "page": lambda kind: million(sheet, folder, kind, 20_000 if quick else 1_000_000),
    }
    for kind in kinds:
        for part in [arguments.part] if arguments.part else parts:
            parts[part](kind)
    settings = {name: getattr(arguments, name) for name in ("runs", "busy", "seconds", "repeats")}
    return {**settings, "load": os.getloadavg()[0], "cores": os.cpu_count()}


if __name__ == "__main__":
    parser = options(__doc__, "15 seconds instead of 2 minutes, once")
    parser.add_argument("--only", choices=("sqlite", "postgresql"), help="one database")
    parser.add_argument("--part", choices=("load", "kill", "page"), help="one of the three")
    parser.add_argument("--runs", type=int, default=200, help="that report 2,000 points per second together")
    parser.add_argument("--busy", type=int, default=0, help="other processes that keep a core busy each")
    parser.add_argument("--seconds", type=float, help="of load")
    parser.add_argument("--repeats", type=int, help="of the load, of which the median counts")
    sys.exit(main(measure, parser))
