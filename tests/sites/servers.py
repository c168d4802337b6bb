"""Servers for a test, on free ports of loopback, stopped at its end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest


def free_ports(count: int) -> list[int]:
    """Different free ports, low enough to add 10,000 to them, which SeaweedFS does."""
    ports: list[int] = []
    while len(ports) < count:
        with socket.socket() as probe, socket.socket() as twin:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            if port > 50_000 or port in ports:
                continue
            try:
                twin.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            ports.append(port)
    return ports


@dataclass
class Server:
    """A server process, and a check that it answers."""

    command: Sequence[str]
    log: Path
    ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    process: subprocess.Popen[bytes] | None = None

    def start(self, seconds: float = 180) -> None:
        """Start it and wait until it answers."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                cwd=self.cwd,
                start_new_session=True,
            )
        end = time.monotonic() + seconds
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                pytest.fail(f"{self.command[0]} did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it and all processes that it started."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    stop = kill


@contextlib.contextmanager
def public_folder(name: str) -> Iterator[Path]:
    """A folder that servers of other users can enter; folders of pytest are for their owner only."""
    with tempfile.TemporaryDirectory(prefix=f"clew-{name}-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def answers(port: int) -> bool:
    """Whether a process listens there."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of one megabyte, mounted in a new folder."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=777", "none", str(folder)], check=False).returncode:
        pytest.skip("a small disk can be mounted by root alone")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
