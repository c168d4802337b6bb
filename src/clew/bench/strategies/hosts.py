"""Virtual hosts on one machine: network namespaces, connected by a switch with limited bandwidth.

The switch is a namespace too, so the network of the machine is not changed, and removing the namespaces removes
everything. They are removed when the block ends, for any reason; the next process removes those of a killed one.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from clew.bench.strategies.delayed_switch import INTERFACE, PACKET_BYTES
from clew.core.process import is_running
from clew.errors import ConfigError

_NETWORK, _SWITCH = "10.77.0", "switch"
_PREFIX = "clew-"
_ETC = Path("/etc/netns")
"""`ip netns exec` mounts the files in the subfolder of a namespace over /etc."""
_numbers = itertools.count()
_UNITS = {"k": 1e3, "M": 1e6, "G": 1e9}
_NAMED = 'hostname "$0" && exec "$@"'
_FLOOD = """
import socket, sys, time
here, seconds, block = sys.argv[1], float(sys.argv[2]), bytes(1 << 20)
with socket.create_connection((here, 7), timeout=30) as line:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        line.sendall(block)
"""
_ECHO = """
import socket
with socket.create_server(("", 7)) as server:
    print("listening", flush=True)
    line = server.accept()[0]
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while got := line.recv(1):
        line.sendall(got)
"""
_PING = """
import socket, statistics, sys, time
times = []
with socket.create_connection((sys.argv[1], 7), timeout=30) as line:
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(int(sys.argv[2])):
        start = time.monotonic()
        line.sendall(b"x")
        line.recv(1)
        times.append(time.monotonic() - start)
print(statistics.median(times), flush=True)
"""
_SINK = """
import socket, time
with socket.create_server(("", 7)) as server:
    print("listening", flush=True)
    line = server.accept()[0]
    count, start, buffer = 0, time.monotonic(), bytearray(1 << 20)
    while got := line.recv_into(buffer):
        count += got
    print(8 * count / (time.monotonic() - start), flush=True)
"""


@dataclass(frozen=True)
class Host:
    """A namespace with its own host name and address."""

    name: str
    namespace: str
    address: str

    def start(
        self, command: Sequence[str], *, output: IO[Any] | int = subprocess.DEVNULL, **environment: str
    ) -> subprocess.Popen[str]:
        """Start a command on the host that prints to `output`. It ends with the hosts at the latest."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", _NAMED, self.name, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, **environment},
            start_new_session=True,  # Ctrl-C goes to the process that created the hosts
            text=True,
        )


