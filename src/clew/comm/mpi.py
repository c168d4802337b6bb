"""Posts over MPI: a header, and the tensor straight from its memory. Nothing is pickled.

The library is the one mpi4py was built for: the site's own where there is one, PyPI's mpich on a laptop.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from clew.comm.base import Message, Post, as_bytes, empty, pack, unpack

_HEADER, _TENSOR = 71, 72
_SPIN, _NAP = 0.0005, 0.0001
"""Seconds of looking without a pause, and of a pause."""


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
        self._room: dict[int, Tensor] = {}

    def send(
        self,
        peer: int,
        kind: str,
        facts: Mapping[str, Any] | None = None,
        tensor: Tensor | None = None,
        *,
        lent: bool = False,
    ) -> None:
        self._comm.Send([pack(kind, facts, tensor), self._mpi.BYTE], peer, _HEADER)
        if tensor is not None:
            self._comm.Send([as_bytes(tensor), self._mpi.BYTE], peer, _TENSOR)
        self._count(tensor, out=True)

    def receive(self, timeout: float | None = None) -> Message | None:
        status = self._mpi.Status()
        found = self._wait(timeout, status)
        if found is None:
            return None
        peer, header = status.Get_source(), bytearray(status.Get_count(self._mpi.BYTE))
        found.Recv([header, self._mpi.BYTE])
        kind, facts, shape = unpack(header)
        tensor = None
        if shape is not None:
            tensor = self._room_for(peer, shape)
            self._comm.Recv([as_bytes(tensor), self._mpi.BYTE], peer, _TENSOR)
        self._count(tensor, out=False)
        return Message(peer, kind, facts, tensor)

    def close(self) -> None:
        self._comm.Free()

    def _wait(self, timeout: float | None, status: Any) -> Any:
        """MPI waits by looking again and again: here with pauses, so that others may have the core."""
        begun = time.perf_counter()
        while True:
            found = self._comm.Improbe(tag=_HEADER, status=status)
            if found is not None:
                return found
            waited = time.perf_counter() - begun
            if timeout is not None and waited > timeout:
                return None
            time.sleep(0 if waited < _SPIN else _NAP)

    def _room_for(self, peer: int, shape: tuple[Any, int]) -> Tensor:
        room = self._room.get(peer)
        if room is None or (room.dtype, room.numel()) != shape:
            room = self._room[peer] = empty(shape)
        return room
