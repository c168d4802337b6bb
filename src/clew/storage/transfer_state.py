"""State and progress of a transfer, and the location of the cache folder.

The saved state lets another process resume the transfer.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clew.core.files import write_text

_PAUSE = 0.05
"""Seconds between two writes of the state: with thousands of parts a write takes time."""


def cache_folder() -> Path:
    """The cache folder: $CLEW_CACHE, or `clew` in the user's cache folder."""
    folder = os.environ.get("CLEW_CACHE")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clew"


@dataclass
class TransferProgress:
    """Progress of a transfer; sizes in bytes."""

    total: int = 0
    done: int = 0
    resumed: int = 0
    """The part of `done` that an earlier try had transferred."""
    files: int = 0
    unchanged: int = 0
    """Number of files that already had the same content."""
    name: str = ""
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the end, or None at the start."""
        moved = self.done - self.resumed
        return (time.monotonic() - self.started) * (self.total - self.done) / moved if moved > 0 else None


ProgressCallback = Callable[[TransferProgress], None]


class TransferState:
    """The parts of one file that were transferred. A saved state with another `identity` is ignored."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path, self._identity = path, dict(identity)
        self._saved = 0.0
        self.parts: dict[int, Any] = {}
        """Receipts of the store by part number."""
        self.memory: dict[str, Any] = {}
        """State of the store's writer."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            saved = json.loads(path.read_text())
            if saved["about"] == self._identity:
                self.parts = {int(number): receipt for number, receipt in saved["parts"].items()}
                self.memory = dict(saved["memory"])

    def add(self, number: int, receipt: Any) -> None:
        """Record a part. The state is saved at once, or a moment later if it was just saved."""
        self.parts[number] = receipt
        if time.monotonic() - self._saved > _PAUSE:
            self.save()

    def save(self) -> None:
        """Save the state."""
        data = {"about": self._identity, "parts": self.parts, "memory": self.memory}
        write_text(self._path, json.dumps(data))
        self._saved = time.monotonic()

    def drop(self) -> None:
        """Forget all parts and remove the saved state."""
        self.parts, self.memory = {}, {}
        self._path.unlink(missing_ok=True)
