"""Studies whose trials are jobs of the server: two agents share them, and are killed.

Trials are lines of Python that report to the server, so that a test takes seconds. `test_trial_trainings.py` trains.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from clew import Client
from clew.client.job import FINAL_STATES, Job, JobDetail, Submission
from clew.client.trial import Trial
from clew.errors import ServerError
from tests.jobs.agent.conftest import AgentProcess, StartAgent
from tests.jobs.agent.test_work import until
from tests.server.conftest import Live

ClientFor = Callable[..., Client]
TRIAL = """
import json, os, sys, time, urllib.request

study, trials = json.loads(sys.argv[1])

def call(action, **body):
    request = urllib.request.Request(
        f"{os.environ['CLEW_SERVER']}/api/v1/studies/{study}/{action}",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {os.environ['CLEW_TOKEN']}", "Content-Type": "application/json"},
    )
    return json.load(urllib.request.urlopen(request))

def run(trial, x):
    for step in (1, 2, 3):
        time.sleep(PAUSE)
        if call("report", trial=trial, step=step, value=x / step)["prune"]:
            return call("tell", trial=trial, pruned=True, reason=f"pruned in step {step}")
    return call("tell", trial=trial, values=[x / 3], seconds=3 * PAUSE)

while not os.path.exists("GATE"):
    time.sleep(0.1)
for each in trials:
    print(each["trial"], run(each["trial"], each["settings"]["x"]), flush=True)
"""


def submit(client: Client, *, pause: float = 0.1, gate: str = "/", requeue: int = 0, **tune: Any) -> JobDetail:
    """Submit a study of x. Its trials start when the file `gate` exists, and take three times `pause` seconds."""
    code = TRIAL.replace("PAUSE", str(pause)).replace("GATE", gate)
    study = {"space": {"x": {"uniform": [0, 1]}}, "sampler": {"name": "random", "seed": 1}, **tune}
    spec = {"recipe": "none", "code": code, "train": {"epochs": 3}, "tune": study}
    return client.jobs.submit(Submission(kind="tune", name="bowl", spec=spec, trials_as_jobs=True, requeue=requeue))


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Live]:
    """A server that gives up silent agents after five seconds."""
    file = tmp_path / "serve.yaml"
    file.write_text("limits: {agent_seconds: 5}\n")
    live = Live(tmp_path / "service", ("--no-agent", "--config", str(file))).start()
    yield live
    live.stop()


def ended(client: Client, job: int) -> Job:
    """Wait for the end of a study's job."""
    until(lambda: client.jobs.get(job).state in FINAL_STATES, 180)
    return client.jobs.get(job)


def trials_of(client: Client, job: int) -> list[Trial]:
    """The trials of a study's job."""
    return list(client.studies.trials(client.jobs.get(job).study or 0))


def trial_jobs(client: Client, job: int, *states: Any) -> list[Job]:
    """The jobs of the trials of a study's job."""
    return list(client.jobs.list(study=client.jobs.get(job).study, state=states))


def are_done(client: Client, job: int, count: int) -> bool:
    """Whether so many trials of a study's job are done."""
    return len(trial_jobs(client, job, "done")) >= count


def check_complete(client: Client, job: int, count: int, states: Sequence[str] = ("complete",)) -> None:
    """Check that exactly the planned trials have a result, each from one job that is done."""
    assert ended(client, job).state == "done", client.jobs.get(job)
    trials, jobs = trials_of(client, job), trial_jobs(client, job)
    assert [trial.number for trial in trials] == list(range(count))
    assert {trial.state for trial in trials} == set(states)
    assert {trial.job for trial in trials} == {each.id for each in jobs}
    assert {each.state for each in jobs} == {"done"}
    ends = Counter(event.kind for each in jobs for event in client.jobs.history(each.id))
    assert ends["done"] == len(jobs)


def printed_results(agents: Sequence[AgentProcess]) -> Counter[str]:
    """How often each trial was told with success, by what the jobs printed."""
    logs = [log for agent in agents for log in agent.folder.glob("jobs/*/attempt-*/log.txt")]
    lines = [line for log in logs for line in log.read_text().splitlines() if "'accepted': True" in line]
    return Counter(line.split()[0] for line in lines)


