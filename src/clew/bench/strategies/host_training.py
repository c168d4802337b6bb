"""Training on several virtual hosts: all workers with torchrun, or a master that workers join."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clew.bench.strategies.hosts import Host
from clew.core.log_tail import last_message, log_lines, without_prefix
from clew.errors import WorkerError
from clew.runs import Run

CLEW = (sys.executable, "-c", "from clew.cli.main import run; run()")
_PORT, _POLL_SECONDS, _END_SECONDS = 29500, 0.2, 15.0
"""Port of the master or of torchrun; time between two checks; time for workers to end after their master."""
_Process = subprocess.Popen[str]


@dataclass
class HostTeam:
    """One training on several hosts: one worker per host, except the first host, which is for the master."""

    hosts: Sequence[Host]
    run: Run
    logs: Path
    """Folder for the output of the processes."""
    threads: int
    """Threads per worker."""
    time_limit: float
    """Seconds after which the training is stopped."""
    _started: dict[str, _Process] = field(default_factory=dict)

    def train(self, command: Sequence[str], *, asynchronous: bool) -> Iterator[None]:
        """Run a `clew train` command. Yields several times per second until it ends.

        Raises:
            WorkerError: A process failed, or the time limit was exceeded.
        """
        end = time.monotonic() + self.time_limit
        try:
            for _ in self._elastic(command) if asynchronous else self._together(command):
                _check(self._started, self.logs, end)
                yield
            lead = next(iter(self._started.values()))
            while lead.poll() is None:
                _check(self._started, self.logs, end)
                yield
                time.sleep(_POLL_SECONDS)
            _wait(self._started, _END_SECONDS)
            _check(self._started, self.logs, end)
        finally:
            _kill(self._started)

    def _together(self, command: Sequence[str]) -> Iterator[None]:
        """Start all workers with torchrun."""
        workers = self.hosts[1:]
        launch = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(workers)}", "--nproc-per-node=1"]
        launch += [f"--master-addr={workers[0].address}", f"--master-port={_PORT}"]
        for number, host in enumerate(workers):
            self._start(host, [*launch, f"--node-rank={number}", "--no-python", *CLEW, *command])
        yield

    def _elastic(self, command: Sequence[str]) -> Iterator[None]:
        """Start the master, and the workers when it listens."""
        master, *workers = self.hosts
        address = f"{master.name}:{_PORT}"
        self._start(master, [*CLEW, *command, "--workers", "0", "--listen", address])
        while not self.run.address_file.exists():
            yield
            time.sleep(_POLL_SECONDS)
        for host in workers:
            self._start(host, [*CLEW, "worker", address, "--token-file", str(self.run.token_file)])

    def _start(self, host: Host, command: Sequence[str]) -> None:
        with (self.logs / f"{host.name}.log").open("w") as log:
            self._started[host.name] = host.start(command, output=log, OMP_NUM_THREADS=str(self.threads))


def _check(started: dict[str, _Process], logs: Path, end: float) -> None:
    for name, process in started.items():
        if process.poll():
            message = _last_words(logs / f"{name}.log") or f"exit code {process.returncode}"
            raise WorkerError(f"{name}: {message} (see {logs / name}.log)")
    if time.monotonic() > end:
        raise WorkerError(f"it exceeded the time limit (see {logs})")


def _last_words(log: Path) -> str:
    """What a process said of its failure."""
    errors = [line for line in log_lines(log) if line.startswith("clew: ")]
    return without_prefix(errors[0]) if errors else last_message(log, default="")


def _wait(started: dict[str, _Process], seconds: float) -> None:
    end = time.monotonic() + seconds
    for process in started.values():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.01, end - time.monotonic()))


def _kill(started: dict[str, _Process]) -> None:
    """Kill the processes that still run, with their children."""
    for process in started.values():
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
