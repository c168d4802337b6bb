"""Whether a process is running."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from clew.core.process import is_identity_running, is_running, process_identity, running_process


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as started:
        yield started
        started.kill()


def test_this_process_is_running() -> None:
    created = psutil.Process().create_time()
    assert is_running(os.getpid())
    assert is_running(os.getpid(), created=created, created_before=time.time())
    assert is_identity_running(process_identity())


def test_a_later_process_with_the_same_number_does_not_count() -> None:
    created = psutil.Process().create_time()
    assert not is_running(os.getpid(), created=created - 60)
    assert not is_running(os.getpid(), created_before=created - 60)


def test_an_ended_process_is_not_running(process: subprocess.Popen[bytes]) -> None:
    assert running_process(process.pid) == psutil.Process(process.pid)
    process.kill()
    end = time.monotonic() + 10
    while is_running(process.pid) and time.monotonic() < end:  # a zombie until it is waited for
        time.sleep(0.01)
    assert not is_running(process.pid)
    process.wait()
    assert running_process(process.pid) is None


def test_a_process_on_another_host_is_taken_to_be_running() -> None:
    assert is_identity_running("another-host 1 0.00")
    assert not is_identity_running(f"{socket.gethostname()} {os.getpid()} 0.00")
