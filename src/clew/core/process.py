"""Processes: whether one is still running, and a name for a process that no later process can have.

A process number (pid) is used again by the operating system after its process has ended. The functions here therefore
also compare the time at which the process was created.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import psutil

_TOLERANCE = 1.0
"""Seconds by which two readings of the creation time of one process may differ."""


def safe_path() -> tuple[str, ...]:
    """Return the options of Python with which a helper process imports from where this process does.

    `python -m` and `python -c` also import from the working folder. That may be another person's: a file `json.py` in
    it would run.

    Returns:
        `-P`, or nothing if this process imports from the working folder too.
    """
    return () if {"", str(Path.cwd())} & set(sys.path) else ("-P",)


def start_helpers_safely() -> None:
    """Let the helper processes of Python's own `multiprocessing` start with `safe_path`, too."""
    from multiprocessing import util

    options = [*util._args_from_interpreter_flags(), *safe_path()]  # type: ignore[attr-defined]
    util._args_from_interpreter_flags = lambda: list(dict.fromkeys(options))  # type: ignore[attr-defined]


def running_process(
    pid: int, *, created: float | None = None, created_before: float | None = None
) -> psutil.Process | None:
    """Return the process with this number if it is running on this host.

    Args:
        pid: Number of the process.
        created: Creation time of the expected process, in seconds since 1970. Another process with the same number
            does not count.
        created_before: Latest creation time of the expected process, in seconds since 1970. A process that was
            created later does not count.

    Returns:
        The process, or None if it has ended, is a zombie, or is another process with the same number.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        creation = process.create_time()
    except psutil.NoSuchProcess:
        return None
    if created is not None and abs(creation - created) >= _TOLERANCE:
        return None
    if created_before is not None and creation > created_before + _TOLERANCE:
        return None
    return process


def is_running(pid: int, *, created: float | None = None, created_before: float | None = None) -> bool:
    """Return whether a process is running on this host. See `running_process` for the arguments."""
    return running_process(pid, created=created, created_before=created_before) is not None


def process_identity() -> str:
    """Return the identity of this process: host name, process number and creation time, separated by spaces."""
    return f"{socket.gethostname()} {os.getpid()} {psutil.Process().create_time():.2f}"


def is_identity_running(identity: str) -> bool:
    """Return whether the process with this identity is running.

    Args:
        identity: A value returned by `process_identity`, on this host or on another.

    Returns:
        True for a process on another host, because its state is not known here.
    """
    host, pid, created = identity.split()
    return host != socket.gethostname() or is_running(int(pid), created=float(created))
