"""Which processes coordinate a study now: one file per coordinator, touched while the coordinator is alive."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from clew.core.background import run_repeatedly
from clew.core.files import write_text
from clew.core.process import is_identity_running, process_identity
from clew.tuning.folder import StudyFolder

INTERVAL = 2.0
"""Seconds between two heartbeats."""


@contextlib.contextmanager
def heartbeat(file: Path) -> Iterator[None]:
    """Create a file and touch it every two seconds until the block ends; then remove it."""
    write_text(file, json.dumps({"process": process_identity(), "since": time.time()}))

    def touch() -> None:
        with contextlib.suppress(OSError):
            os.utime(file, follow_symlinks=False)

    try:
        with run_repeatedly(touch, every=INTERVAL, name="heartbeat"):
            yield
    finally:
        file.unlink(missing_ok=True)


def is_alive(file: Path, last_changes: dict[str, tuple[float, float]], timeout: float) -> bool:
    """Return whether the coordinator of a heartbeat file is alive.

    Args:
        file: The heartbeat file.
        last_changes: By file name: the last modification time, and when this process noticed it. Updated here.
        timeout: Seconds without a heartbeat after which a coordinator on another host counts as dead.
    """
    try:
        content, modified = json.loads(file.read_text()), file.stat().st_mtime
    except FileNotFoundError:
        return False
    if not is_identity_running(content["process"]):
        return False
    if last_changes.get(file.name, (None,))[0] != modified:
        last_changes[file.name] = (modified, time.monotonic())
    recent = time.monotonic() - last_changes[file.name][1] < timeout
    return recent or content["process"].split()[0] == socket.gethostname()


def active_coordinators(folder: StudyFolder) -> list[str]:
    """Return the processes that coordinate a study now, as `pid N on HOST`, and remove files of dead ones.

    For a coordinator on another host this waits for a heartbeat, up to six seconds.
    """
    active = []
    for file in sorted(folder.coordinators.iterdir()):
        with contextlib.suppress(FileNotFoundError, psutil.Error):
            host, pid, _ = json.loads(file.read_text())["process"].split()
            if is_alive(file, {}, 0.0) or (host != socket.gethostname() and _is_touched(file)):
                active.append(f"pid {pid} on {host}")
            else:
                file.unlink(missing_ok=True)
    return active


def _is_touched(file: Path) -> bool:
    """Wait up to three intervals, and return whether the file was touched."""
    before, end = file.stat().st_mtime, time.monotonic() + 3 * INTERVAL
    while time.monotonic() < end:
        if file.stat().st_mtime != before:
            return True
        time.sleep(0.2)
    return False
