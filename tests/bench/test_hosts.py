"""Hosts on this machine: their properties, and that everything of them is removed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from clew.bench.strategies import hosts as module
from clew.bench.strategies.hosts import bits_per_second, hosts, measure_bandwidth, measure_round_trip, remove_leftovers
from clew.errors import ConfigError

pytestmark = pytest.mark.timeout(60)

HOLD = """
import time
from clew.bench.strategies.hosts import hosts
with hosts(1) as made:
    made[0].start(["sleep", "300"])
    print(made[0].namespace, flush=True)
    time.sleep(300)
"""


def namespaces(pid: int | None = None) -> list[str]:
    """The namespaces of a process, as the system lists them, and their folders in /etc."""
    mark = f"clew-{pid or os.getpid()}-"
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
    folder = Path("/etc/netns")
    return [n for n in [*listed, *(p.name for p in (folder.iterdir() if folder.is_dir() else ()))] if mark in n]


def runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def holder(can_host: None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A separate process that has a host in which something runs, and the namespace of the host."""
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process, process.stdout.readline().strip()
    process.kill()
    process.communicate()
    remove_leftovers()


def test_bandwidths_are_read_as_people_write_them() -> None:
    assert [bits_per_second(text) for text in ("10Gbit", "1.5Mbit", "500kbit")] == [1e10, 1.5e6, 5e5]
    for text in ("10", "10GB", "0Mbit", "fast", "-1Gbit"):
        with pytest.raises(ConfigError, match=r"such as 10Gbit, 100Mbit or 500kbit"):
            bits_per_second(text)


def test_every_host_has_its_own_name_and_knows_the_others(can_host: None) -> None:
    ask = "import socket; print(socket.gethostname(), socket.gethostbyname('host-0'))"
    with hosts(2) as host_list:
        output = host_list[1].start([sys.executable, "-c", ask], output=subprocess.PIPE).communicate(timeout=30)[0]
        assert output.split() == ["host-1", host_list[0].address]
    assert os.uname().nodename != "host-1"


def test_a_link_is_not_faster_than_its_bandwidth(can_host: None) -> None:
    with hosts(2, "20Mbit") as host_list:
        assert measure_bandwidth(host_list[0], host_list[1], seconds=0.5) < 25e6


def test_a_packet_takes_the_delay_and_the_bandwidth_of_the_line(can_host: None) -> None:
    with hosts(3, "20Mbit", delay=0.02) as host_list:
        assert measure_round_trip(host_list[2], host_list[0], repeats=5) >= 0.04
        assert 1e6 < measure_bandwidth(host_list[0], host_list[1], seconds=1.0) < 25e6
    assert not namespaces()


def test_hosts_are_removed_with_what_runs_in_them(can_host: None) -> None:
    with contextlib.suppress(ZeroDivisionError), hosts(1) as host_list:
        process = host_list[0].start(["sleep", "300"])
        assert namespaces()
        raise ZeroDivisionError
    assert process.wait(timeout=10) == -signal.SIGKILL
    assert not namespaces()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_hosts_are_removed_on_a_signal(holder: tuple[subprocess.Popen[str], str], number: signal.Signals) -> None:
    process, namespace = holder
    assert namespace in namespaces(process.pid)
    process.send_signal(number)
    process.wait(timeout=30)
    assert not namespaces(process.pid)


def test_what_a_killed_process_left_is_removed_by_the_next(holder: tuple[subprocess.Popen[str], str]) -> None:
    process, namespace = holder
    pids = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=True).stdout
    process.kill()
    process.wait(timeout=30)
    assert namespace in namespaces(process.pid)
    with hosts(1):
        assert not namespaces(process.pid)
    assert pids.split() and not any(runs(int(pid)) for pid in pids.split())


def test_without_the_tools_or_the_right_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "install iproute2" in module.hosts_unavailable_reason()
    monkeypatch.undo()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "only root" in module.hosts_unavailable_reason() or "install" in module.hosts_unavailable_reason()
