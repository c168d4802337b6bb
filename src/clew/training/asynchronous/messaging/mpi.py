"""Posts over MPI: a header, and the tensor straight from its memory. Nothing is pickled.

Between ranks of one host that see each other's memory a tensor does not travel where it lies in a room of its sender
and is lent, or where it may land in a room of its receiver: the header says where to look, or that it is there.

The library is the one mpi4py was built for: the site's own where there is one, PyPI's mpich on a laptop.
"""

from __future__ import annotations

import os
import time
from typing import Any

from torch import Tensor

from clew.training.asynchronous.messaging.shared_memory import Bell, Place, Probe, Shared, possible
from clew.training.asynchronous.messaging.transport import (
    Facts,
    Header,
    Message,
    Post,
    Shape,
    as_bytes,
    empty,
    heard_shape,
    pack,
    told_shape,
    unpack,
)

_HEADER, _TENSOR = 71, 72
_SPIN, _NAP, _REST = 0.0003, 0.00005, 0.005
"""Seconds of looking without a pause, of a pause, and of one that a bell may end: who looks all the time slows down
whoever shares the core, which two processors of a virtual machine often do."""


def library() -> str:
    """Which MPI this is."""
    from mpi4py import MPI

    return str(MPI.Get_library_version().splitlines()[0].strip("\0 "))


class Mpi(Post):
    """The ranks of a communicator. A rank that dies ends the job: that is MPI's way."""

    def __init__(self, communicator: Any = None, *, share: bool = True) -> None:
        """All ranks make theirs together. `share`: what can be seen is not sent; else as if on a host each."""
        super().__init__()
        from mpi4py import MPI

        self._mpi, self._comm = MPI, (communicator or MPI.COMM_WORLD).Dup()
        self.here, self.ranks = self._comm.rank, self._comm.size
        self._rooms: dict[int, Tensor] = {}
        """Where each rank's last tensor was put."""
        self._shared, self._bell = Shared(), Bell()
        self._near = self._neighbours() if share and possible() else {}
        """Processes and bells of the ranks that share memory with this one."""
        self._all_near = len(self._near) == self.ranks - 1
        self._lands: dict[int, tuple[Place, Shape]] = {}
        """Where an answer to a rank's last message may land."""

    def room(self, shape: Shape) -> Tensor:
        return self._shared.room(shape) if self._near else super().room(shape)

    def receive(self, timeout: float | None = None) -> Message | None:
        status = self._mpi.Status()
        if not self._wait(timeout, status):
            return None
        peer, told = status.Get_source(), bytearray(status.Get_count(self._mpi.BYTE))
        self._comm.Recv([told, self._mpi.BYTE], peer, _HEADER)
        header = unpack(told)
        tensor = self._tensor(peer, header)
        self._count(tensor, out=False)
        return Message(peer, header.kind, header.facts, tensor)

    def close(self) -> None:
        self._comm.Free()
        self._bell.close()

    def _neighbours(self) -> dict[int, tuple[int, int]]:
        node = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        probe = Probe(self._shared)
        others = node.allgather((self.here, os.getpid(), self._bell.file, probe.file, probe.word))
        seen = [rank for rank, process, _, *rest in others if Probe.sees(self._shared, process, *rest)]
        by = dict(zip((rank for rank, *_ in others), node.allgather(seen), strict=True))
        node.Free()
        both = {rank for rank in seen if self.here in by[rank]} - {self.here}
        return {rank: (process, bell) for rank, process, bell, *_ in others if rank in both}

    def _post(self, peer: int, kind: str, facts: Facts, tensor: Tensor | None, *, lent: bool) -> None:
        seen = None if tensor is None else self._shown(peer, tensor, lent=lent)
        self._comm.Send([pack(kind, facts, tensor, [seen, self._wish(peer)]), self._mpi.BYTE], peer, _HEADER)
        if peer in self._near:
            self._bell.ring(*self._near[peer])
        if tensor is not None and seen is None:
            self._comm.Send([as_bytes(tensor), self._mpi.BYTE], peer, _TENSOR)

    def _shown(self, peer: int, tensor: Tensor, *, lent: bool) -> Place | list[int] | None:
        """Where a near peer sees a tensor: in a room of this process; or, an empty list, where it wished for it."""
        wish = self._lands.pop(peer, None)
        if lent and peer in self._near:
            return self._shared.place(tensor)
        if wish is None or wish[1] != (tensor.dtype, tensor.numel()):
            return None
        self._shared.see(self._near[peer][0], *wish).copy_(tensor)
        return []

    def _wish(self, peer: int) -> list[Any] | None:
        """Where a near peer's answer may land."""
        wanted = self.landing.get(peer) if peer in self._near else None
        place = None if wanted is None else self._shared.place(wanted)
        return None if wanted is None or place is None else [place, told_shape(wanted)]

    def _tensor(self, peer: int, header: Header) -> Tensor | None:
        """The tensor of a message: seen where it is, or taken as it comes."""
        seen, wish = header.more
        self._lands.pop(peer, None)
        if wish is not None:
            self._lands[peer] = Place(*wish[0]), heard_shape(wish[1])
        if header.shape is None:
            return None
        wanted = self.landing.pop(peer, None)
        if seen == [] and wanted is not None:
            return wanted
        if seen is not None:
            return self._shared.see(self._near[peer][0], Place(*seen), header.shape)
        room = self._rooms.get(peer) if wanted is None else wanted
        if room is None or (room.dtype, room.numel()) != header.shape:
            room, wanted = empty(header.shape), None
        self._comm.Recv([as_bytes(room), self._mpi.BYTE], peer, _TENSOR)
        if wanted is None:
            self._rooms[peer] = room
        return room

    def _wait(self, timeout: float | None, status: Any) -> bool:
        """MPI waits by looking again and again: here with pauses, so that others may have the core.

        One thread receives: what was seen is there when it is taken. Matched probes fail with Open MPI over libfabric.
        """
        begun = time.perf_counter()
        awake = begun if self.patient or self._all_near else begun + _SPIN
        while True:
            if self._comm.Iprobe(tag=_HEADER, status=status):
                return True
            now = time.perf_counter()
            if timeout is not None and now - begun > timeout:
                return False
            if now < awake:
                continue
            if not self._all_near:
                time.sleep(_NAP)
            elif self._bell.wait(_REST if timeout is None else min(_REST, timeout)):
                awake = time.perf_counter() + _SPIN  # MPI finds what has come after some looks
