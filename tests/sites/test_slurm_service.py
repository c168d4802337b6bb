"""Jobs of the server on real Slurm, through an agent on the login node: submitted once and watched, despite kills."""

from __future__ import annotations

import json
import signal
import stat
from pathlib import Path

import pytest

from clew import Client, Dataset, Run
from clew.core.config import to_yaml
from clew.jobs import supervisor
from clew.jobs.launchers.scheduler import id_file
from tests.cli import clew, done
from tests.jobs.agent.conftest import AgentProcess, python
from tests.server.conftest import Live
from tests.sites import long
from tests.sites.cluster import Cluster
from tests.sites.conftest_service import Login
from tests.sites.test_slurm import LINE, SMALL, flat, until
from tests.training import weights
from tests.tuning import template

__all__ = ["flat"]

SLEEPS = "import time; print('started', flush=True); time.sleep({})"


def attempt(agent_process: AgentProcess, job: int, number: int = 1) -> Path:
    return next(agent_process.folder.glob(f"jobs/{job}-*")) / f"attempt-{number}"


def state(client: Client, job: int) -> tuple[str, str]:
    job_record = client.jobs.get(job)
    return job_record.state, job_record.reason


def queue(cluster: Cluster) -> list[str]:
    """Jobs that are or were in the queue."""
    return cluster.call("squeue", "-h", "--states=all", "-o", "%A %j %T").splitlines()


def names(cluster: Cluster, agent_process: AgentProcess, job: int) -> list[str]:
    name = next(
        line for line in (attempt(agent_process, job) / "job.sh").read_text().splitlines() if "--job-name=" in line
    )
    return [line for line in queue(cluster) if name.partition("=")[2] in line]


def test_a_job_runs_in_the_queue_and_its_state_is_reported(site: Cluster, ada: Client, login: Login) -> None:
    agent_process = login()
    where = "import os; print(os.environ['SLURMD_NODENAME'], len(os.environ['CLEW_TOKEN']), flush=True)"
    job = python(
        ada, f"{where}; {SLEEPS.format(1)}", resources={"cpus": 2, "gpus": 1, "memory": 1 << 30, "wall_time": 90}
    )
    ended = ada.jobs.wait(job.id, seconds=90)
    assert ended.state == "done", ended
    assert [each.kind for each in ada.jobs.history(job.id)] == ["submitted", "claimed", "running", "done"]
    assert "".join(ada.jobs.log(job.id)).startswith("n") and "started" in "".join(ada.jobs.log(job.id))
    folder = attempt(agent_process, job.id)
    script, token = (
        (folder / "job.sh").read_text(),
        json.loads(supervisor.process_file(folder).read_text())["environment"],
    )
    for line in ("--cpus-per-task=2", "--gres=gpu:1", "--mem=1024M", "--time=3", "--nodes=1", "--no-requeue"):
        assert f"#SBATCH {line}\n" in script
    assert stat.S_IMODE(supervisor.process_file(folder).stat().st_mode) == 0o600
    number = id_file(folder).read_text()
    stored = site.call("scontrol", "write", "batch_script", number, "-") + site.call("scontrol", "show", "job", number)
    assert token["CLEW_TOKEN"] not in script + stored and "clew_" not in script + stored
    spooled = [file for file in (site.folder / "state").rglob("*") if file.is_file()]
    agent_token = agent_process.token.encode()
    assert spooled and not any(agent_token in file.read_bytes() for file in spooled), (
        "the agent's token went with the job"
    )


