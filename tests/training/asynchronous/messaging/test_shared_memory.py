"""Memory that two processes share."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from clew.training.asynchronous.messaging.shared_memory import (
    MemoryProbe,
    SharedLocation,
    SharedMemory,
    WakeUpPipe,
    shared_memory_available,
)

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not shared_memory_available(), reason="this system has no memory files"),
]

READER = """
import os, sys, torch
from clew.training.asynchronous.messaging.shared_memory import SharedLocation, SharedMemory, WakeUpPipe
process, file, offset, count, pipe = map(int, sys.argv[1:])
shared = SharedMemory()
tensor = shared.open(process, SharedLocation(file, offset), (torch.float32, count))
assert tensor.tolist() == [float(number) for number in range(3, 3 + count)], tensor
tensor.mul_(2)
own_pipe = WakeUpPipe()
for _ in range(100_000):  # more than a pipe holds
    own_pipe.wake(process, pipe)
"""


def run_reader(*arguments: int) -> None:
    subprocess.run([sys.executable, "-c", READER, *map(str, arguments)], check=True)


def test_another_process_reads_writes_and_wakes() -> None:
    shared, pipe = SharedMemory(), WakeUpPipe()
    memory = shared.allocate((torch.float32, 1000))
    memory.copy_(torch.arange(1000.0))
    location = shared.locate(memory[3:8])
    assert location is not None and location.offset == 12
    assert not pipe.wait(0)
    run_reader(os.getpid(), location.file, location.offset, 5, pipe.file)
    assert memory[:9].tolist() == [0, 1, 2, 6, 8, 10, 12, 14, 8]
    assert pipe.wait(0) and not pipe.wait(0)
    pipe.wake(2**22 + 1, 3)  # there is no such process
    pipe.close()


def test_only_allocated_tensors_have_a_location() -> None:
    shared = SharedMemory()
    memory = shared.allocate((torch.float64, 4))
    assert shared.locate(torch.ones(4)) is None and SharedMemory().locate(memory) is None
    assert shared.locate(memory) == shared.locate(memory[:1])


def test_memory_is_private_to_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, shape = SharedMemory(), (torch.uint8, 4)
    location = shared.locate(shared.allocate(shape))
    assert location is not None and os.fstat(location.file).st_mode & 0o777 == 0o600
    other_user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other_user)
    with pytest.raises(PermissionError, match="belongs to another user"):
        SharedMemory().open(os.getpid(), location, shape)


def test_a_probe_detects_other_memory() -> None:
    shared = SharedMemory()
    probe = MemoryProbe(shared)
    assert MemoryProbe.is_visible(SharedMemory(), os.getpid(), probe.file, probe.pattern)
    assert not MemoryProbe.is_visible(SharedMemory(), os.getpid(), probe.file, probe.pattern[::-1])
    assert not MemoryProbe.is_visible(SharedMemory(), os.getpid(), probe.file, [*probe.pattern, 0])
    assert not MemoryProbe.is_visible(SharedMemory(), 2**22 + 1, probe.file, probe.pattern)
    with pytest.raises(OSError):
        SharedMemory().open(os.getpid(), SharedLocation(9999, 0), (torch.uint8, 1))
