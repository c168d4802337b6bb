"""A switch whose packets arrive later: for virtual hosts that are far from each other.

The kernel's own delay (`tc netem`) is often not built in. So a process reads the packets that hosts send through TUN
devices, waits, and writes them to the device of the host that they are for. Its packets are large, so that it has few
to move: about 2,000 per second at 1 Gbit/s.

    python -m clew.bench.strategies.delayed_switch DELAY_SECONDS BITS_PER_SECOND NAMESPACE=ADDRESS ...
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

INTERFACE = "eth0"
PACKET_BYTES = 65520
_TUN, _SET_INTERFACE, _IP_ONLY = Path("/dev/net/tun"), 0x400454CA, 0x1001
_NEW_NETWORK = 0x40000000
_QUEUE_SECONDS = 0.05
"""Packets that would wait longer for the bandwidth are dropped, as in a switch whose buffer is full."""
_DESTINATION = slice(16, 20)
"""Bytes of an IP packet with the address of the host that it is for."""


@dataclass
class Port:
    """The device of one host, and the packets on their way to it."""

    device: int
    address: bytes
    waiting: deque[tuple[float, bytes]] = field(default_factory=deque)
    free_at: float = 0.0
    """When the line to the host has sent what was accepted for it."""

    def accept(self, packet: bytes, now: float, delay: float, seconds_per_byte: float) -> None:
        """Take a packet for the host, or drop it if too many wait."""
        start = max(now, self.free_at)
        if start - now > _QUEUE_SECONDS:
            return
        self.free_at = start + len(packet) * seconds_per_byte
        self.waiting.append((self.free_at + delay, packet))

    def deliver(self, now: float) -> None:
        """Write the packets whose time has come."""
        while self.waiting and self.waiting[0][0] <= now:
            os.write(self.device, self.waiting.popleft()[1])


def open_port(namespace: str, address: str) -> Port:
    """Open the TUN device of a network namespace. The process is in that namespace afterwards."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", namespace).open() as file:
        if libc.setns(file.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter the network {namespace}")
    device = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _SET_INTERFACE, struct.pack("16sH22x", INTERFACE.encode(), _IP_ONLY))
    return Port(device, socket.inet_aton(address))


def run_switch(ports: list[Port], delay: float, bits_per_second: float) -> None:
    """Move packets between hosts until the process is killed.

    Args:
        ports: One per host.
        delay: Seconds that a packet needs from one host to another.
        bits_per_second: Bandwidth of the line to each host; infinite for none.
    """
    by_address = {port.address: port for port in ports}
    by_device = {port.device: port for port in ports}
    seconds_per_byte = 8 / bits_per_second
    while True:
        due = min((port.waiting[0][0] for port in ports if port.waiting), default=None)
        timeout = None if due is None else max(due - time.monotonic(), 0.0)
        readable = select.select(list(by_device), [], [], timeout)[0]
        now = time.monotonic()
        for device in readable:
            packet = os.read(device, PACKET_BYTES + 64)
            if receiver := by_address.get(packet[_DESTINATION]):
                receiver.accept(packet, now, delay, seconds_per_byte)
        for port in ports:
            port.deliver(time.monotonic())


if __name__ == "__main__":
    opened = [open_port(*each.split("=")) for each in sys.argv[3:]]
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(2))  # it stands for a device, which does not wait for a core
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    run_switch(opened, float(sys.argv[1]), float(sys.argv[2]))