def test_a_job_starts_once_though_its_agent_was_killed_before_it_saved_the_number(
    site: Cluster, ada: Client, login: Login, tmp_path: Path
) -> None:
    agent_process, mark = login(), tmp_path / "started"
    site.call("scontrol", "update", "PartitionName=debug", "State=DOWN")
    try:
        job = python(ada, f"open({str(mark)!r}, 'a').write('x')")
        until(lambda: "the partition is down" in state(ada, job.id)[1])
        assert state(ada, job.id)[0] == "claimed"
        agent_process.end(signal.SIGKILL)
        folder = attempt(agent_process, job.id)
        id_file(folder).unlink()  # as if the agent had been killed between the two
        agent_process.start()
        until(id_file(folder).exists)
        assert len(names(site, agent_process, job.id)) == 1
        agent_process.end(signal.SIGKILL)
        site.call("sbatch", str(folder / "job.sh"))  # a job that was submitted in this time
    finally:
        site.call("scontrol", "update", "PartitionName=debug", "State=UP")
    until(supervisor.end_file(folder).exists)
    agent_process.start()
    assert ada.jobs.wait(job.id, seconds=60).state == "done"
    until(lambda: all("COMPLETED" in line for line in names(site, agent_process, job.id)))
    assert mark.read_text() == "x" and len(names(site, agent_process, job.id)) == 2


def test_jobs_that_wait_and_jobs_that_run_are_cancelled(site: Cluster, ada: Client, login: Login) -> None:
    agent_process = login()
    running = python(ada, SLEEPS.format(60), resources={"cpus": 2, "nodes": 1})
    until(lambda: "started" in "".join(ada.jobs.log(running.id)))
    site.call("sbatch", "--nodes=2", "--exclusive", "--wrap", "sleep 60")  # of another user
    waiting = python(ada, SLEEPS.format(60), resources={"workers": 2, "cpus": 2, "nodes": 2})
    until(lambda: "waiting for" in state(ada, waiting.id)[1])
    for job in (running, waiting):
        ada.jobs.cancel(job.id)
        assert ada.jobs.wait(job.id, seconds=60).state == "cancelled"
    assert "CANCELLED" in names(site, agent_process, waiting.id)[0]


def test_actions_of_slurm_on_a_job_are_named(site: Cluster, ada: Client, login: Login) -> None:
    agent_process = login()
    taken = python(ada, SLEEPS.format(60), requeue=3)
    until(lambda: "started" in "".join(ada.jobs.log(taken.id)))
    site.call("scancel", supervisor.supervisor_file(attempt(agent_process, taken.id)).read_text())
    ended = ada.jobs.wait(taken.id, seconds=60)
    assert (ended.state, ended.reason, ended.attempt) == ("failed", "cancelled at the scheduler", 1)
    large = python(ada, "pass", resources={"memory": 5000 << 20})
    ended = ada.jobs.wait(large.id, seconds=60)
    assert ended.state == "failed" and "Slurm rejected the job: Memory specification" in ended.reason, ended
    lengthy = ada.jobs.wait(python(ada, "pass", resources={"wall_time": 7200}).id, seconds=60)
    assert lengthy.state == "failed" and "here allows 3600" in lengthy.reason


