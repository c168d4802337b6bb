"""What is remembered of a transfer, so that another process can go on with it; and the folder for such things."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clew.core.files import write_text

_PAUSE = 0.05
"""Seconds between two writes: a note of thousands of parts takes a while itself."""


def cache_folder() -> Path:
    """$CLEW_CACHE, or `clew` in the user's cache folder."""
    given = os.environ.get("CLEW_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clew"


class TransferState:
    """The parts of one file that are there. One about anything else is as good as none."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self._path, self._about = path, dict(about)
        self._saved = 0.0
        self.parts: dict[int, Any] = {}
        """Numbers of parts, with what the store said of each."""
        self.memory: dict[str, Any] = {}
        """The store's own."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            read = json.loads(path.read_text())
            if read["about"] == self._about:
                self.parts = {int(number): said for number, said in read["parts"].items()}
                self.memory = dict(read["memory"])

    def add(self, number: int, said: Any) -> None:
        """A part is there. It is written down at once, or, where one just was, with the next or by `save`."""
        self.parts[number] = said
        if time.monotonic() - self._saved > _PAUSE:
            self.save()

    def save(self) -> None:
        """Write it down."""
        data = {"about": self._about, "parts": self.parts, "memory": self.memory}
        write_text(self._path, json.dumps(data))
        self._saved = time.monotonic()

    def drop(self) -> None:
        """There is nothing to go on with."""
        self.parts, self.memory = {}, {}
        self._path.unlink(missing_ok=True)
