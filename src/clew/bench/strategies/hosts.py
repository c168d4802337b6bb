"""Several hosts on one machine: network namespaces on a switch whose lines are as fast as wanted.

The switch is a namespace too, so nothing of the machine's own network is touched, and removing the namespaces removes
everything. They are removed however the block ends; what a killed process left behind is removed by the next.
"""

from __future__ import annotations

import contextlib
import itertools
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

from clew.core.process import is_running
from clew.errors import ConfigError

INTERFACE = "eth0"
_NETWORK, _SWITCH = "10.77.0", "switch"
_PREFIX = "clew-"
_ETC = Path("/etc/netns")
"""What lies here under a namespace's name, `ip netns exec` puts over /etc."""
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
_SINK = """
import socket, time
with socket.create_server(("", 7)) as server:
    print("listening", flush=True)
    line = server.accept()[0]
    count, begun, room = 0, time.monotonic(), bytearray(1 << 20)
    while got := line.recv_into(room):
        count += got
    print(8 * count / (time.monotonic() - begun), flush=True)
"""


@dataclass(frozen=True)
class Host:
    """A namespace with a host name and an address of its own."""

    name: str
    namespace: str
    address: str

    def start(
        self, command: Sequence[str], *, output: IO[Any] | int = subprocess.DEVNULL, **environment: str
    ) -> subprocess.Popen[str]:
        """Start a command there that prints to `output`. It ends with the hosts at the latest."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", _NAMED, self.name, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, **environment},
            start_new_session=True,  # Ctrl-C is for whoever started the hosts
            text=True,
        )


def bits_per_second(bandwidth: str) -> float:
    """Bits a second, of a text like 10Gbit, 1Gbit or 100Mbit.

    Raises:
        ConfigError: it is not one.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMG])bit", bandwidth)
    if match is None or not float(match[1]):
        raise ConfigError(f"bandwidth {bandwidth}: expected a number and a unit, as 10Gbit, 100Mbit or 500kbit")
    return float(match[1]) * _UNITS[match[2]]


@contextlib.contextmanager
def hosts(count: int, bandwidth: str | None = None) -> Iterator[list[Host]]:
    """So many hosts, called host-0, host-1 and so on, that know each other by name.

    `bandwidth` is that of the line between each host and the switch, in each direction; None for what the kernel gives.

    Raises:
        ConfigError: hosts cannot be made here, or the bandwidth is no bandwidth.
    """
    rate = None if bandwidth is None else bits_per_second(bandwidth)
    _check()
    remove_leftovers()
    mark = f"{_PREFIX}{os.getpid()}-{next(_numbers)}-"
    made = [Host(f"host-{n}", f"{mark}{n}", f"{_NETWORK}.{n + 1}") for n in range(count)]
    with _ending():
        try:
            _ip("netns", "add", f"{mark}{_SWITCH}")
            _ip("-n", f"{mark}{_SWITCH}", "link", "add", "br0", "type", "bridge")
            _ip("-n", f"{mark}{_SWITCH}", "link", "set", "br0", "up")
            for host in made:
                _plug(host, f"{mark}{_SWITCH}", rate)
                _introduce(host, made)
            yield made
        finally:
            _remove(mark)


def hosts_unavailable_reason() -> str:
    """Why hosts cannot be made here; empty if they can."""
    try:
        with hosts(1):
            return ""
    except ConfigError as error:
        return str(error)


def measure_bandwidth(there: Host, back: Host, *, seconds: float = 1.0) -> float:
    """Bits a second that one TCP connection from a host to another carries."""
    sink = there.start([sys.executable, "-c", _SINK], output=subprocess.PIPE)
    assert sink.stdout is not None
    sink.stdout.readline()
    flood = back.start([sys.executable, "-c", _FLOOD, there.address, str(seconds)])
    told = sink.communicate(timeout=60 + seconds)[0]
    flood.wait(timeout=60)
    return float(told)


def remove_leftovers() -> None:
    """Remove what processes that are gone have left behind."""
    for name in _namespaces():
        match = re.match(rf"({_PREFIX}(\d+)-)", name)
        if match is not None and not is_running(int(match[2])):
            _remove(match[1])


def _check() -> None:
    missing = [name for name in ("ip", "tc", "unshare", "hostname") if shutil.which(name) is None]
    if missing:
        raise ConfigError(f"hosts on one machine need {', '.join(missing)}; install iproute2, util-linux and hostname")
    if os.geteuid():
        raise ConfigError("hosts on one machine are network namespaces, which only root can make; try with sudo")


def _plug(host: Host, switch: str, rate: float | None) -> None:
    """Make a host and the line from it to the switch."""
    port = f"port{host.namespace.rpartition('-')[2]}"
    _ip("netns", "add", host.namespace)
    _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", host.namespace)
    _ip("-n", switch, "link", "set", port, "master", "br0", "up")
    _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", INTERFACE)
    for device in ("lo", INTERFACE):
        _ip("-n", host.namespace, "link", "set", device, "up")
    for namespace, device in ((switch, port), (host.namespace, INTERFACE)) if rate is not None else ():
        assert rate is not None
        burst = max(rate / 8 * 1e-3, 1 << 17)  # a millisecond's worth; a packet that is cut only later must fit
        told = ("rate", f"{rate:.0f}bit", "burst", f"{burst:.0f}", "latency", "50ms")
        _call("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *told)


def _introduce(host: Host, all: Sequence[Host]) -> None:
    """Let a host know the others by name."""
    folder = _ETC / host.namespace
    folder.mkdir(parents=True, exist_ok=True)
    known = {"127.0.0.1": "localhost", **{each.address: each.name for each in all}}
    (folder / "hosts").write_text("".join(f"{address} {name}\n" for address, name in known.items()))


def _remove(mark: str) -> None:
    """End what runs in the namespaces whose names begin so, and remove them; Ctrl-C must wait."""
    with _deaf():
        found = [name for name in _namespaces() if name.startswith(mark)]
        _end([int(pid) for name in found for pid in _call("ip", "netns", "pids", name, check=False).split()])
        for name in found:
            _call("ip", "netns", "del", name, check=False)
        for folder in _ETC.glob(f"{mark}*"):
            shutil.rmtree(folder, ignore_errors=True)


def _end(pids: Sequence[int]) -> None:
    """Kill these and wait until they are gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 10
    while time.monotonic() < end and any(is_running(pid) for pid in pids):
        time.sleep(0.02)


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _call("ip", "netns", "list", check=False).splitlines() if line.strip()]


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    with _handling({signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}):
        yield


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """SIGTERM ends the block like Ctrl-C, instead of the process at once."""

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


def _ip(*words: str) -> None:
    _call("ip", *words)


def _call(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode:
        told = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
        raise ConfigError(f"no hosts on this machine: `{' '.join(command)}` says: {told}; root and iproute2 are needed")
    return done.stdout
