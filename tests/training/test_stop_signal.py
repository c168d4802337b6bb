"""When a run stops by itself: before its limit, and before the end of a batch job."""

from __future__ import annotations

import pytest

from clew.training import stop_signal
from clew.training.stop_signal import StopSignal


class Clock:
    """Stands for the module `time`: the tests set the seconds."""

    seconds = 1_000_000.0

    def time(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    result = Clock()
    monkeypatch.setattr(stop_signal, "time", result)
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    return result


def seconds_until_stop(clock: Clock, stop: StopSignal) -> float:
    """Try every second, and return the first at which the run must stop."""
    start = clock.seconds
    while not stop.requested:
        clock.seconds += 1
    return clock.seconds - start


@pytest.mark.parametrize(
    ("job", "limit", "stops"),
    [
        (3600.0, None, 3540.0),  # a minute before the end of the job
        (100.0, None, 75.0),  # of a short job, a quarter of its time
        (8.0, None, 6.0),
        (3600.0, 30.0, 30.0),
        (100.0, 3000.0, 75.0),
    ],
)
def test_a_run_stops_before_the_end_of_its_job(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, job: float, limit: float | None, stops: float
) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(clock.seconds + job))
    assert seconds_until_stop(clock, StopSignal(limit)) == stops


def test_without_a_limit_it_stops_on_request_only(clock: Clock) -> None:
    stop = StopSignal(None)
    clock.seconds += 1e9
    assert not stop.requested
    stop.request()
    assert stop.requested
