"""Runs made by hand, for states that a training would take long to reach."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from clew.ledger import Run, Writer
from clew.ledger.records import SCHEMA

CONFIG = {"recipe": "tracking", "train": {"epochs": 3, "workers": 1}}


def fresh(path: Path) -> Run:
    """A run folder with nothing done in it."""
    return Run.create(path, config=CONFIG, environment={"host": "here"})


def begin(writer: Writer, *, pid: int | None = None, host: str | None = None) -> None:
    """Write the start of a process: this one on this machine, unless told otherwise."""
    pid, host = pid or os.getpid(), host or socket.gethostname()
    writer.write("start", schema=SCHEMA, host=host, pid=pid, rank=0, ranks=1)
