"""Posts over MPI: a header, and the tensor straight from its memory. Nothing is pickled.

The library is the one mpi4py was built for: the site's own where there is one, PyPI's mpich on a laptop.
"""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor

from clew.comm.base import Facts, Message, Post, as_bytes, empty, pack, unpack

_HEADER, _TENSOR = 71, 72
_SPIN, _NAP = 0.0003, 0.00005
"""Seconds of looking without a pause, and of a pause: who looks all the time slows down whoever shares the core, which
two processors of a virtual machine often do."""


def library() -> str:
    """Which MPI this is."""
    from mpi4py import MPI

    return str(MPI.Get_library_version().splitlines()[0].strip("\0 "))


class Mpi(Post):
    """The ranks of a communicator. A rank that dies ends the job: that is MPI's way."""

    def __init__(self, communicator: Any = None) -> None:
        super().__init__()
        from mpi4py import MPI

        self._mpi, self._comm = MPI, (communicator or MPI.COMM_WORLD).Dup()
        self.here, self.ranks = self._comm.rank, self._comm.size
        self._rooms: dict[int, Tensor] = {}
        """Where each rank's last tensor was put."""

    def receive(self, timeout: float | None = None) -> Message | None:
        status = self._mpi.Status()
        if not self._wait(timeout, status):
            return None
        peer, header = status.Get_source(), bytearray(status.Get_count(self._mpi.BYTE))
        self._comm.Recv([header, self._mpi.BYTE], peer, _HEADER)
        kind, facts, shape = unpack(header)
        tensor = None if shape is None else self._tensor(peer, shape)
        self._count(tensor, out=False)
        return Message(peer, kind, facts, tensor)

    def close(self) -> None:
        self._comm.Free()

    def _post(self, peer: int, kind: str, facts: Facts, tensor: Tensor | None, *, lent: bool) -> None:
        self._comm.Send([pack(kind, facts, tensor), self._mpi.BYTE], peer, _HEADER)
        if tensor is not None:
            self._comm.Send([as_bytes(tensor), self._mpi.BYTE], peer, _TENSOR)

    def _tensor(self, peer: int, shape: tuple[Any, int]) -> Tensor:
        """The tensor that follows a header."""
        wanted = self.landing.pop(peer, None)
        room = self._rooms.get(peer) if wanted is None else wanted
        if room is None or (room.dtype, room.numel()) != shape:
            room = empty(shape)
        self._comm.Recv([as_bytes(room), self._mpi.BYTE], peer, _TENSOR)
        if wanted is None:
            self._rooms[peer] = room
        return room

    def _wait(self, timeout: float | None, status: Any) -> bool:
        """MPI waits by looking again and again: here with pauses after a while, so that others may have the core.

        One thread receives: what was seen is there when it is taken. Matched probes fail with Open MPI over libfabric.
        """
        begun = time.perf_counter()
        while True:
            if self._comm.Iprobe(tag=_HEADER, status=status):
                return True
            waited = time.perf_counter() - begun
            if timeout is not None and waited > timeout:
                return False
            if waited > _SPIN or self.patient:
                time.sleep(_NAP)
