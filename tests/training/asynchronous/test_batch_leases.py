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


def test_a_limit_counts_leased_batches() -> None:
    leases = BatchLeases(lambda epoch: 9, 3, max_batches=10, timeout=60.0)
    taken = [leases.take(worker=1, workers=1) for _ in range(5)]
    sizes = [lease.stop - lease.first for lease in taken if lease]
    assert sizes == [3, 2, 2, 1, 1] and sum(sizes) == 9
    last = leases.take(worker=2, workers=1)
    assert last is not None and (last.epoch, last.first, last.stop) == (1, 0, 1)
    assert leases.take(worker=2, workers=1) is None and not leases.finished
    for lease in (*taken, last):
        assert lease is not None
        leases.finish(lease.number, lease.stop - lease.first)
    assert leases.finished and leases.done == 10 and leases.epochs_done == 1


def test_leases_are_no_smaller_than_the_least_size() -> None:
    leases = BatchLeases(lambda epoch: 8, 1, min_lease=3, timeout=60.0)
    sizes = []
    while (lease := leases.take(worker=1, workers=4)) is not None:
        sizes.append(lease.stop - lease.first)
    assert sizes == [3, 3, 2]
    assert leases.give_back(2) == 0 and leases.give_back(1) == 8


def test_several_leases_of_an_epoch_share_what_waits() -> None:
    """Twelve batches: a third of what waits, divided by the workers, rounded up; returned batches come first."""
    leases = BatchLeases(lambda epoch: 12, 2, timeout=60.0)
    first, second = leases.take(worker=1, workers=2), leases.take(worker=2, workers=2)
    assert first is not None and second is not None
    assert (first.number, first.first, first.stop) == (1, 0, 2) and (second.number, second.first, second.stop) == (
        2,
        2,
        4,
    )
    leases.finish(first.number, 1)
    assert leases.give_back(1) == leases.returned == 1 and leases.done == 1
    again = leases.take(worker=2, workers=1)  # ten wait, one of them before the others
    assert again is not None and (again.number, again.first, again.stop) == (3, 1, 2)
    assert leases.belongs_to(3, 2) and not leases.belongs_to(3, 1) and not leases.belongs_to(1, 1)
    assert leases.state() == {"waiting": [(0, 1, 2), (0, 2, 4), (0, 4, 12)], "started_epochs": 1, "done": [(0, 1)]}


def test_an_epoch_without_batches_is_done_at_once() -> None:
    leases = BatchLeases(lambda epoch: 0, 2, timeout=60.0)
    assert leases.epochs_done == 2 and leases.take(worker=1, workers=1) is None


def test_all_workers_without_progress_are_named_once(clock: Clock) -> None:
    leases = BatchLeases(lambda epoch: 90, 1, timeout=60.0)
    for worker in (5, 3, 3):
        leases.take(worker=worker, workers=3)
    clock.seconds = 60.0
    assert leases.expired() == [], "the time is not over before it is"
    clock.seconds = 60.5
    assert leases.expired() == [3, 5]


def test_no_epoch_is_started_beyond_the_limit() -> None:
    leases = BatchLeases(lambda epoch: 4, 3, max_batches=4, timeout=60.0)
    while (lease := leases.take(worker=1, workers=1)) is not None:
        leases.finish(lease.number, lease.stop - lease.first)
    assert leases.finished and leases.state() == {"waiting": [], "started_epochs": 1, "done": [(0, 4)]}
