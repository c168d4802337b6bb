"""A transport over MPI: a header, then the tensor directly from its memory. Nothing is pickled.

Between ranks of one host that share memory, a tensor is not sent if the sender allocated it with `allocate` and sends
it as stable: the receiver reads it in place. It is also not sent if the receiver has a receive buffer that it allocated
with `allocate`: the sender writes into that buffer. The header describes which case applies.

The MPI library is the one that mpi4py was built with: the one of the site, or the mpich of PyPI on a laptop.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
from torch import Tensor

from clew.training.asynchronous.messaging.shared_memory import (
    MemoryProbe,
    SharedLocation,
    SharedMemory,
    WakeUpPipe,
    shared_memory_available,
)
from clew.training.asynchronous.messaging.transport import (
    Fields,
    Header,
    Message,
    MessageTransport,
    Shape,
    as_bytes,
    describe_shape,
    empty,
    pack_header,
    parse_shape,
    unpack_header,
)
from clew.training.message_codec import decode, encode

_HEADER, _TENSOR = 71, 72
"""MPI tags."""
_SPIN, _NAP, _REST = 0.0003, 0.00005, 0.005
"""Seconds: of polling without a pause, of a pause, and of a pause that a wake-up pipe can end. Continuous polling slows
down other processes on the same core, which two processors of a virtual machine often share."""


def mpi_library() -> str:
    """Return the name and version of the MPI library."""
    from mpi4py import MPI

    return str(MPI.Get_library_version().splitlines()[0].strip("\0 "))


class MpiTransport(MessageTransport):
    """Connects the ranks of a communicator. If a rank dies, MPI ends the whole job."""

    def __init__(self, communicator: Any = None, *, share_memory: bool = True) -> None:
        """Connect the ranks; all ranks must call this together.

        Args:
            communicator: An mpi4py communicator; default: COMM_WORLD.
            share_memory: Whether ranks of one host use shared memory; else they send, as between hosts.
        """
        super().__init__()
        from mpi4py import MPI

        self._mpi, self._comm = MPI, (communicator or MPI.COMM_WORLD).Dup()
        self.number, self.ranks = self._comm.rank, self._comm.size
        self._last_tensors: dict[int, Tensor] = {}
        """Memory of the last tensor received from each rank, which is used again."""
        self._shared, self._pipe = SharedMemory(), WakeUpPipe()
        self._neighbours = self._find_neighbours() if share_memory and shared_memory_available() else {}
        """Process number and wake-up pipe of the ranks that share memory with this one."""
        self._all_neighbours = len(self._neighbours) == self.ranks - 1
        self._peer_buffers: dict[int, tuple[SharedLocation, Shape]] = {}
        """Where an answer to a rank's last message may be written."""

    def allocate(self, shape: Shape) -> Tensor:
        return self._shared.allocate(shape) if self._neighbours else super().allocate(shape)

    def receive(self, timeout: float | None = None) -> Message | None:
        status = self._mpi.Status()
        if not self._wait(timeout, status):
            return None
        peer, packed = status.Get_source(), bytearray(status.Get_count(self._mpi.BYTE))
        self._comm.Recv([packed, self._mpi.BYTE], peer, _HEADER)
        header = unpack_header(packed)
        tensor = self._receive_tensor(peer, header)
        self._count(tensor, outgoing=False)
        return Message(peer, header.kind, header.fields, tensor)

    def close(self) -> None:
        self._comm.Free()
        self._pipe.close()

    def _find_neighbours(self) -> dict[int, tuple[int, int]]:
        node = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        probe = MemoryProbe(self._shared)
        ranks = self._gather(node, (self.number, os.getpid(), self._pipe.file, probe.file, probe.pattern))
        visible = [rank for rank, process, _, *rest in ranks if MemoryProbe.is_visible(self._shared, process, *rest)]
        visible_from = dict(zip((rank for rank, *_ in ranks), self._gather(node, visible), strict=True))
        node.Free()
        mutual = {rank for rank in visible if self.number in visible_from[rank]} - {self.number}
        return {rank: (process, pipe) for rank, process, pipe, *_ in ranks if rank in mutual}

    def _gather(self, node: Any, item: Any) -> list[Any]:
        data = encode(item)
        sizes = np.empty(node.size, np.int64)
        node.Allgather(np.array([len(data)]), sizes)
        parts = np.empty(sizes.sum(), np.uint8)
        node.Allgatherv(np.frombuffer(data, np.uint8), (parts, sizes))
        return [decode(part.data) for part in np.split(parts, np.cumsum(sizes)[:-1])]

    def _send(self, peer: int, kind: str, fields: Fields, tensor: Tensor | None, *, stable: bool) -> None:
        location = None if tensor is None else self._share(peer, tensor, stable=stable)
        header = pack_header(kind, fields, tensor, [location, self._own_buffer(peer)])
        self._comm.Send([header, self._mpi.BYTE], peer, _HEADER)
        if peer in self._neighbours:
            self._pipe.wake(*self._neighbours[peer])
        if tensor is not None and location is None:
            self._comm.Send([as_bytes(tensor), self._mpi.BYTE], peer, _TENSOR)

    def _share(self, peer: int, tensor: Tensor, *, stable: bool) -> SharedLocation | list[int] | None:
        """Return where a neighbour finds a tensor: its location in this process's memory, or an empty list if it was
        written into the neighbour's buffer. None: it must be sent."""
        buffer = self._peer_buffers.pop(peer, None)
        if stable and peer in self._neighbours:
            return self._shared.locate(tensor)
        if buffer is None or buffer[1] != (tensor.dtype, tensor.numel()):
            return None
        self._shared.open(self._neighbours[peer][0], *buffer).copy_(tensor)
        return []

    def _own_buffer(self, peer: int) -> list[Any] | None:
        """Return where a neighbour may write its answer."""
        buffer = self.receive_buffers.get(peer) if peer in self._neighbours else None
        location = None if buffer is None else self._shared.locate(buffer)
        return None if buffer is None or location is None else [location, describe_shape(buffer)]

    def _receive_tensor(self, peer: int, header: Header) -> Tensor | None:
        """Return the tensor of a message: read in shared memory, or received."""
        location, peer_buffer = header.extra
        self._peer_buffers.pop(peer, None)
        if peer_buffer is not None:
            self._peer_buffers[peer] = SharedLocation(*peer_buffer[0]), parse_shape(peer_buffer[1])
        if header.shape is None:
            return None
        buffer = self.receive_buffers.pop(peer, None)
        if location == [] and buffer is not None:
            return buffer
        if location is not None:
            return self._shared.open(self._neighbours[peer][0], SharedLocation(*location), header.shape)
        memory = self._last_tensors.get(peer) if buffer is None else buffer
        if memory is None or (memory.dtype, memory.numel()) != header.shape:
            memory, buffer = empty(header.shape), None
        self._comm.Recv([as_bytes(memory), self._mpi.BYTE], peer, _TENSOR)
        if buffer is None:
            self._last_tensors[peer] = memory
        return memory

    def _wait(self, timeout: float | None, status: Any) -> bool:
        """Wait for a header. MPI waits by polling; here it pauses in between, so that other processes get the core.

        Only one thread receives, so a message that was probed is still there when it is received. Matched probes fail
        with Open MPI over libfabric.
        """
        started = time.perf_counter()
        spin_until = started if self.busy_process or self._all_neighbours else started + _SPIN
        while True:
            if self._comm.Iprobe(tag=_HEADER, status=status):
                return True
            now = time.perf_counter()
            if timeout is not None and now - started > timeout:
                return False
            if now < spin_until:
                continue
            if not self._all_neighbours:
                time.sleep(_NAP)
            elif self._pipe.wait(_REST if timeout is None else min(_REST, timeout)):
                spin_until = time.perf_counter() + _SPIN  # MPI needs some probes to see a message that has arrived
