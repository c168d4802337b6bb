"""The order of the queue, and the jobs of agents that are silent, come back or get no answer."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from clew.client.agent_messages import AgentRegistration, Poll, PollAnswer
from clew.client.job import HeldJob, Job, JobOrder, JobResult, Resources, Slots, Submission, remaining_slots
from clew.server.accounts.caller import Caller
from clew.server.accounts.users import add_user
from clew.server.api.overview import overview as api_overview
from clew.server.config import ServiceConfig
from clew.server.dashboard import overview
from clew.server.database import tables
from clew.server.database.writer import Transaction
from clew.server.jobs import actions, agents, queue
from clew.server.jobs.job_rows import job_detail
from clew.server.jobs.scheduling import Usage, WaitingJob, choose_jobs, claim_jobs
from clew.server.service import Service
from tests.server.test_database import database

__all__ = ["database"]
_numbers = itertools.count()
NOW = 1000.0
SLOTS = Slots(cpus=4, gpus=1, memory=100)


def waiting(
    number: int, *, owner: int = 1, priority: int = 0, created: float | None = None, **needs: Any
) -> WaitingJob:
    moment = NOW - 100 + number if created is None else created
    return WaitingJob(number, owner, priority, Resources(**needs), moment)


def order(jobs: list[WaitingJob], **options: Any) -> list[int]:
    usage = Usage(options.get("share", {}), options.get("quotas", {}))
    chosen = choose_jobs(jobs, SLOTS, options.get("free", SLOTS), usage, now=NOW)
    return [job.id for job in chosen]


def test_priority_then_share_then_age() -> None:
    assert order([waiting(1), waiting(2, priority=1), waiting(3)]) == [2, 1, 3]
    assert order([waiting(1), waiting(2), waiting(3, owner=2)]) == [1, 3, 2]
    assert order([waiting(1), waiting(2, owner=2)], share={1: 8}) == [2, 1]
    assert order([waiting(2, created=NOW - 1), waiting(1, created=NOW - 2)]) == [1, 2]


def test_a_quota_holds_back_its_owner_alone() -> None:
    assert order([waiting(1), waiting(2), waiting(3, owner=2)], quotas={1: 1}) == [1, 3]


def test_small_jobs_overtake_a_large_one_until_it_has_waited_for_long() -> None:
    free, large = Slots(cpus=2, memory=100), {"cpus": 4}
    assert order([waiting(1, **large), waiting(2)], free=free) == [2]
    assert order([waiting(1, created=NOW - 3600, **large), waiting(2)], free=free) == []
    assert order([waiting(1, created=NOW - 3600, cpus=64), waiting(2)], free=free) == [2], "it never fits here"


class _Owner(int):
    """Counts how often a user is looked up."""

    looks = 0

    def __hash__(self) -> int:
        _Owner.looks += 1
        return int(self)


def test_a_long_queue_is_gone_through_once() -> None:
    owners = [_Owner(number) for number in range(5)]
    large = [waiting(number, owner=owners[number % 5], cpus=4) for number in range(1, 1001)]
    _Owner.looks = 0
    assert order(large, free=Slots(cpus=2, memory=100)) == []
    assert _Owner.looks < 10 * len(large)


_jobs = st.builds(
    waiting,
    number=st.integers(1, 30),
    owner=st.integers(1, 3),
    priority=st.integers(-2, 2),
    cpus=st.integers(1, 6),
    gpus=st.integers(0, 2),
    memory=st.none() | st.integers(1, 150),
)


@given(st.lists(_jobs, unique_by=lambda each: each.id), st.integers(0, 4))
def test_no_more_is_assigned_than_is_free(waiting: list[WaitingJob], taken: int) -> None:
    free = remaining_slots(SLOTS, [Resources()] * taken)
    result = choose_jobs(waiting, SLOTS, free, Usage(), now=NOW)
    assert len({each.id for each in result}) == len(result)
    assert sum(each.resources.cpus for each in result) <= free.cpus
    assert sum(each.resources.gpus for each in result) <= free.gpus
    assert sum(each.resources.memory or 0 for each in result) <= free.memory
    rest = remaining_slots(free, [each.resources for each in result])
    assert all(each in result or not each.resources.fits(rest) for each in waiting), "what fits is not left waiting"


@given(st.lists(_jobs, unique_by=lambda each: each.id), st.dictionaries(st.integers(1, 3), st.integers(0, 9)))
def test_fair_shares_are_updated_after_every_pick(waiting: list[WaitingJob], share: dict[int, int]) -> None:
    result = choose_jobs(waiting, SLOTS, SLOTS, Usage(share), now=NOW)
    rest, used, free = [each for each in waiting if each.resources.fits(SLOTS)], Counter(share), SLOTS
    for each in result:
        able = [other for other in rest if other.resources.fits(free)]
        assert each == min(able, key=lambda other: (-other.priority, used[other.owner], other.created, other.id))
        rest.remove(each)
        used[each.owner] += each.resources.cpus
        free = remaining_slots(free, [each.resources])


@pytest.fixture
def service(tmp_path: Path, database: Any) -> Iterator[Service]:
    opened = Service.open(ServiceConfig(folder=tmp_path / "service", database=database(f"queue-{next(_numbers)}")))
    yield opened
    opened.close()


@pytest.fixture
def ada(service: Service) -> Caller:
    user = service.write(lambda transaction: add_user(transaction, "ada"))
    return Caller(user, "ada", admin=False, scopes=frozenset({"submit", "agent"}), groups=frozenset(), token=0)


@pytest.fixture
def bob(service: Service, ada: Caller) -> Caller:
    """A user in the group of ada, which has number 1."""

    def work(transaction: Transaction) -> int:
        user, group = add_user(transaction, "bob"), transaction.add(tables.groups, name="trackers", created=0.0)
        for each in (ada.user, user):
            transaction.execute(tables.members.insert().values(user=each, group=group))
        return user

    return replace(ada, user=service.write(work), name="bob", groups=frozenset({1}))


def execute(service: Service, *statements: Any) -> None:
    service.write(lambda transaction: [transaction.execute(each) for each in statements])


def submit(service: Service, caller: Caller, **options: Any) -> int:
    submission = Submission(name="job", spec={"recipe": "none"}, **options)
    return service.write(lambda transaction: actions.submit(transaction, caller, submission))


def agent(service: Service, caller: Caller, name: str = "a", uid: str = "00000000", **options: Any) -> int:
    registration = AgentRegistration(name=name, uid=uid, slots=Slots(cpus=2), **options)
    return service.write(lambda transaction: agents.register_agent(transaction, caller, registration))


def poll(service: Service, caller: Caller, number: int, *held: tuple[int, int], first: bool = True) -> PollAnswer:
    request = Poll(held=tuple(HeldJob(job=job, attempt=attempt) for job, attempt in held))
    return service.write(
        lambda transaction: agents.answer_poll(transaction, service, caller, number, request, first=first)
    )


def report(service: Service, number: int, job: int, state: Any, attempt: int = 1, code: int | None = None) -> bool:
    result = JobResult(attempt=attempt, state=state, code=code)
    return service.write(lambda transaction: queue.record_result(transaction, number, job, result))


def later(service: Service, seconds: float) -> list[int]:
    """The cleanup after this time, on a server that started long ago."""
    return service.write(
        lambda transaction: queue.expire_silent_agents(transaction, since=0, now=time.time() + seconds)
    )


def job_state(service: Service, caller: Caller, job: int) -> Job:
    with service.database.read() as connection:
        return job_detail(connection, caller, job)


def good(service: Service, order: JobOrder) -> bool:
    service.tokens.clear()
    return service.tokens.look_up(order.token) is not None


def test_a_lost_answer_is_repeated(service: Service, ada: Caller) -> None:
    job, number = submit(service, ada), agent(service, ada)
    first = poll(service, ada, number)
    again = poll(service, ada, number)
    assert [each.attempt for each in (*first.orders, *again.orders)] == [1, 1]
    assert not good(service, first.orders[0]) and good(service, again.orders[0])
    assert poll(service, ada, number, (job, 1)).empty


def test_a_silent_agents_job_is_lost_and_found_again(service: Service, ada: Caller) -> None:
    job, number = submit(service, ada), agent(service, ada)
    (order,) = poll(service, ada, number).orders
    assert report(service, number, job, "running")
    assert later(service, queue.AGENT_TIMEOUT - 10) == []
    assert later(service, queue.AGENT_TIMEOUT + 10) == [job]
    assert job_state(service, ada, job).state == "lost" and "agent a fell silent" in job_state(service, ada, job).reason
    assert good(service, order)
    assert poll(service, ada, number, (job, 1)).empty
    assert job_state(service, ada, job).state == "running"
    assert report(service, number, job, "ended", code=0)
    assert job_state(service, ada, job).state == "done" and not good(service, order)


def test_a_requeued_job_moves_to_another_agent_and_the_first_must_drop_it(service: Service, ada: Caller) -> None:
    job, first = submit(service, ada, requeue=1), agent(service, ada)
    (order,) = poll(service, ada, first).orders
    report(service, first, job, "running")
    later(service, queue.AGENT_TIMEOUT + 10)
    assert job_state(service, ada, job).state == "waiting"
    second = agent(service, ada, "b", "11111111")
    assert poll(service, ada, second).empty, "its files are with the first, which may be back soon"
    service.write(
        lambda transaction: queue.record_contact(transaction, first, now=time.time() - 2 * queue.AGENT_TIMEOUT)
    )
    assert [each.attempt for each in poll(service, ada, second).orders] == [2]
    assert not good(service, order)
    assert poll(service, ada, first, (job, 1)).drop == (job,)
    assert not report(service, first, job, "ended", code=0)
    assert job_state(service, ada, job).state == "claimed"


def test_a_job_that_waits_again_is_found_where_it_runs(service: Service, ada: Caller) -> None:
    job, number = submit(service, ada, requeue=1), agent(service, ada)
    poll(service, ada, number)
    later(service, queue.AGENT_TIMEOUT + 10)
    assert report(service, number, job, "running")
    assert (job_state(service, ada, job).state, job_state(service, ada, job).attempt) == ("running", 1)


def test_a_job_cancelled_while_its_agent_was_silent_is_dropped(service: Service, ada: Caller) -> None:
    job, number = submit(service, ada, requeue=1), agent(service, ada)
    (order,) = poll(service, ada, number).orders
    report(service, number, job, "running")
    later(service, queue.AGENT_TIMEOUT + 10)
    assert job_state(service, ada, job).state == "waiting" and good(service, order)
    service.write(lambda transaction: actions.cancel(transaction, ada, job))
    assert job_state(service, ada, job).state == "cancelled" and not good(service, order)
    assert poll(service, ada, number, (job, 1)).drop == (job,)
    assert job_state(service, ada, job).state == "cancelled"


def test_jobs_that_an_agent_forgot_are_lost(service: Service, ada: Caller) -> None:
    job, number = submit(service, ada), agent(service, ada)
    poll(service, ada, number)
    report(service, number, job, "running")
    assert poll(service, ada, number, first=False).empty and job_state(service, ada, job).state == "running"
    poll(service, ada, number)
    assert job_state(service, ada, job).state == "lost"


def test_a_repeated_result_of_a_job_changes_nothing(service: Service, ada: Caller) -> None:
    job, number = submit(service, ada, requeue=5), agent(service, ada)
    poll(service, ada, number)
    assert report(service, number, job, "ended", code=75)
    assert job_state(service, ada, job).state == "waiting"
    assert report(service, number, job, "ended", code=75), "told twice"
    answer = poll(service, ada, number, (job, 1))
    assert not answer.drop and [each.attempt for each in answer.orders] == [2]


def test_a_late_report_of_an_old_attempt_does_not_end_the_new_one(service: Service, ada: Caller) -> None:
    job, number = submit(service, ada, requeue=1), agent(service, ada)
    poll(service, ada, number)
    report(service, number, job, "ended", code=75)
    poll(service, ada, number)
    assert report(service, number, job, "running", attempt=2)
    assert not report(service, number, job, "ended", attempt=1, code=0)
    assert (job_state(service, ada, job).state, job_state(service, ada, job).attempt) == ("running", 2)


def test_a_new_server_gives_agents_time(service: Service, ada: Caller) -> None:
    submit(service, ada)
    number = agent(service, ada)
    poll(service, ada, number)
    service.write(lambda transaction: queue.record_contact(transaction, number, now=0))
    assert service.write(lambda transaction: queue.expire_silent_agents(transaction, since=time.time())) == []


@pytest.mark.parametrize("leaver", ["ada", "bob"])
def test_a_group_ends_when_either_leaves_it(service: Service, ada: Caller, bob: Caller, leaver: str) -> None:
    number = agent(service, bob, group="trackers")
    job = submit(service, replace(ada, groups=bob.groups), group="trackers")
    left = {"ada": ada, "bob": bob}[leaver].user
    execute(service, tables.members.delete().where(tables.members.c.user == left))
    assert not poll(service, bob, number).orders
    execute(service, tables.users.update().where(tables.users.c.id == left).values(admin=True))
    assert [each.job for each in poll(service, bob, number).orders] == [job], "administrators are in all groups"


@pytest.mark.parametrize("leaver", ["ada", "bob"])
def test_a_lost_answer_is_not_repeated_after_access_was_removed(
    service: Service, ada: Caller, bob: Caller, leaver: str
) -> None:
    number = agent(service, bob, group="trackers")
    job = submit(service, replace(ada, groups=bob.groups), group="trackers")
    (first,) = poll(service, bob, number).orders
    left = {"ada": ada, "bob": bob}[leaver].user
    execute(service, tables.members.delete().where(tables.members.c.user == left))
    assert not poll(service, bob, number).orders and not good(service, first)
    now = job_state(service, ada, job)
    assert (now.state, now.agent, now.requeue) == ("waiting", None, 1)
    (second,) = poll(service, ada, agent(service, ada, uid="00000001")).orders
    assert (second.job, second.attempt) == (job, 2)


def test_jobs_of_a_disabled_user_wait(service: Service, ada: Caller, bob: Caller) -> None:
    number = agent(service, bob, group="trackers")
    submit(service, replace(ada, groups=bob.groups), group="trackers")
    for disabled in (True, False):
        execute(service, tables.users.update().where(tables.users.c.id == ada.user).values(disabled=disabled))
        assert bool(poll(service, bob, number).orders) != disabled


def test_a_job_that_the_quota_holds_back_says_so(service: Service, ada: Caller) -> None:
    numbers = [submit(service, ada) for _ in range(2)]
    number = agent(service, ada)
    service.write(lambda transaction: claim_jobs(transaction, number, quota=1))
    with service.database.read() as connection:
        reasons = [job_detail(connection, ada, each, quota=1).reason for each in numbers]
        more = job_detail(connection, ada, numbers[1], quota=2).reason
    assert reasons == ["", "quota: 1 jobs of ada run, and no more than 1 may"] and not more


def test_quotas_are_enforced(service: Service, ada: Caller) -> None:
    for _ in range(2):
        submit(service, ada)
    number = agent(service, ada)
    assert service.write(lambda transaction: claim_jobs(transaction, number, quota=0)) == []
    assert len(service.write(lambda transaction: claim_jobs(transaction, number, quota=1))) == 1
    service.write(lambda transaction: transaction.execute(tables.users.update().values(quota_jobs=2)))
    assert len(service.write(lambda transaction: claim_jobs(transaction, number, quota=1))) == 1


def test_an_agent_without_a_free_core_is_not_searched_for(service: Service, ada: Caller) -> None:
    number = agent(service, ada)
    submit(service, ada, resources={"cpus": 2})
    request: set[str] = set()

    def claim(transaction: Transaction) -> list[int]:
        sa.event.listen(transaction.connection, "before_cursor_execute", lambda *arguments: request.add(arguments[2]))
        return claim_jobs(transaction, number)

    assert len(service.write(claim)) == 1
    submit(service, ada)
    request.clear()
    assert service.write(claim) == []
    assert len(request) == 2, "the agent, and what runs"


def test_two_agents_of_one_name_are_distinguished(service: Service, ada: Caller) -> None:
    number = agent(service, ada)
    assert agent(service, ada) == number
    with pytest.raises(Exception, match="another agent of yours is called a"):
        agent(service, ada, uid="11111111")


def test_every_attempt_has_its_own_token(service: Service, ada: Caller) -> None:
    job, number = submit(service, ada, requeue=1), agent(service, ada)
    (first,) = poll(service, ada, number).orders
    report(service, number, job, "ended", code=75)
    (second,) = poll(service, ada, number).orders
    assert first.token != second.token and not good(service, first) and good(service, second)
    with service.database.read() as connection:
        live = sa.select(sa.func.count()).where(tables.tokens.c.job == job, tables.tokens.c.revoked.is_(None))
        assert connection.scalar(live) == 1


@pytest.mark.parametrize(("silence", "alive"), [(queue.AGENT_TIMEOUT - 10, True), (queue.AGENT_TIMEOUT + 10, False)])
def test_api_dashboard_and_queue_agree_on_agents_that_are_gone(
    service: Service, ada: Caller, silence: float, alive: bool
) -> None:
    number, contact = agent(service, ada), time.time() - silence
    execute(service, tables.agents.update().where(tables.agents.c.id == number).values(seen=contact))
    with service.database.read() as connection:
        listed = agents.list_agents(connection, ada)
        page = overview.gather(connection, ada, queue.AGENT_TIMEOUT)["agents"]
    summary = api_overview(service, ada).agents
    assert [each.alive for each in listed] == [each["alive"] for each in page] == [alive]
    assert [each.alive for each in summary] == [alive]
