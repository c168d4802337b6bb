"""Posts over MPI: a header, and the tensor straight from its memory. Nothing is pickled.

The library is the one mpi4py was built for: the site's own where there is one, PyPI's mpich on a laptop.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from clew.comm.base import Message, Post, as_bytes, empty, pack, unpack

_HEADER, _USUAL, _OTHER = 71, 72, 73
"""Tags: a tensor like the first one between two ranks is expected, and received where it is wanted as it comes."""
_SPIN, _NAP = 0.005, 0.0001
"""Seconds of looking without a pause, and of a pause."""


def library() -> str:
    """Which MPI this is."""
    from mpi4py import MPI

    return str(MPI.Get_library_version().splitlines()[0].strip("\0 "))


@dataclass
class _Usual:
    """Two places for tensors of one kind from one rank; the first is the one being filled."""

    rooms: list[Tensor]
    request: Any = None


class Mpi(Post):
    """The ranks of a communicator. A rank that dies ends the job: that is MPI's way."""

    def __init__(self, communicator: Any = None) -> None:
        super().__init__()
        from mpi4py import MPI

        self._mpi, self._comm = MPI, (communicator or MPI.COMM_WORLD).Dup()
        self.here, self.ranks = self._comm.rank, self._comm.size
        self._given: dict[int, tuple[Any, int]] = {}
        """Type and size of the first tensor sent to each rank."""
        self._usual: dict[int, _Usual] = {}

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
            shape = (tensor.dtype, tensor.numel())
            tag = _USUAL if self._given.setdefault(peer, shape) == shape else _OTHER
            self._comm.Send([as_bytes(tensor), self._mpi.BYTE], peer, tag)
        self._count(tensor, out=True)

    def receive(self, timeout: float | None = None) -> Message | None:
        status = self._mpi.Status()
        found = self._wait(timeout, status)
        if found is None:
            return None
        peer, header = status.Get_source(), bytearray(status.Get_count(self._mpi.BYTE))
        found.Recv([header, self._mpi.BYTE])
        kind, facts, shape = unpack(header)
        tensor = None if shape is None else self._tensor(peer, shape)
        self._count(tensor, out=False)
        return Message(peer, kind, facts, tensor)

    def close(self) -> None:
        for usual in self._usual.values():
            usual.request.Cancel()
            usual.request.Wait()
        self._comm.Free()

    def _tensor(self, peer: int, shape: tuple[Any, int]) -> Tensor:
        """The tensor that follows a header. The next one like it is waited for at once, in a second place: what was
        received stays as it is until then."""
        usual = self._usual.get(peer)
        if usual is None:
            usual = self._usual[peer] = _Usual([empty(shape), empty(shape)])
            usual.request = self._expect(peer, usual.rooms[0])
        if shape != (usual.rooms[0].dtype, usual.rooms[0].numel()):
            other = empty(shape)
            self._comm.Recv([as_bytes(other), self._mpi.BYTE], peer, _OTHER)
            return other
        usual.request.Wait()
        usual.rooms.reverse()
        usual.request = self._expect(peer, usual.rooms[0])
        return usual.rooms[1]

    def _expect(self, peer: int, room: Tensor) -> Any:
        return self._comm.Irecv([as_bytes(room), self._mpi.BYTE], peer, _USUAL)

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
