"""Memory that several processes of one host see: what is lent there is not copied, what is given is copied once.

It has no name that could be left behind: another process finds it through the number of the one that made it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import select
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from clew.training.asynchronous.messaging.transport import Shape


class Place(NamedTuple):
    """Where a tensor lies in the memory of the process that made it."""

    file: int
    """The number of an open file of that process."""
    first: int
    """Bytes before it."""


class Shared:
    """What this process made, and what it has seen of others."""

    def __init__(self) -> None:
        self._own: dict[int, Tensor] = {}
        self._seen: dict[tuple[int, int], Tensor] = {}

    def room(self, shape: Shape) -> Tensor:
        """A tensor that others can see, for as long as this process lives."""
        size = max(1, shape[1] * shape[0].itemsize)
        file = os.memfd_create("clew")
        os.ftruncate(file, size)
        self._own[file] = _mapped(file, size)
        return _view(self._own[file], 0, shape)

    def place(self, tensor: Tensor) -> Place | None:
        """Where others find a tensor; None if it is not of a room of this process."""
        here, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        for file, memory in self._own.items():
            first = here - memory.data_ptr()
            if first >= 0 and first + size <= len(memory):
                return Place(file, first)
        return None

    def see(self, process: int, place: Place, shape: Shape) -> Tensor:
        """A tensor of another process of this host.

        Raises:
            OSError: it cannot be seen from here.
        """
        known = self._seen.get((process, place.file))
        if known is None:
            file = os.open(f"/proc/{process}/fd/{place.file}", os.O_RDWR)
            try:
                known = self._seen[process, place.file] = _mapped(file, os.fstat(file).st_size)
            finally:
                os.close(file)
        return _view(known, place.first, shape)


class Bell:
    """Lets others of this host end this process's wait at once, so that it need not look again and again."""

    def __init__(self) -> None:
        self._heard, self.file = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._others: dict[int, int] = {}

    def wait(self, seconds: float) -> bool:
        """Until it rings, or so long; whether it rang."""
        rang = bool(select.select([self._heard], [], [], seconds)[0])
        if rang:
            os.read(self._heard, 1 << 16)
        return rang

    def ring(self, process: int, file: int) -> None:
        """Another's; one that rings already, or is gone, is left alone."""
        with contextlib.suppress(OSError):
            if process not in self._others:
                self._others[process] = os.open(f"/proc/{process}/fd/{file}", os.O_WRONLY | os.O_NONBLOCK)
            os.write(self._others[process], b"!")

    def close(self) -> None:
        """Ring no more."""
        for file in (self._heard, self.file, *self._others.values()):
            os.close(file)


class Probe:
    """Finds out whether two processes see each other's memory: both may believe to be number 7 on one host, and be in
    different containers."""

    def __init__(self, shared: Shared) -> None:
        self.word = list(secrets.token_bytes(16))
        room = shared.room((torch.uint8, len(self.word)))
        room.copy_(torch.tensor(self.word, dtype=torch.uint8))
        place = shared.place(room)
        assert place is not None
        self.file = place.file

    @staticmethod
    def sees(shared: Shared, process: int, file: int, word: list[int]) -> bool:
        """Whether another's probe is seen from here."""
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            return shared.see(process, Place(file, 0), (torch.uint8, len(word))).tolist() == word
        return False


def possible() -> bool:
    """Whether this system has such memory."""
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


def _mapped(file: int, size: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)


def _view(memory: Tensor, first: int, shape: Shape) -> Tensor:
    return memory[first : first + shape[1] * shape[0].itemsize].view(shape[0])
