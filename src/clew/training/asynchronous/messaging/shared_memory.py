"""Memory that several processes of one host share, so that tensors need not be sent.

The memory has no name that could be left behind. Another process opens it through `/proc/PID/fd` of its owner.
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


class SharedLocation(NamedTuple):
    """Where a tensor is in the shared memory of its owner."""

    file: int
    """The file descriptor in the owner's process."""
    offset: int
    """Bytes before the tensor."""


class SharedMemory:
    """The shared memory that this process allocated, and what it has opened of other processes."""

    def __init__(self) -> None:
        self._allocated: dict[int, Tensor] = {}
        self._opened: dict[tuple[int, int], Tensor] = {}

    def allocate(self, shape: Shape) -> Tensor:
        """Allocate a tensor that other processes can open for as long as this process lives."""
        size = max(1, shape[1] * shape[0].itemsize)
        file = os.memfd_create("clew")
        os.fchmod(file, 0o600)
        os.ftruncate(file, size)
        self._allocated[file] = _map_file(file, size)
        return _view(self._allocated[file], 0, shape)

    def locate(self, tensor: Tensor) -> SharedLocation | None:
        """Return where other processes find a tensor; None if this process did not allocate it here."""
        address, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        for file, memory in self._allocated.items():
            offset = address - memory.data_ptr()
            if offset >= 0 and offset + size <= len(memory):
                return SharedLocation(file, offset)
        return None

    def open(self, process: int, location: SharedLocation, shape: Shape) -> Tensor:
        """Return a tensor of another process of this host.

        Raises:
            OSError: It is not accessible from this process, or belongs to another user.
        """
        memory = self._opened.get((process, location.file))
        if memory is None:
            file = os.open(f"/proc/{process}/fd/{location.file}", os.O_RDWR)
            try:
                if os.fstat(file).st_uid != os.geteuid():
                    raise PermissionError(f"the memory of process {process} belongs to another user")
                memory = self._opened[process, location.file] = _map_file(file, os.fstat(file).st_size)
            finally:
                os.close(file)
        return _view(memory, location.offset, shape)


class WakeUpPipe:
    """A pipe through which other processes of this host end this process's wait at once, without polling."""

    def __init__(self) -> None:
        self._read_end, self.file = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._peers: dict[int, int] = {}

    def wait(self, seconds: float) -> bool:
        """Wait until another process wakes this one, or `seconds` pass; return whether it was woken."""
        woken = bool(select.select([self._read_end], [], [], seconds)[0])
        if woken:
            os.read(self._read_end, 1 << 16)
        return woken

    def wake(self, process: int, file: int) -> None:
        """Wake another process through its pipe. A process that is gone, or whose pipe is full, is ignored."""
        with contextlib.suppress(OSError):
            if process not in self._peers:
                self._peers[process] = os.open(f"/proc/{process}/fd/{file}", os.O_WRONLY | os.O_NONBLOCK)
            os.write(self._peers[process], b"!")

    def close(self) -> None:
        """Close all ends of pipes."""
        for file in (self._read_end, self.file, *self._peers.values()):
            os.close(file)


class MemoryProbe:
    """Checks whether two processes can open each other's memory. Equal process numbers on one host do not suffice: the
    processes may be in different containers."""

    def __init__(self, shared: SharedMemory) -> None:
        self.pattern = list(secrets.token_bytes(16))
        memory = shared.allocate((torch.uint8, len(self.pattern)))
        memory.copy_(torch.tensor(self.pattern, dtype=torch.uint8))
        location = shared.locate(memory)
        assert location is not None
        self.file = location.file

    @staticmethod
    def is_visible(shared: SharedMemory, process: int, file: int, pattern: list[int]) -> bool:
        """Return whether the probe of another process can be read from this one."""
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            shape = (torch.uint8, len(pattern))
            return shared.open(process, SharedLocation(file, 0), shape).tolist() == pattern
        return False


def shared_memory_available() -> bool:
    """Return whether this system has memory files and `/proc`."""
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


def _map_file(file: int, size: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)


def _view(memory: Tensor, offset: int, shape: Shape) -> Tensor:
    return memory[offset : offset + shape[1] * shape[0].itemsize].view(shape[0])