def kill_machine(agent: AgentProcess) -> None:
    """Kill an agent and all processes of its jobs at once, as a machine that loses power."""
    assert agent.process is not None
    mark = str(agent.folder)
    processes = [each for each in psutil.process_iter(["cmdline"]) if mark in " ".join(each.info["cmdline"] or ())]
    for process in [child for each in processes for child in each.children(recursive=True)] + processes:
        if process.is_running():
            process.kill()
    agent.process.wait(30)


@pytest.mark.long
def test_two_agents_share_a_study(client_for: ClientFor, start_agent: StartAgent) -> None:
    client = client_for("ada")
    agents = [start_agent(client, name, cpus=1) for name in ("one", "two")]
    job = submit(client, trials=12)
    assert job.study and job.state == "waiting"
    check_complete(client, job.id, 12)
    assert {each.agent for each in trial_jobs(client, job.id)} == {"one", "two"}
    assert printed_results(agents) == {str(number): 1 for number in range(12)}
    assert job.id in {each.id for each in client.jobs.list()}
    assert "trial" not in {each.kind for each in client.jobs.list()}, "trials are listed with their study only"
    best = min(trial.values[0] for trial in trials_of(client, job.id))
    assert client.studies.best(job.study)[0].values == (best,)
    lines = "".join(client.jobs.log(job.id)).splitlines()
    assert len(lines) == 12 and f"complete  {best:.6g}" in "".join(lines)


def test_one_agent_is_enough_and_parallel_limits_the_trials(client_for: ClientFor, start_agent: StartAgent) -> None:
    client = client_for("ada")
    job = submit(client, trials=4, parallel=1)
    until(lambda: len(trial_jobs(client, job.id)) == 1)  # no agent is connected: one trial waits
    start_agent(client, "only", cpus=3)
    largest = 0
    while client.jobs.get(job.id).state not in FINAL_STATES:
        largest = max(largest, len(trial_jobs(client, job.id, "waiting", "claimed", "running")))
    assert largest == 1
    check_complete(client, job.id, 4)


@pytest.mark.long
@pytest.mark.exec
def test_a_machine_dies_with_trials_on_it(impatient: Live, start_agent: StartAgent) -> None:
    with Client(impatient.url, impatient.token) as client:
        agents = {name: start_agent(client, name, cpus=2) for name in ("one", "two")}
        job = submit(client, trials=12, pause=0.5)
        until(lambda: any(each.agent == "two" for each in trial_jobs(client, job.id, "running")))
        kill_machine(agents["two"])
        lost = {each.id for each in trial_jobs(client, job.id, "running") if each.agent == "two"}
        assert lost
        check_complete(client, job.id, 12)
        jobs = trial_jobs(client, job.id)
        assert {each.agent for each in jobs if each.id in lost} == {"one"}
        assert {each.attempt for each in jobs if each.id in lost} == {2}
        assert max(printed_results(list(agents.values())).values()) == 1


def test_the_results_of_a_killed_agent_count_and_are_not_repeated(
    impatient: Live, start_agent: StartAgent, tmp_path: Path
) -> None:
    """The jobs of the agent continue without it, and send their results themselves."""
    with Client(impatient.url, impatient.token) as client:
        job = submit(client, trials=3, gate=str(tmp_path / "gate"))
        lonely = start_agent(client, "one", cpus=3)
        until(lambda: len(trial_jobs(client, job.id, "running")) == 3)
        lonely.end(signal.SIGKILL)
        (tmp_path / "gate").touch()
        check_complete(client, job.id, 3)
        assert {each.attempt for each in trial_jobs(client, job.id)} == {1}
        assert printed_results([lonely]) == {"0": 1, "1": 1, "2": 1}


def test_the_server_dies_and_proposes_no_trial_twice(server: Live, start_agent: StartAgent) -> None:
    with Client(server.url, server.token) as client:
        agent = start_agent(client, "one", cpus=2)
        job = submit(client, trials=8, requeue=5)
        for count in (2, 4):
            until(partial(are_done, client, job.id, count))
            server.stop(signal.SIGKILL)
            server.start()
        assert ended(client, job.id).state == "done"
        trials = trials_of(client, job.id)
        assert [trial.number for trial in trials] == list(range(8))
        assert max(printed_results([agent]).values()) == 1


