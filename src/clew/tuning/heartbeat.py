"""Who coordinates a study now: a file each, touched as long as its owner lives."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from clew.core.background import repeated
from clew.core.files import write_text
from clew.core.process import is_identity_running, process_identity
from clew.tuning.folder import StudyFolder

_BEAT = 2.0
"""Seconds between two signs of life."""


@contextlib.contextmanager
def heartbeat(file: Path) -> Iterator[None]:
    """Be seen by others while the block runs."""
    write_text(file, json.dumps({"process": process_identity(), "since": time.time()}))

    def beat() -> None:
        with contextlib.suppress(OSError):
            os.utime(file)

    try:
        with repeated(beat, every=_BEAT, name="sign of life"):
            yield
    finally:
        file.unlink(missing_ok=True)


def is_alive(file: Path, seen: dict[str, tuple[float, float]], patience: float) -> bool:
    """Whether the coordinator behind a file gives signs of life; `seen` remembers when which was last noticed."""
    try:
        told, stamp = json.loads(file.read_text()), file.stat().st_mtime
    except FileNotFoundError:
        return False
    if not is_identity_running(told["process"]):
        return False
    if seen.get(file.name, (None,))[0] != stamp:
        seen[file.name] = (stamp, time.monotonic())
    return time.monotonic() - seen[file.name][1] < patience or told["process"].split()[0] == socket.gethostname()


def active_coordinators(folder: StudyFolder) -> list[str]:
    """Processes that coordinate a study now, as `pid N on HOST`. For those of other hosts a sign of life is waited for:
    whoever was taken for dead in error is only helped."""
    found = []
    for file in sorted(folder.coordinators.iterdir()):
        with contextlib.suppress(FileNotFoundError, psutil.Error):
            host, pid, _ = json.loads(file.read_text())["process"].split()
            if is_alive(file, {}, 0.0) or (host != socket.gethostname() and _is_touched(file)):
                found.append(f"pid {pid} on {host}")
            else:
                file.unlink(missing_ok=True)
    return found


def _is_touched(file: Path) -> bool:
    """Whether a file is touched within three beats."""
    before, end = file.stat().st_mtime, time.monotonic() + 3 * _BEAT
    while time.monotonic() < end:
        if file.stat().st_mtime != before:
            return True
        time.sleep(0.2)
    return False
