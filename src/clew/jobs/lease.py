"""A piece of work handed out for a while. It is a file, which both sides can see on a shared file system."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from clew.core.files import write_text
from clew.errors import RunError

_BEAT = 0.5
"""Seconds between two signs of life."""


class Lease:
    """It holds as long as the file is there; the file's time is the holder's sign of life, and what is written in it
    is what the holder is told: to stop, and why.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = False
        """Whether it was taken back, as far as the holder has looked."""
        self.told = ""
        """Why the holder is to stop; '' to go on."""
        self._next = 0.0

    def grant(self) -> None:
        """Hand it out; from now on silence counts.

        Raises:
            RunError: it was handed out before.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.path.touch(exist_ok=False)
        except FileExistsError:
            raise RunError(f"{self.path}: handed out before") from None

    def beat(self, *, now: bool = False) -> None:
        """The holder's sign of life, and its look at what it is told; cheap enough for every step."""
        moment = time.monotonic()
        if moment < self._next and not now:
            return
        self._next = moment + _BEAT
        try:
            os.utime(self.path)
            self.told = self.path.read_text() if self.path.stat().st_size else ""
        except FileNotFoundError:
            self.lost = True

    def seen(self) -> float | None:
        """When the holder last gave a sign of life, by the clock of the file system; None where it is taken back."""
        try:
            return self.path.stat().st_mtime
        except FileNotFoundError:
            return None

    def tell(self, why: str) -> None:
        """Have the holder stop, ready to go on."""
        write_text(self.path, why)

    def revoke(self) -> None:
        """Take it back; whoever held it must not write another word."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
