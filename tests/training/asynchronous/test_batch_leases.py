"""Leases of batches: renewed by progress, returned without it, and every batch done once."""

from __future__ import annotations

import pytest

from clew.training.asynchronous import batch_leases
from clew.training.asynchronous.batch_leases import BatchLeases
from tests.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    result = Clock()
    monkeypatch.setattr(batch_leases, "time", result)
    return result


def test_progress_renews_a_lease(clock: Clock) -> None:
    leases = BatchLeases(lambda epoch: 12, 1, timeout=60.0)
    lease = leases.take(worker=3, workers=1)
    assert lease is not None and lease.stop - lease.first > 2
    clock.seconds = 50.0
    leases.finish(lease.number, 1)
    clock.seconds = 100.0
    assert leases.expired() == []
    clock.seconds = 111.0
    assert leases.expired() == [3]


def test_a_lease_without_progress_is_done_by_another_worker(clock: Clock) -> None:
    leases = BatchLeases(lambda epoch: 4, 2, timeout=60.0)
    slow = leases.take(worker=1, workers=2)
    assert slow is not None
    clock.seconds = 61.0
    assert leases.expired() == [1]
    returned = leases.give_back(1)
    assert returned == slow.stop - slow.first == leases.returned
    assert not leases.belongs_to(slow.number, 1)
    done: list[tuple[int, int]] = []
    while (lease := leases.take(worker=2, workers=1)) is not None:
        done += [(lease.epoch, batch) for batch in range(lease.first, lease.stop)]
        leases.finish(lease.number, lease.stop - lease.first)
    assert sorted(done) == [(epoch, batch) for epoch in range(2) for batch in range(4)]
    assert leases.finished and leases.epochs_done == 2


def test_leased_batches_wait_again_after_a_resume() -> None:
    leases = BatchLeases(lambda epoch: 9, 1, timeout=60.0)
    lease = leases.take(worker=1, workers=1)
    assert lease is not None
    leases.finish(lease.number, 1)
    resumed = BatchLeases(lambda epoch: 9, 1, timeout=60.0)
    resumed.restore(leases.state())
    assert resumed.done == 1
    batches = []
    while (lease := resumed.take(worker=1, workers=1)) is not None:
        batches += list(range(lease.first, lease.stop))
        resumed.finish(lease.number, lease.stop - lease.first)
    assert sorted(batches) == list(range(1, 9)) and resumed.finished