@pytest.mark.parametrize("wall", ["10m", pytest.param("12s", marks=long)])
def test_a_training_on_two_nodes_is_submitted_and_resumes_after_its_wall_time(
    wall: str, site: Cluster, service: Live, ada: Client, login: Login, flat: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent_process = login(clew=True)
    monkeypatch.setenv("CLEW_SERVER", service.url)
    monkeypatch.setenv("CLEW_TOKEN", service.token)
    slow = "slow=0.03" if wall == "10m" else "slow=0.2"
    options = (
        "--workers",
        "2",
        "--nodes",
        "2",
        "--wall-time",
        wall,
        "--requeue",
        "9",
        "--on",
        "here",
        "--output",
        wall,
    )
    words = ("submit", LINE, "--dataset", str(flat.path), "--epochs", "30", *SMALL, "--set", slow, *options)
    output = done(*words, "--follow")
    assert "done" in output
    (job,) = [each for each in ada.jobs.list() if each.name == wall]
    assert (job.attempt > 2) == (wall == "12s") and job.state == "done" and job.resources.site == "here"
    run = next(agent_process.folder.glob("jobs/*/output/*"))
    done("train", LINE, "--dataset", str(flat.path), "--epochs", "30", *SMALL, "--workers", "2", "--output", "whole")
    two, whole = Run.open(run), weights(Run.open("whole"))
    assert {stream: (two.last("start", stream) or {})["ranks"] for stream in two.streams()} == {
        "rank-0": 2,
        "rank-1": 2,
    }
    assert all((tensor == whole[name]).all() for name, tensor in weights(two).items())
    assert job.run is not None and ada.runs.get(job.run).state == "finished"


@long
@pytest.mark.timeout(300)
def test_a_node_failure_is_named_and_a_requeued_job_resumes(site: Cluster, ada: Client, login: Login) -> None:
    agent_process = login()
    once, again = python(ada, SLEEPS.format(90)), python(ada, SLEEPS.format(20), requeue=1)
    for job in (once, again):
        until(lambda job=job: "started" in "".join(ada.jobs.log(job.id)))  # type: ignore[misc]
    numbers = [supervisor.supervisor_file(attempt(agent_process, job.id)).read_text() for job in (once, again)]
    nodes = {site.call("squeue", "-h", "-j", number, "-o", "%N").strip() for number in numbers}
    for node in nodes:
        site.kill(node)
    try:
        ended = ada.jobs.wait(once.id, seconds=120)
        assert (ended.state, ended.reason) == ("lost", "a node failed under it")
    finally:
        for node in nodes:
            site.start(node)
    ended = ada.jobs.wait(again.id, seconds=120)
    assert (ended.state, ended.attempt) == ("done", 2)
    assert any("a node failed under it" in each.message for each in ada.jobs.history(again.id))
    until(lambda: site.call("sinfo", "-h", "-o", "%D %t").strip() == "3 idle")


def test_a_job_for_a_site_waits_for_an_agent_of_that_site(
    site: Cluster, service: Live, ada: Client, flat: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_SERVER", service.url)
    monkeypatch.setenv("CLEW_TOKEN", service.token)
    Path("sites/other.yaml").write_text(Path("sites/here.yaml").read_text())
    output = done("submit", LINE, "--dataset", str(flat.path), *SMALL, "--on", "other")
    assert "no agent of other" in output and "clew agent --on other" in output
    unknown = clew("submit", LINE, "--dataset", str(flat.path), "--on", "elswhere")
    assert unknown.code == 2 and "no site 'elswhere'" in unknown.err


def test_without_a_server_the_site_gets_it_directly(
    site: Cluster, flat: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLEW_SERVER", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    output = done(
        "submit", LINE, "--dataset", str(flat.path), "--epochs", "1", *SMALL, "--output", "runs/direct", "--on", "here"
    )
    assert "watch it: " in output and "follow" in output
    assert "finished" in done("follow", "runs/direct")
    outcome = clew("submit", LINE, "--dataset", str(flat.path), "--on", "here", "--group", "trackers")
    assert outcome.code == 2 and "--group" in outcome.err


@long
@pytest.mark.timeout(300)
def test_an_asynchronous_training_and_a_study_of_six_are_watched(
    site: Cluster, service: Live, ada: Client, login: Login, flat: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    login(clew=True)
    monkeypatch.setenv("CLEW_SERVER", service.url)
    monkeypatch.setenv("CLEW_TOKEN", service.token)
    parts = ("--set", "train.strategy=downpour", "--workers", "2", "--nodes", "3", "--output", "apart")
    done("submit", LINE, "--dataset", str(flat.path), "--epochs", "2", *SMALL, *parts, "--on", "here", "--follow")
    data = template(flat, tune={"trials": 6, "parallel": 2}, train={"epochs": 1}).data
    Path("six.yaml").write_text(to_yaml(data))
    done("submit", "six.yaml", "--kind", "tune", "--output", "six", "--on", "here", "--follow")
    jobs = {each.name: each for each in ada.jobs.list() if each.name in ("apart", "six")}
    assert {each.state for each in jobs.values()} == {"done"} and len(jobs) == 2
    assert jobs["apart"].run is not None and ada.runs.get(jobs["apart"].run).state == "finished"
