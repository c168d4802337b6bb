"""An hour of mixed load on one machine: the service with 50 runs, studies, asynchronous trainings and preparations.

50 runs report 2,000 points per second to a server, and the overview is requested every 0.5 s. Meanwhile three loops
repeat a preparation, a study of six trials and an asynchronous training whose second worker is killed every 10 s and
replaced. The server and its database have the first core; everything else, also what reports and requests, has the last
one. Memory, file handles, threads and the size of the database are sampled every
second. What must be flat may grow by at most a tenth over the last two thirds of the time. Every point must be stored
once.

Latencies are stated twice: of all batches, and of those answered in quiet seconds, in which the server's threads waited
for a core for less than 2% of the time. The difference is the machine's part.

    python benchmarks/soak.py                            # one hour on each database
    python benchmarks/soak.py --quick                    # one minute on each
    python benchmarks/soak.py --only sqlite --minutes 30 --json soak.json
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from _contest import Sheet, main, options
from _soak_samples import Sample, Sampler, growth
from service import POINTS_PER_SECOND, Asking, load, lost, server

sys.path.insert(0, str(Path(__file__).parent.parent))

from _soak_work import OtherWork

from tests.server.conftest import Live
from tests.server.postgres import why_not

RUNS = 50
QUIET = 0.02
"""Seconds per second that the server's threads may wait for a core in a quiet second."""
FLAT = ("MB", "handles", "sockets", "threads")
_MARK = "CLEW_SOAK"
"""A variable of every process that a soak starts, so that those that stay are noticed."""
WARM_SECONDS = 300.0
"""Shorter soaks state growth without a limit: caches are still being filled."""


def pin(pid: int, choose: Callable[[Iterable[int]], int]) -> None:
    """Let all threads of a process, and its children from now on, use one core: the first (`min`) or the last one."""
    core = choose(range(os.cpu_count() or 1))
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), {core})


def server_and_database(live: Live) -> list[psutil.Process]:
    """The processes of the server and of the database that was started for it."""
    assert live.process is not None
    started = psutil.Process().create_time()
    database = [each for each in psutil.process_iter(["name", "create_time"]) if each.info["name"] == "postgres"]
    return [psutil.Process(live.process.pid), *(each for each in database if each.info["create_time"] > started)]


def prefer(live: Live) -> None:
    """Give the server and its database real-time priority, as if nothing else were on their core."""
    for process in server_and_database(live):
        for thread in process.threads():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(thread.id, os.SCHED_RR, os.sched_param(1))


def soak(sheet: Sheet, folder: Path, kind: str, minutes: float, *, priority: bool) -> dict[str, Any]:
    """Run everything on one database; return the samples."""
    folder.mkdir()
    pin(os.getpid(), max)
    work = OtherWork(folder / "work", is_nice=priority)
    os.environ[_MARK] = uuid.uuid4().hex
    with server(folder, kind) as live:
        assert live.process is not None
        pid = live.process.pid
        for process in server_and_database(live):
            pin(process.pid, min)
        if priority:
            prefer(live)
        sampler = Sampler(lambda: {"server": [pid], **work.pids}, lambda: _database_bytes(live, kind))
        asking = Asking(live)
        work.start()
        sampler.start()
        if priority:
            os.sched_setscheduler(
                0, os.SCHED_RR, os.sched_param(1)
            )  # what reports and requests stands for other machines
        asking.start()
        try:
            results = load(live, folder / "runs", RUNS, minutes * 60, processes=2)
        finally:
            sampler.over.set()
            asking.over.set()
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            work.stop()
        missing = lost(live, folder / "runs", results["written"])
    left = [process.pid for process in psutil.process_iter() if _is_ours(process)]
    _report_latency(sheet, kind, results, sampler)
    _report_work(sheet, kind, work, len(left))
    sheet.bar(f"{kind}: points lost or doubled, of {results['written']:,}", missing, 0, "points", lower=True)
    sheet.bar(f"{kind}: overview, p99", 1000 * float(np.percentile(asking.times, 99)), 300, "ms", lower=True)
    _report_slopes(sheet, kind, sampler.samples)
    return {"samples": sampler.samples, "failures": work.failed}


