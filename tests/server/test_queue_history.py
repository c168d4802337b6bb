"""What is recorded of a job: times, memory, outputs, and the events of its history."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from clew.client.job import HeldJob, JobResult
from clew.server.accounts.caller import Caller
from clew.server.database import tables
from clew.server.jobs import queue
from clew.server.service import Service
from tests.server.test_database import database
from tests.server.test_queue import ada, agent, execute, later, poll, report, service, submit

__all__ = ["ada", "database", "service"]


def events(service: Service, job: int) -> list[tuple[str, str]]:
    """Kinds and messages, in order."""
    chosen = sa.select(tables.job_events.c.kind, tables.job_events.c.message).where(tables.job_events.c.job == job)
    with service.database.read() as connection:
        return [(row.kind, row.message) for row in connection.execute(chosen.order_by(tables.job_events.c.id))]


def row_of(service: Service, job: int) -> Any:
    with service.database.read() as connection:
        return connection.execute(sa.select(tables.jobs).where(tables.jobs.c.id == job)).one()


@pytest.mark.parametrize(("began", "expected"), [(None, 100.0), (120.0, 120.0)])
def test_times_memory_and_outputs_of_a_job_are_those_that_its_agent_reports(
    service: Service, ada: Caller, began: float | None, expected: float
) -> None:
    job, number = submit(service, ada), agent(service, ada)
    poll(service, ada, number)
    for facts in (
        {"state": "running", "began": 100.0},
        {"state": "ended", "code": 0, "began": began, "ended": 300.0, "memory": 5, "stored": "s3://a/b"},
    ):
        result = JobResult.model_validate({"attempt": 1, **facts})
        assert service.write(lambda transaction: queue.record_result(transaction, number, job, result))  # noqa: B023
    row = row_of(service, job)
    assert (row.state, row.exit_code, row.begun, row.ended) == ("done", 0, expected, 300.0)
    assert (row.facts["memory"], row.facts["stored"]) == (5, "s3://a/b")


def test_the_history_of_a_job_names_every_change(service: Service, ada: Caller) -> None:
    job, number = submit(service, ada, requeue=1), agent(service, ada)
    for attempt in (1, 2):
        poll(service, ada, number)
        report(service, number, job, "running", attempt=attempt)
        report(service, number, job, "ended", attempt=attempt, code=75)
    kinds = [(kind, message) for kind, message in events(service, job) if kind not in ("submitted", "claimed")]
    assert kinds == [
        ("running", "attempt 1"),
        ("requeued", "it stopped before its end; it resumes when its turn comes"),
        ("running", "attempt 2"),
        ("failed", f"it stopped before its end; resume with: clew requeue {job}"),
    ]
    assert row_of(service, job).state == "failed"


@pytest.mark.parametrize(("code", "state"), [(0, "done"), (1, "failed")])
def test_a_job_ends_with_the_state_of_its_exit_code(code: int, state: str, service: Service, ada: Caller) -> None:
    job, number = submit(service, ada, requeue=1), agent(service, ada)
    poll(service, ada, number)
    report(service, number, job, "ended", code=code)
    assert events(service, job)[-1] == (state, "") and events(service, job)[-2] == ("running", "attempt 1")
    assert (row_of(service, job).state, row_of(service, job).exit_code) == (state, code)


def test_a_job_that_was_cancelled_while_it_ran_says_so(service: Service, ada: Caller) -> None:
    job, number = submit(service, ada), agent(service, ada)
    poll(service, ada, number)
    report(service, number, job, "running")
    execute(service, tables.jobs.update().where(tables.jobs.c.id == job).values(cancel=1.0))
    with service.database.read() as connection:
        assert connection.scalar(sa.select(tables.jobs.c.cancel)) is not None
    assert service.write(lambda transaction: queue.jobs_to_cancel(transaction, number)) == [job]
    report(service, number, job, "ended", code=143)
    assert events(service, job)[-1] == ("cancelled", "cancelled while it ran")


def test_a_job_whose_agent_comes_back_goes_on(service: Service, ada: Caller) -> None:
    job, number = submit(service, ada), agent(service, ada)
    poll(service, ada, number)
    report(service, number, job, "running")
    assert later(service, 1000) == [job]
    poll(service, ada, number, (job, 1))
    history = events(service, job)
    assert history[-2:] == [("lost", "its agent a fell silent"), ("running", "its agent is back")]
    assert row_of(service, job).ended is None


def test_an_agent_that_holds_a_queued_job_says_why(service: Service, ada: Caller) -> None:
    job, number = submit(service, ada), agent(service, ada)
    poll(service, ada, number)
    result = JobResult(attempt=1, state="queued", reason="waiting for the site")
    assert service.write(lambda transaction: queue.record_result(transaction, number, job, result))
    assert (row_of(service, job).state, row_of(service, job).reason) == ("claimed", "waiting for the site")
    for stranger, number_of_job, attempt in ((number + 1, job, 1), (number, job + 1, 1), (number, job, 2)):
        other = JobResult(attempt=attempt, state="running")
        assert not service.write(
            lambda transaction: queue.record_result(transaction, stranger, number_of_job, other)  # noqa: B023
        )


def test_an_agent_is_alive_until_its_time_is_over() -> None:
    assert queue.is_alive(100.0, 159.9, timeout=60.0) and not queue.is_alive(100.0, 160.0, timeout=60.0)
    assert not queue.is_alive(100.0)


def test_every_job_that_an_agent_holds_is_compared(service: Service, ada: Caller) -> None:
    """The first is another attempt, the second its own; the third was cancelled, the fourth never arrived."""
    jobs = [submit(service, ada) for _ in range(4)]
    number = agent(service, ada)
    active = {"state": "running", "agent": number, "attempt": 1}
    execute(service, tables.jobs.update().values(**active))
    execute(service, tables.jobs.update().where(tables.jobs.c.id == jobs[2]).values(state="cancelled"))
    execute(service, tables.jobs.update().where(tables.jobs.c.id == jobs[3]).values(state="claimed"))
    held = [HeldJob(job=job, attempt=attempt) for job, attempt in zip(jobs[:3], (2, 1, 1), strict=True)]
    compared = service.write(lambda transaction: queue.reconcile(transaction, number, held, now=1.0))
    assert compared == ([jobs[3]], [jobs[0], jobs[2]])
    assert [row_of(service, job).state for job in jobs] == ["lost", "running", "cancelled", "claimed"]
    assert events(service, jobs[0])[-1] == ("lost", "its agent does not know the job any more")


def test_a_silent_job_whose_trials_have_ended_is_done(service: Service, ada: Caller) -> None:
    job, number = submit(service, ada), agent(service, ada)
    poll(service, ada, number)
    report(service, number, job, "running")
    service.write(lambda transaction: queue.end_if_silent(transaction, job, now=5.0))
    assert row_of(service, job).state == "running", "its agent is not silent"
    later(service, 1000)
    service.write(lambda transaction: queue.end_if_silent(transaction, job, now=5.0))
    assert (row_of(service, job).state, row_of(service, job).ended) == ("done", 5.0)
    assert events(service, job)[-1] == ("done", "its agent was silent at the end of its trials")


def test_a_job_that_is_taken_from_an_agent_waits_with_one_more_attempt(service: Service, ada: Caller) -> None:
    job, number = submit(service, ada), agent(service, ada)
    (order,) = poll(service, ada, number).orders
    before = row_of(service, job)
    service.write(lambda transaction: queue.withdraw(transaction, job, "a", now=5.0))
    after = row_of(service, job)
    assert (after.state, after.agent, after.attempts) == ("waiting", None, before.attempts + 1)
    assert events(service, job)[-1] == ("requeued", "agent a may not run it any more")
    service.tokens.clear()
    assert service.tokens.look_up(order.token) is None
