"""Trainings on several hosts: all workers together by torchrun, or a master that workers join."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from clew.bench.hosts import Host
from clew.errors import WorkerError
from clew.ledger import Run

CLEW = (sys.executable, "-c", "from clew.cli.main import run; run()")
_PORT, _LOOK, _GOODBYE = 29500, 0.2, 15.0
"""Where the master, or torchrun, listens; seconds between two looks, and for workers to end after their master."""
_Process = subprocess.Popen[str]


def train(
    hosts: Sequence[Host], command: Sequence[str], run: Run, logs: Path, *, central: bool, patience: float
) -> Iterator[None]:
    """Do a `clew train` command with a worker on every host but the first, on which the master is if there is one.

    Yields now and then until it is over. What processes print goes to `logs`.

    Raises:
        WorkerError: one of them failed, or it took longer than `patience` seconds.
    """
    started: dict[str, _Process] = {}
    end = time.monotonic() + patience
    try:
        begin = _elastic(hosts, command, run, logs, started) if central else _together(hosts, command, logs, started)
        for _ in begin:
            _check(started, logs, end)
            yield
        lead = next(iter(started.values()))
        while lead.poll() is None:
            _check(started, logs, end)
            yield
            time.sleep(_LOOK)
        _wait(started, _GOODBYE)
        _check(started, logs, end)
    finally:
        _kill(started)


def _together(
    hosts: Sequence[Host], command: Sequence[str], logs: Path, started: dict[str, _Process]
) -> Iterator[None]:
    """All at once, by torchrun."""
    workers = hosts[1:]
    launch = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(workers)}", "--nproc-per-node=1"]
    launch += [f"--master-addr={workers[0].address}", f"--master-port={_PORT}"]
    for number, host in enumerate(workers):
        words = [*launch, f"--node-rank={number}", "--no-python", *CLEW, *command]
        started[host.name] = _start(host, words, logs)
    yield


def _elastic(
    hosts: Sequence[Host], command: Sequence[str], run: Run, logs: Path, started: dict[str, _Process]
) -> Iterator[None]:
    """The master first; workers when it listens."""
    master, *workers = hosts
    listen = ["--workers", "0", "--listen", f"{master.name}:{_PORT}"]
    started[master.name] = _start(master, [*CLEW, *command, *listen], logs)
    while not run.address_file.exists():
        yield
        time.sleep(_LOOK)
    for host in workers:
        join = ["worker", f"{master.name}:{_PORT}", "--token-file", str(run.token_file)]
        started[host.name] = _start(host, [*CLEW, *join], logs)


def _start(host: Host, command: Sequence[str], logs: Path) -> _Process:
    with (logs / f"{host.name}.log").open("w") as log:
        return host.start(command, output=log, OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"))


def _check(started: dict[str, _Process], logs: Path, end: float) -> None:
    for name, process in started.items():
        if process.poll():
            told = _last_words(logs / f"{name}.log") or f"exit code {process.returncode}"
            raise WorkerError(f"{name}: {told} (see {logs / name}.log)")
    if time.monotonic() > end:
        raise WorkerError(f"it did not end in time (see {logs})")


def _last_words(log: Path) -> str:
    """What a process said of its failure."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    said = [line.removeprefix("clew: ") for line in lines if line.startswith("clew: ")]
    return (said or lines or [""])[0 if said else -1]


def _wait(started: dict[str, _Process], seconds: float) -> None:
    end = time.monotonic() + seconds
    for process in started.values():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.01, end - time.monotonic()))


def _kill(started: dict[str, _Process]) -> None:
    """Those that still run, with what they started."""
    for process in started.values():
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
