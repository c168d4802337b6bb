"""When a run stops by itself: before its limit, and before the end of a batch job."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from clew.errors import InterruptError
from clew.jobs.lease import Lease
from clew.jobs.worker_process import FORWARDED_INTERRUPT
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_asks_the_run_to_stop(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignal(None) as stop:
        assert not stop.requested
        signal.raise_signal(number)
        assert stop.requested and not stop.interrupted and stop.reason == ""
    assert signal.getsignal(number) is before
    assert str(stop.stopped_error(7, Path("run"))) == "stopped at step 7; resume with: clew train --resume run"


@pytest.mark.parametrize(("number", "told"), [(signal.SIGINT, True), (FORWARDED_INTERRUPT, False)])
def test_the_first_interrupt_tells_the_user_unless_a_parent_has_forwarded_it(
    number: signal.Signals, told: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    with StopSignal(None) as stop:
        stop.can_save = True
        signal.raise_signal(number)
        assert stop.interrupted
    assert ("press Ctrl-C again to stop at once" in capfd.readouterr().err) is told


def test_a_worker_that_ignores_interrupts_goes_on_ignoring_them() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignal(None) as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop.requested and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            stop.can_save = True
            signal.raise_signal(FORWARDED_INTERRUPT)
            assert stop.interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_owner_of_a_lease_asks_to_stop_and_takes_the_run_away(tmp_path: Path) -> None:
    lease = Lease(tmp_path / "lease")
    lease.grant()
    stop = StopSignal(None, lease)
    stop.renew_lease()
    assert not stop.requested and not stop.lease_lost
    lease.request_stop("the machine is needed")
    stop.renew_lease()
    assert not stop.requested, "it was read a moment ago"
    stop.renew_lease(now=True)
    assert stop.requested and stop.reason == "the machine is needed"
    assert str(stop.stopped_error(7, Path("run"))).startswith("stopped at step 7 (the machine is needed); resume with")
    lease.revoke()
    stop.renew_lease(now=True)
    assert stop.lease_lost


def test_the_first_interrupt_stops_at_the_next_step_and_the_second_at_once() -> None:
    with StopSignal(None) as stop:
        stop.can_save = True
        signal.raise_signal(signal.SIGINT)
        assert stop.requested and stop.interrupted and stop.reason == "Ctrl-C"
        assert isinstance(stop.stopped_error(7, Path("run")), InterruptError)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_an_interrupt_before_the_first_step_interrupts_at_once() -> None:
    with StopSignal(None) as stop:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert not stop.requested


def test_without_a_lease_none_is_lost() -> None:
    stop = StopSignal(None)
    stop.renew_lease()
    assert stop.lease_lost is False