def test_bad_trials_are_pruned(client_for: ClientFor, start_agent: StartAgent) -> None:
    client = client_for("ada")
    start_agent(client, "one", cpus=2)
    job = submit(client, trials=10, pause=0.05, pruner={"name": "median", "startup": 2, "warmup": 0})
    check_complete(client, job.id, 10, ("complete", "pruned"))
    pruned = [trial for trial in trials_of(client, job.id) if trial.state == "pruned"]
    assert all(trial.reason == f"pruned in step {max(trial.reports)}" for trial in pruned)


def test_packs_are_divided_among_agents(client_for: ClientFor, start_agent: StartAgent) -> None:
    client = client_for("ada")
    for name in ("one", "two"):
        start_agent(client, name, cpus=1)
    until(lambda: len([each for each in client.agents() if each.alive]) == 2)
    job = submit(client, trials=10, packed=16, pause=0.05)
    check_complete(client, job.id, 10)
    jobs = trial_jobs(client, job.id)
    sizes = sorted(len(client.jobs.get(each.id).spec["trials"]) for each in jobs)
    assert sizes == [5, 5] and {each.agent for each in jobs} == {"one", "two"}


def test_a_cancelled_study_is_continued(client_for: ClientFor, start_agent: StartAgent) -> None:
    client = client_for("ada")
    agent = start_agent(client, "one", cpus=2)
    job = submit(client, trials=6, pause=0.2)
    until(lambda: any(trial.state == "complete" for trial in trials_of(client, job.id)))
    client.jobs.cancel(job.id)
    assert ended(client, job.id).state == "cancelled"
    assert not trial_jobs(client, job.id, "waiting", "claimed", "running")
    client.jobs.requeue(job.id)
    assert ended(client, job.id).state == "done"
    assert [trial.state for trial in trials_of(client, job.id)] == ["complete"] * 6
    assert printed_results([agent]) == {str(number): 1 for number in range(6)}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("raise SystemExit('no such thing')", "trials failed in a row: 2; the last one: no such thing"),
        ("print('clew: no dataset'); sys.exit(2)", "no dataset"),
    ],
    ids=["in-a-row", "settings"],
)
def test_failing_trials_end_the_study(client_for: ClientFor, start_agent: StartAgent, line: str, reason: str) -> None:
    client = client_for("ada")
    start_agent(client, "one", cpus=1)
    spec = {
        "recipe": "none",
        "code": f"import sys\n{line}",
        "tune": {"space": {"x": {"uniform": [0, 1]}}, "failures": 2},
    }
    job = client.jobs.submit(Submission(kind="tune", name="bad", spec=spec, trials_as_jobs=True))
    end = ended(client, job.id)
    assert (end.state, end.exit_code) == ("failed", 1) and end.reason == reason
    assert not trial_jobs(client, job.id, "waiting", "running")


def test_only_the_job_of_a_trial_changes_it(client_for: ClientFor) -> None:
    client = client_for("ada")
    job = submit(client, trials=2)
    until(lambda: len(trials_of(client, job.id)) == 1)
    (trial,) = trials_of(client, job.id)
    study, its_job = job.study or 0, trial.job or 0
    with pytest.raises(ServerError, match="the trials of this study are jobs"):
        client.studies.ask(study)
    with pytest.raises(ServerError, match="the trials of this study are jobs"):
        client.studies.tell(study, 0, 1.0)
    for change in (client.jobs.retry, client.jobs.requeue):
        with pytest.raises(ServerError, match=f"is a trial of the study of job {job.id}"):
            change(its_job)
    client.jobs.cancel(job.id)
    assert ended(client, job.id).state == "cancelled"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"storage": "sqlite"}, "the server stores the study; remove tune.storage"),
        ({"space": {}}, "name a space"),
        ({"sampler": "gird"}, "sampler"),
    ],
    ids=["storage", "space", "sampler"],
)
def test_a_study_that_cannot_be_proposed_is_refused(client_for: ClientFor, change: Any, message: str) -> None:
    with pytest.raises((ServerError, ValueError), match=message):
        submit(client_for("ada"), **change)