def _report_latency(sheet: Sheet, kind: str, results: Mapping[str, Any], sampler: Sampler) -> None:
    inside, when = 1000 * np.array(results["inside"]), np.array(results["when"]) - sampler.begin
    rows = sampler.samples
    ends = np.array([row["seconds"] for row in rows])
    waits = np.diff([row["server core wait s"] for row in rows], prepend=0.0)
    waits /= np.maximum(np.diff(ends, prepend=0.0), 0.1)
    waited = waits[np.clip(np.searchsorted(ends, when), 0, len(rows) - 1)]
    quiet = inside[waited < QUIET]
    sheet.bar(f"{kind}: p99 inside the server", float(np.percentile(inside, 99)), 50, "ms", lower=True)
    sheet.state(f"{kind}: p50 inside the server", float(np.percentile(inside, 50)), "ms")
    if len(quiet):
        sheet.state(f"{kind}: p99 in quiet seconds", float(np.percentile(quiet, 99)), "ms")
    sheet.state(f"{kind}: batches in quiet seconds", len(quiet) / len(inside), "")
    sheet.state(f"{kind}: points per second", results["written"] / ends[-1], "1/s")
    first, last = rows[0], rows[-1]
    seconds = last["seconds"] - first["seconds"]
    for name, key in (("server's use of a core", "server cpu s"), ("server waited for a core", "server core wait s")):
        sheet.state(f"{kind}: {name}", (last[key] - first[key]) / seconds, "s/s")
    cores = os.cpu_count() or 1
    for name, key in (("all cores busy", "busy s"), ("stolen", "steal s"), ("waited for the disk", "disk wait s")):
        sheet.state(f"{kind}: {name}", (last[key] - first[key]) / seconds / cores, "of 1")
    sheet.state(f"{kind}: load average", float(np.mean([row["load"] for row in rows])), "")


def _report_work(sheet: Sheet, kind: str, work: OtherWork, left: int) -> None:
    for name in work.pids:
        sheet.state(f"{kind}: {name}, finished", work.done[name], "commands")
    sheet.state(f"{kind}: workers killed", work.workers_killed, "workers")
    sheet.bar(f"{kind}: commands that failed", len(work.failed), 0, "commands", lower=True)
    sheet.bar(f"{kind}: processes that stayed", left, 0, "processes", lower=True)
    for message in work.failed[:3]:
        print(message, flush=True)


def _report_slopes(sheet: Sheet, kind: str, samples: list[Sample]) -> None:
    for key in FLAT:
        mean, grown = growth(samples, f"server {key}")
        sheet.state(f"{kind}: server {key}, mean", mean, "")
        if samples[-1]["seconds"] < WARM_SECONDS:
            sheet.state(f"{kind}: growth of the server's {key}", grown / max(mean, 1.0), "of mean")
        else:
            sheet.bar(f"{kind}: growth of the server's {key}", grown / max(mean, 1.0), 0.1, "of mean", lower=True)
    for name in ("prepare", "study", "training"):
        mean, grown = growth(samples, f"{name} MB")
        sheet.state(f"{kind}: {name} MB, mean", mean, "MB")
        sheet.state(f"{kind}: {name} MB, growth", grown, "MB")
    mean, grown = growth(samples, "database MB")
    points = POINTS_PER_SECOND * (samples[-1]["seconds"] - samples[len(samples) // 3]["seconds"])
    sheet.state(f"{kind}: database, bytes per point", 1e6 * grown / max(points, 1.0), "B")


def _database_bytes(live: Live, kind: str) -> float:
    if kind == "sqlite":
        return float(sum(path.stat().st_size for path in live.folder.glob("clew.sqlite*")))
    import psycopg

    with psycopg.connect(live.options[-1]) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert row is not None
    return float(row[0])


def _is_ours(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.pid != os.getpid() and process.environ().get(_MARK) == os.environ[_MARK]
    return False


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    minutes = arguments.minutes or (1.0 if arguments.quick else 60.0)
    kinds = [arguments.only] if arguments.only else ["sqlite", "postgresql"]
    if why_not() and "postgresql" in kinds:
        print(f"postgresql is left out: {why_not()}")
        kinds.remove("postgresql")
    details = {kind: soak(sheet, folder / kind, kind, minutes, priority=arguments.priority) for kind in kinds}
    conditions = {"minutes": minutes, "runs": RUNS, "priority": arguments.priority}
    return {**conditions, "cores": os.cpu_count(), "threads": threading.active_count(), **details}


if __name__ == "__main__":
    parser = options(__doc__, "one minute instead of an hour")
    parser.add_argument("--only", choices=("sqlite", "postgresql"), help="one database")
    text = "real-time priority for the server, its database and what reports, and less than usual for the other work: "
    text += "for a machine where other programs run (needs root)"
    parser.add_argument("--priority", action="store_true", help=text)
    parser.add_argument("--minutes", type=float, help="of load on each database")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything it started is stopped
    sys.exit(main(measure, parser))
