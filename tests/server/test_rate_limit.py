"""Invalid tokens are counted per address and minute."""

from __future__ import annotations

import pytest

from clew.server.accounts import rate_limit
from clew.server.accounts.rate_limit import RateLimit
from tests.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    result = Clock()
    monkeypatch.setattr(rate_limit, "time", result)
    return result


def statuses(limit: RateLimit, count: int, address: str = "a", *, has_token: bool = True) -> list[int]:
    return [limit.rejection(address, has_token=has_token).status for _ in range(count)]


def test_a_limit_ends_after_a_minute(clock: Clock) -> None:
    limit = RateLimit(2)
    assert statuses(limit, 4) == [401, 401, 429, 429]
    clock.seconds = 59.0
    refused = limit.rejection("a", has_token=True)
    assert refused.status == 429 and refused.retry_after == pytest.approx(1.0)
    clock.seconds = 61.0
    assert statuses(limit, 3) == [401, 401, 429]
    assert limit.total == 8


def test_addresses_are_counted_separately(clock: Clock) -> None:
    limit = RateLimit(1)
    assert statuses(limit, 2, "a") == [401, 429]
    assert statuses(limit, 1, "b") == [401]


def test_requests_without_a_token_are_not_counted(clock: Clock) -> None:
    limit = RateLimit(1)
    assert statuses(limit, 3, has_token=False) == [401] * 3
    assert (limit.total, statuses(limit, 1)) == (0, [401])


def test_the_time_to_wait_counts_from_the_first_bad_token(clock: Clock) -> None:
    clock.seconds = 1000.0
    limit = RateLimit(0)
    assert limit.rejection("a", has_token=True).retry_after == pytest.approx(60.0)
    clock.seconds = 1060.0
    refused = limit.rejection("a", has_token=True)
    assert refused.status == 429 and refused.retry_after == pytest.approx(0.0), "the minute is not over"


def test_addresses_are_forgotten_when_they_are_too_many(clock: Clock) -> None:
    """More than 10,000: an attacker with many addresses cannot take all memory."""
    limit = RateLimit(1)
    for number in range(10_000):
        limit.rejection(str(number), has_token=True)
    assert statuses(limit, 1, "0") == statuses(limit, 1, "1") == [429]
    assert statuses(limit, 1, "one more") == [401]
    assert statuses(limit, 1, "2") == [429], "now they are forgotten"
    assert statuses(limit, 2, "3") == [401, 429] and statuses(limit, 1, "2") == [429]