def bits_per_second(bandwidth: str) -> float:
    """Return the bits per second of a bandwidth such as 10Gbit, 1Gbit or 100Mbit.

    Raises:
        ConfigError: The text is not a bandwidth.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMG])bit", bandwidth)
    if match is None or not float(match[1]):
        raise ConfigError(f"bandwidth {bandwidth}: expected a number and a unit such as 10Gbit, 100Mbit or 500kbit")
    return float(match[1]) * _UNITS[match[2]]


@contextlib.contextmanager
def hosts(count: int, bandwidth: str | None = None, *, delay: float = 0.0) -> Iterator[list[Host]]:
    """Create virtual hosts with the names host-0, host-1 and so on, and remove them when the block ends.

    Args:
        count: Number of hosts.
        bandwidth: Bandwidth between each host and the switch, in each direction; None: no limit.
        delay: Seconds that a packet needs from one host to another, beyond those of this machine.

    Raises:
        ConfigError: Hosts cannot be created on this machine, or the bandwidth is not valid.
    """
    rate = None if bandwidth is None else bits_per_second(bandwidth)
    _check()
    remove_leftovers()
    mark = f"{_PREFIX}{os.getpid()}-{next(_numbers)}-"
    created = [Host(f"host-{n}", f"{mark}{n}", f"{_NETWORK}.{n + 1}") for n in range(count)]
    switch = None
    with _exit_on_sigterm():
        try:
            _ip("netns", "add", f"{mark}{_SWITCH}")
            for host in created:
                _ip("netns", "add", host.namespace)
                _write_hosts_file(host, created)
            if delay:
                switch = _connect_with_delay(created, f"{mark}{_SWITCH}", rate, delay)
            else:
                _connect(created, f"{mark}{_SWITCH}", rate)
            yield created
        finally:
            _remove(mark)
            if switch is not None:
                switch.communicate()


def hosts_unavailable_reason() -> str:
    """Return why hosts cannot be created on this machine; empty if they can."""
    try:
        with hosts(1):
            return ""
    except ConfigError as error:
        return str(error)


def measure_bandwidth(receiver: Host, sender: Host, *, seconds: float = 1.0) -> float:
    """Return the bits per second of one TCP connection between two hosts."""
    sink = receiver.start([sys.executable, "-c", _SINK], output=subprocess.PIPE)
    assert sink.stdout is not None
    sink.stdout.readline()
    flood = sender.start([sys.executable, "-c", _FLOOD, receiver.address, str(seconds)])
    output = sink.communicate(timeout=60 + seconds)[0]
    flood.wait(timeout=60)
    return float(output)


def measure_round_trip(receiver: Host, sender: Host, *, repeats: int = 20) -> float:
    """Return the median seconds until one byte has come back from another host over TCP."""
    echo = receiver.start([sys.executable, "-c", _ECHO], output=subprocess.PIPE)
    assert echo.stdout is not None
    echo.stdout.readline()
    ping = sender.start([sys.executable, "-c", _PING, receiver.address, str(repeats)], output=subprocess.PIPE)
    output = ping.communicate(timeout=60)[0]
    echo.communicate(timeout=60)
    return float(output)


def remove_leftovers() -> None:
    """Remove the namespaces of processes that no longer exist."""
    for name in _namespaces():
        match = re.match(rf"({_PREFIX}(\d+)-)", name)
        if match is not None and not is_running(int(match[2])):
            _remove(match[1])


def _check() -> None:
    missing = [name for name in ("ip", "tc", "unshare", "hostname") if shutil.which(name) is None]
    if missing:
        raise ConfigError(f"virtual hosts need {', '.join(missing)}; install iproute2, util-linux and hostname")
    if os.geteuid():
        raise ConfigError("virtual hosts are network namespaces, which only root can create; try with sudo")


def _connect(hosts: Sequence[Host], switch: str, rate: float | None) -> None:
    """Connect hosts by a bridge of the kernel."""
    _ip("-n", switch, "link", "add", "br0", "type", "bridge")
    _ip("-n", switch, "link", "set", "br0", "up")
    for number, host in enumerate(hosts):
        port = f"port{number}"
        _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", host.namespace)
        _ip("-n", switch, "link", "set", port, "master", "br0", "up")
        _set_up(host)
        if rate is not None:
            _limit(switch, port, rate)
            _limit(host.namespace, INTERFACE, rate)


def _connect_with_delay(hosts: Sequence[Host], switch: str, rate: float | None, delay: float) -> subprocess.Popen[str]:
    """Connect hosts by a process that delays their packets. It ends with their namespaces."""
    for host in hosts:
        _ip("-n", host.namespace, "tuntap", "add", "dev", INTERFACE, "mode", "tun")
        _ip("-n", host.namespace, "link", "set", INTERFACE, "mtu", str(PACKET_BYTES))
        _set_up(host)
        if rate is not None:
            _limit(host.namespace, INTERFACE, rate)
    command = [sys.executable, "-P", "-m", "clew.bench.strategies.delayed_switch", str(delay), str(rate or math.inf)]
    process = subprocess.Popen(
        ["ip", "netns", "exec", switch, *command, *(f"{host.namespace}={host.address}" for host in hosts)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C goes to the process that created the hosts
        text=True,
    )
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        message = (process.communicate()[1].strip().splitlines() or ["it ended"])[-1]
        raise ConfigError(f"cannot delay packets between virtual hosts: {message}")
    return process


def _set_up(host: Host) -> None:
    _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", INTERFACE)
    for device in ("lo", INTERFACE):
        _ip("-n", host.namespace, "link", "set", device, "up")


def _limit(namespace: str, device: str, rate: float) -> None:
    """Limit the bits per second that a device sends."""
    burst = max(rate / 8 * 1e-3, 1 << 17)  # one millisecond; at least one unsegmented packet
    limit = ("rate", f"{rate:.0f}bit", "burst", f"{burst:.0f}", "latency", "50ms")
    _call("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *limit)


def _write_hosts_file(host: Host, all: Sequence[Host]) -> None:
    """Write the names of all hosts to the hosts file of one."""
    folder = _ETC / host.namespace
    folder.mkdir(parents=True, exist_ok=True)
    known = {"127.0.0.1": "localhost", **{each.address: each.name for each in all}}
    (folder / "hosts").write_text("".join(f"{address} {name}\n" for address, name in known.items()))


def _remove(mark: str) -> None:
    """Kill the processes in the namespaces with this prefix, and remove them. Ctrl-C is ignored meanwhile."""
    with _ignoring_signals():
        namespaces = [name for name in _namespaces() if name.startswith(mark)]
        _kill([int(pid) for name in namespaces for pid in _call("ip", "netns", "pids", name, check=False).split()])
        for name in namespaces:
            _call("ip", "netns", "del", name, check=False)
        for folder in _ETC.glob(f"{mark}*"):
            shutil.rmtree(folder, ignore_errors=True)


def _kill(pids: Sequence[int]) -> None:
    """Kill processes and wait until they have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(is_running(pid) for pid in pids):
        time.sleep(0.02)


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _call("ip", "netns", "list", check=False).splitlines() if line.strip()]


@contextlib.contextmanager
def _ignoring_signals() -> Iterator[None]:
    with _handling({signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}):
        yield


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the block like Ctrl-C, so that the hosts are removed."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with _handling({signal.SIGTERM: end}):
        yield


@contextlib.contextmanager
def _handling(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ip(*arguments: str) -> None:
    _call("ip", *arguments)


def _call(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode:
        message = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
        raise ConfigError(
            f"cannot create virtual hosts: `{' '.join(command)}`: {message}; root and iproute2 are needed"
        )
    return done.stdout
