"""A server, agents and jobs in processes: nothing is lost or done twice when one of them is killed."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from clew import Client
from clew.client.agent_messages import AgentRegistration, PollAnswer
from clew.client.connection import Connection
from clew.client.job import Job, JobOrder, JobResult, Slots
from clew.errors import RunError, ServerError
from clew.jobs import supervisor
from clew.jobs.agent.agent import Agent
from clew.jobs.agent.folder import AgentFolder
from clew.jobs.task import Task
from tests.jobs.agent.conftest import AgentProcess, StartAgent, python
from tests.jobs.agent.test_work import order, until
from tests.server.conftest import Live

SLEEPS = "import time; print('started', flush=True); time.sleep({}); print('finished')"
ClientFor = Callable[..., Client]


def state(client: Client, job: int) -> str:
    return client.jobs.get(job).state


def kinds(client: Client, job: int) -> list[str]:
    return [each.kind for each in client.jobs.history(job)]


def test_a_job_runs_and_what_it_prints_streams(client_for: ClientFor, start_agent: StartAgent) -> None:
    ada = client_for("ada")
    start_agent(ada)
    job = python(ada, "print('häuser'); print('é' * 200_000)", name="first")
    updates = list(ada.jobs.follow(job.id))
    assert [each.state for each in updates if isinstance(each, Job)][-1] == "done"
    text = "".join(each for each in updates if isinstance(each, str))
    assert text == "häuser\n" + "é" * 200_000 + "\n" == "".join(ada.jobs.log(job.id))
    assert kinds(ada, job.id) == ["submitted", "claimed", "running", "done"]
    assert ada.jobs.get(job.id).agent == "a"
    assert ada.connection.call("GET", "/overview")["storage"] == len(text.encode())


def test_a_full_quota_stores_the_start_of_a_log(
    client_for: ClientFor, start_agent: StartAgent, client: httpx.Client
) -> None:
    ada = client_for("ada")
    start_agent(ada)
    name = ada.me()["name"]
    assert client.patch(f"/api/v1/users/{name}", json={"quota_bytes": 1}).status_code == 200
    code = "import time\nfor _ in range(4):\n    print('a' * 2_000_000, flush=True); time.sleep(0.3)"
    job = ada.jobs.wait(python(ada, code).id)
    stored_bytes = ada.connection.call("GET", "/overview")["storage"]
    assert job.state == "done" and 100_000 <= stored_bytes <= 1_000_000


def test_a_failing_job_reports_its_exit_code_and_last_output(client_for: ClientFor, start_agent: StartAgent) -> None:
    ada = client_for("ada")
    start_agent(ada)
    job = ada.jobs.wait(python(ada, "import sys; print('no luck', flush=True); sys.exit(3)").id)
    assert (job.state, job.exit_code, job.reason) == ("failed", 3, "no luck")


def test_cancelling_ends_what_waits_at_once_and_what_runs_soon(client_for: ClientFor, start_agent: StartAgent) -> None:
    ada = client_for("ada")
    job = python(ada, SLEEPS.format(60))
    assert ada.jobs.cancel(job.id).state == "cancelled"
    agent_process = start_agent(ada)
    job = python(ada, SLEEPS.format(60))
    until(lambda: "started" in "".join(ada.jobs.log(job.id)))
    assert ada.jobs.cancel(job.id).cancelling
    assert ada.jobs.wait(job.id, seconds=30).state == "cancelled"
    (attempt,) = agent_process.folder.glob(f"jobs/{job.id}-*/attempt-1")
    assert not list(supervisor.marked_processes(str(attempt)))
    with pytest.raises(ServerError, match="has ended: cancelled"):
        ada.jobs.cancel(job.id)


def test_limits_are_reasons(client_for: ClientFor, start_agent: StartAgent) -> None:
    ada = client_for("ada")
    start_agent(ada)
    long = python(ada, SLEEPS.format(60), resources={"wall_time": 0.5})
    large = python(ada, "x = bytearray(300_000_000); import time; time.sleep(60)", resources={"memory": 100_000_000})
    ended = ada.jobs.wait(long.id, seconds=60)
    assert (ended.state, ended.reason) == ("failed", "its wall time of 0.5 s is over")
    ended = ada.jobs.wait(large.id, seconds=60)
    assert ended.state == "failed" and "GB of memory" in ended.reason


def test_a_job_that_stopped_early_is_requeued_as_often_as_requested(
    client_for: ClientFor, start_agent: StartAgent
) -> None:
    again = (
        "import pathlib, sys; f = pathlib.Path('count'); n = int(f.read_text()) if f.exists() else 0\n"
        "f.write_text(str(n + 1)); print('part', n + 1); sys.exit(0 if n == 2 else 75)"
    )
    ada = client_for("ada")
    start_agent(ada)
    job = ada.jobs.wait(python(ada, again, requeue=3).id)
    assert (job.state, job.attempt) == ("done", 3)
    assert kinds(ada, job.id).count("requeued") == 2
    assert ["".join(ada.jobs.log(job.id, attempt=n)) for n in (1, 2, 3)] == ["part 1\n", "part 2\n", "part 3\n"]
    once = ada.jobs.wait(python(ada, again, requeue=1).id)
    assert (once.state, once.attempt, once.exit_code) == ("failed", 2, 75)
    assert f"clew requeue {once.id}" in once.reason
    ada.jobs.requeue(once.id)
    assert (ada.jobs.wait(once.id).state, ada.jobs.get(once.id).attempt) == ("done", 3)


def test_the_next_attempt_may_be_ordered_before_the_answer_about_the_last(tmp_path: Path) -> None:
    class Slow(Connection):
        """A server whose order for the next attempt arrives before its answer about the end of the last one."""

        def call(self, method: str, path: str, *, body: Any = None, **options: Any) -> Any:
            if path.endswith("/log"):
                return {"size": 0}
            if body["attempt"] == 1:
                agent.obey(PollAnswer(orders=(order("print(2)", attempt=2),), drop=(1,)))
            return {"accepted": True}

    uid = {"name": "a", "uid": "01234567", "slots": Slots()}
    with Slow("http://127.0.0.1:9", "x", retry_seconds=0) as link:
        agent = Agent(link, AgentFolder(tmp_path), AgentRegistration.model_validate(uid), task_of=refused)
        agent.jobs.take(order("", attempt=1))
        ((working, _),) = agent.jobs.results()
        agent.report_job(working, JobResult(attempt=1, state="lost", reason="x"))
        assert [(each.job, each.attempt) for each in agent.jobs.held()] == [(1, 2)]


def refused(order: JobOrder, root: AgentFolder) -> Task:
    raise RunError("not here")


def test_a_retry_is_another_job(client_for: ClientFor, start_agent: StartAgent) -> None:
    ada = client_for("ada")
    start_agent(ada)
    first = ada.jobs.wait(python(ada, "print('hello')").id)
    second = ada.jobs.retry(first.id)
    assert second.retry_of == first.id and ada.jobs.wait(second.id).state == "done"
    with pytest.raises(ServerError, match="is done"):
        ada.jobs.requeue(first.id)


def test_submitting_twice_is_submitting_once(client_for: ClientFor) -> None:
    ada = client_for("ada")
    first, second = (python(ada, "pass", uid="0123456789abcdef") for _ in range(2))
    assert first.id == second.id


def test_jobs_wait_for_slots_and_urgent_ones_come_first(client_for: ClientFor, start_agent: StartAgent) -> None:
    ada = client_for("ada")
    first = python(ada, SLEEPS.format(1), resources={"cpus": 2})
    low, high, never = (
        python(ada, "pass", priority=priority, resources={"cpus": cpus})
        for priority, cpus in ((0, 2), (5, 2), (99, 64))
    )
    start_agent(ada, cpus=2)
    until(lambda: state(ada, first.id) == "running" or state(ada, high.id) == "done")
    assert state(ada, low.id) == "waiting"
    ended = [ada.jobs.wait(job.id, seconds=30) for job in (high, low)]
    assert ended[0].started is not None and ended[1].started is not None
    assert ended[0].started < ended[1].started
    assert state(ada, never.id) == "waiting"
    ada.jobs.cancel(never.id)


def test_an_agent_killed_while_a_job_runs_adopts_it_again(
    client_for: ClientFor, start_agent: StartAgent, tmp_path: Path
) -> None:
    ada = client_for("ada")
    agent_process = start_agent(ada)
    mark = tmp_path / "started"
    job = python(ada, f"open({str(mark)!r}, 'a').write('x')\n{SLEEPS.format(2)}")
    until(mark.exists)
    agent_process.end(signal.SIGKILL)
    assert state(ada, job.id) in ("claimed", "running")
    agent_process.start()
    assert ada.jobs.wait(job.id, seconds=60).state == "done"
    assert mark.read_text() == "x" and "".join(ada.jobs.log(job.id)) == "started\nfinished\n"
    assert f"job {job.id} was started before" in agent_process.log


def test_a_job_that_ends_without_its_agent_is_reported_later(client_for: ClientFor, start_agent: StartAgent) -> None:
    ada = client_for("ada")
    agent_process = start_agent(ada)
    job = python(ada, SLEEPS.format(1))
    until(lambda: state(ada, job.id) == "running")
    agent_process.end(signal.SIGKILL)
    folder = next(agent_process.folder.glob(f"jobs/{job.id}-*/attempt-1"))
    until(supervisor.end_file(folder).exists)
    assert state(ada, job.id) == "running"
    agent_process.start()
    assert ada.jobs.wait(job.id, seconds=60).state == "done"


def test_a_killed_supervisor_is_noticed(client_for: ClientFor, start_agent: StartAgent) -> None:
    ada = client_for("ada")
    agent_process = start_agent(ada)
    job = python(ada, SLEEPS.format(60))
    until(lambda: state(ada, job.id) == "running")
    name = next(agent_process.folder.glob(f"jobs/{job.id}-*/attempt-1/supervisor")).read_text()
    psutil.Process(int(name.partition(":")[0])).kill()
    ended = ada.jobs.wait(job.id, seconds=60)
    assert (ended.state, ended.reason) == ("lost", "its supervisor was killed")


@pytest.mark.long
def test_two_agents_race_and_every_job_is_done_once(
    client_for: ClientFor, start_agent: StartAgent, tmp_path: Path
) -> None:
    ada = client_for("ada")
    for name in ("a", "b"):
        start_agent(ada, name, cpus=4)
    marks = tmp_path / "marks"
    line = f"import os; f = os.open({str(marks)!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT); os.write(f, b'{{}}\\n')"
    job_ids = [python(ada, line.format(number)).id for number in range(50)]
    ended = [ada.jobs.wait(job, seconds=120) for job in job_ids]
    assert {each.state for each in ended} == {"done"}, [each.reason for each in ended if each.state != "done"]
    assert {each.attempt for each in ended} == {1}
    assert Counter(marks.read_text().split()) == Counter(map(str, range(50)))
    assert {each.agent for each in ended} == {"a", "b"}


def test_only_agents_of_the_owner_or_the_group_get_a_job(client_for: ClientFor, start_agent: StartAgent) -> None:
    ada, bob, eve = client_for("ada", group="trackers"), client_for("bob", group="trackers"), client_for("eve")
    start_agent(eve, "eve")
    start_agent(bob, "bob")
    private, shared = python(ada, "print(1)"), python(ada, "print(2)", group="trackers")
    until(lambda: len(eve.agents()) == 1 and len(bob.agents()) == 1)
    time.sleep(1)
    assert (state(ada, private.id), state(ada, shared.id)) == ("waiting", "waiting")
    start_agent(bob, "group", group="trackers")
    assert ada.jobs.wait(shared.id, seconds=30).agent == "group"
    assert state(ada, private.id) == "waiting"
    for stranger in (bob, eve):
        with pytest.raises(ServerError, match="no such job"):
            stranger.jobs.get(private.id)
    with pytest.raises(ServerError, match="no such job"):
        eve.jobs.get(shared.id)
    with pytest.raises(ServerError, match="no such group"):
        python(eve, "print(3)", group="trackers")


def test_an_agent_cannot_serve_a_group_that_is_not_its_owners(client_for: ClientFor, start_agent: StartAgent) -> None:
    client_for("ada", group="trackers")
    eve = client_for("eve")
    agent_process = start_agent(eve, "eve", group="trackers")
    assert agent_process.process is not None and agent_process.process.wait(30) != 0
    assert "no such group" in agent_process.log


def test_a_user_cannot_report_for_the_agent_of_another_user(client_for: ClientFor, start_agent: StartAgent) -> None:
    ada, eve = client_for("ada"), client_for("eve")
    start_agent(ada)
    until(lambda: bool(ada.agents()))
    number = ada.agents()[0].id
    job = python(ada, SLEEPS.format(60))
    until(lambda: state(ada, job.id) == "running")
    for path, body in (("poll", {}), (f"jobs/{job.id}", {"attempt": 1, "state": "ended", "code": 0})):
        with pytest.raises(ServerError, match="no such agent"):
            eve.connection.call("POST", f"/agents/{number}/{path}", body=body)


def _token(agent_process: AgentProcess, job: int) -> str:
    from clew.jobs.agent.folder import JobFolder

    order = JobFolder(next(agent_process.folder.glob(f"jobs/{job}-*"))).order()
    assert order is not None
    return order.token


def test_the_token_of_a_job_grants_access_to_its_run_only_and_until_it_ends(
    client_for: ClientFor, start_agent: StartAgent, shared_server: Live
) -> None:
    ada = client_for("ada")
    agent_process = start_agent(ada)
    before = ada.connection.call("POST", "/runs", body={"uid": "mine", "name": "mine"})
    job = python(ada, SLEEPS.format(60))
    until(lambda: state(ada, job.id) == "running")
    with shared_server.client(_token(agent_process, job.id)) as job_client:
        run = job_client.post("/api/v1/runs", json={"uid": "jobs", "name": "jobs"}).json()
        assert run["job"] == job.id and job_client.get(f"/api/v1/runs/{run['id']}").status_code == 200
        refused: list[httpx.Response] = [
            job_client.get(f"/api/v1/runs/{before['id']}"),
            job_client.get("/api/v1/runs"),
            job_client.get("/api/v1/jobs"),
            job_client.get(f"/api/v1/jobs/{job.id}"),
            job_client.post("/api/v1/jobs", json={"name": "x", "spec": {"recipe": "x"}}),
            job_client.get("/api/v1/agents"),
            job_client.post("/api/v1/tokens", json={"name": "x", "scopes": ["read"]}),
        ]
        assert {each.status_code for each in refused} <= {403, 404}
        assert ada.jobs.get(job.id).run == run["id"]
        ada.jobs.cancel(job.id)
        ada.jobs.wait(job.id, seconds=30)
        assert job_client.get(f"/api/v1/runs/{run['id']}").status_code == 401


def _deep(levels: int) -> dict[str, Any]:
    return {"a": _deep(levels - 1)} if levels else {}


@pytest.mark.parametrize("bad", ["\ud800", {"\udfff": 1}, _deep(200), _deep(300)], ids=["half", "key", "200", "300"])
def test_values_that_json_cannot_hold_are_refused(person: Any, bad: Any) -> None:
    ada: httpx.Client = person("ada", scopes=("submit", "agent"))
    registration = {"name": "a", "uid": "0123456789abcdef", "slots": {"cpus": 1}}
    agent = ada.post("/api/v1/agents", json=registration).json()["id"]
    job = {"name": "job", "spec": {"recipe": "none", "bad": bad}}
    for path, body in (("jobs", job), ("runs", {"uid": "x", "name": "x", "config": {"bad": bad}})):
        response = ada.post(f"/api/v1/{path}", content=json.dumps(body), headers={"Content-Type": "application/json"})
        assert response.status_code == 422 and "cannot be sent" in response.text
    assert ada.post(f"/api/v1/agents/{agent}/poll", json={"wait": 0}).json()["orders"] == []


@pytest.fixture
def user(server: Live) -> Iterator[Client]:
    with Client(server.url, server.token) as client:
        yield client


def test_a_server_killed_while_jobs_run_loses_nothing(user: Client, server: Live, start_agent: StartAgent) -> None:
    agent_process = start_agent(user)
    job_ids = [python(user, f"import time; print('started {n}', flush=True); time.sleep({n})").id for n in (1, 2, 3)]
    until(lambda: state(user, job_ids[0]) == "running")
    server.stop(signal.SIGKILL)
    time.sleep(1.5)  # the first job ends in this time
    server.start()
    ended = [user.jobs.wait(job, seconds=60) for job in job_ids]
    assert [(each.state, each.attempt) for each in ended] == [("done", 1)] * 3
    assert ["".join(user.jobs.log(job)) for job in job_ids] == [f"started {n}\n" for n in (1, 2, 3)]
    assert "the server does not answer" in agent_process.log


def test_following_continues_after_a_restart_of_the_server(user: Client, server: Live, start_agent: StartAgent) -> None:
    start_agent(user)
    job = python(user, "import time\nfor n in range(6): print(n, flush=True); time.sleep(.5)")
    updates: list[Any] = []
    for each in user.jobs.follow(job.id):
        updates.append(each)
        if each == "1\n":
            server.stop(signal.SIGKILL)
            server.start()
    assert "".join(each for each in updates if isinstance(each, str)) == "0\n1\n2\n3\n4\n5\n"


def test_the_server_alone_is_enough(tmp_path: Path) -> None:
    live = Live(tmp_path / "service", ("--agent",)).start()
    try:
        with Client(live.url, live.token) as client:
            until(lambda: [each.name for each in client.agents() if each.alive] == ["local"])
            local = _pid(live)
            psutil.Process(local).kill()
            local = _pid(live, other=local)
            live.stop(signal.SIGKILL)
            until(lambda: not psutil.pid_exists(local))
            live.start()
            until(lambda: psutil.pid_exists(_pid(live)))
    finally:
        local = _pid(live)
        live.stop()
    until(lambda: not psutil.pid_exists(local))


def _pid(live: Live, other: int = 0) -> int:
    """The process id of the local agent, once it differs from `other`."""
    assert live.process is not None
    children, parent = list[int](), psutil.Process(live.process.pid)

    def there() -> bool:
        children[:] = [each.pid for each in parent.children() if each.pid != other]
        return bool(children)

    until(there)
    return children[0]
