"""Runs that ended before their first step: their folders hold nothing but a message, and are used again."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from pathlib import Path

from clew.runs.folder import Run

_ENDED = ("failed", "interrupted", "stopped")
_PROGRESS = ("step", "validation", "checkpoint", "resume")


def never_trained(run: Run) -> bool:
    """Return whether a run has ended without a step, a checkpoint or samples of a bad batch."""
    if run.states() or run.replicas_folder.exists() or any(run.path.glob("bad-batch-*")):
        return False
    if any(True for stream in run.streams() for _ in run.reversed_records(stream, _PROGRESS)):
        return False
    return run.state in _ENDED


def remove_untrained(path: Path) -> None:
    """Remove the folder of a run that never trained. Any other folder is left as it is."""
    if not path.is_dir() or not never_trained(Run(path)):
        return
    # another process may do the same, and create its run here: only one of them renames the folder
    old = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}.old")
    with contextlib.suppress(FileNotFoundError):
        path.rename(old)
        if never_trained(Run(old)):
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(path)
