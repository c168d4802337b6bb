"""Memory that two processes see."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from clew.training.asynchronous.messaging.shared_memory import Bell, Place, Probe, Shared, possible

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not possible(), reason="this system has no memory without a name"),
]

LOOKS = """
import os, sys, torch
from clew.training.asynchronous.messaging.shared_memory import Bell, Place, Probe, Shared
process, file, first, count, bell = map(int, sys.argv[1:])
shared = Shared()
seen = shared.see(process, Place(file, first), (torch.float32, count))
assert seen.tolist() == [float(number) for number in range(3, 3 + count)], seen
seen.mul_(2)
own = Bell()
for _ in range(100_000):  # more than a pipe holds
    own.ring(process, bell)
"""


def look(*words: int) -> None:
    subprocess.run([sys.executable, "-c", LOOKS, *map(str, words)], check=True)


def test_another_process_reads_writes_and_rings() -> None:
    shared, bell = Shared(), Bell()
    room = shared.room((torch.float32, 1000))
    room.copy_(torch.arange(1000.0))
    place = shared.place(room[3:8])
    assert place is not None and place.first == 12
    assert not bell.wait(0)
    look(os.getpid(), place.file, place.first, 5, bell.file)
    assert room[:9].tolist() == [0, 1, 2, 6, 8, 10, 12, 14, 8]
    assert bell.wait(0) and not bell.wait(0)
    bell.ring(2**22 + 1, 3)  # there is nobody of that number
    bell.close()


def test_only_what_is_in_a_room_has_a_place() -> None:
    shared = Shared()
    room = shared.room((torch.float64, 4))
    assert shared.place(torch.ones(4)) is None and Shared().place(room) is None
    assert shared.place(room) == shared.place(room[:1])


def test_a_probe_tells_another_memory_apart() -> None:
    shared = Shared()
    probe = Probe(shared)
    assert Probe.sees(Shared(), os.getpid(), probe.file, probe.word)
    assert not Probe.sees(Shared(), os.getpid(), probe.file, probe.word[::-1])
    assert not Probe.sees(Shared(), os.getpid(), probe.file, [*probe.word, 0])
    assert not Probe.sees(Shared(), 2**22 + 1, probe.file, probe.word)
    with pytest.raises(OSError):
        Shared().see(os.getpid(), Place(9999, 0), (torch.uint8, 1))
