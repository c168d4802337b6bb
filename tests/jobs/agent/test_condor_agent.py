"""An agent's jobs at HTCondor, through the launcher contract. Scripts stand in for HTCondor's commands."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clew.client.job import JobResult, Slots
from clew.errors import ConfigError
from clew.jobs.agent.folder import AgentFolder
from clew.jobs.agent.job_list import JobList, JobSettings
from clew.jobs.agent.job_target import JobTarget, Offer
from clew.jobs.launchers.launcher import LaunchedJob
from clew.jobs.launchers.local import LocalLauncher
from clew.jobs.launchers.scheduler import id_file
from clew.jobs.sites import Site
from tests.jobs.agent.test_work import order, python

SITE = Site(name="pool", scheduler="condor", poll_seconds=0.1)
SUBMIT = """#!{python}
import json, pathlib, re, subprocess, sys
queue = pathlib.Path({queue!r})
text = pathlib.Path(sys.argv[-1]).read_text()
value = lambda name: re.search(rf"^{{name}} = (.*)$", text, re.M)[1]
number = len(list(queue.glob("*.json"))) + 1
log = open(value("output"), "ab")
job = subprocess.Popen([value("executable"), str(number)], stdout=log, stderr=log, start_new_session=True)
row = {{"ClusterId": number, "JobStatus": 2, "JobBatchName": value("batch_name"), "pid": job.pid}}
(queue / f"{{number}}.json").write_text(json.dumps(row))
print(f"{{number}}.0 - {{number}}.0")
"""
QUEUE = """#!{python}
import json, os, pathlib, sys
rows = [json.loads(file.read_text()) for file in pathlib.Path({queue!r}).glob("*.json")]
alive = [row for row in rows if pathlib.Path(f"/proc/{{row['pid']}}/cmdline").exists()
         and pathlib.Path(f"/proc/{{row['pid']}}/cmdline").read_bytes()]
word = sys.argv[-1]
name = word.split('"')[1] if '"' in word else None
wanted = [row for row in alive if (row["JobBatchName"] == name if name else str(row["ClusterId"]) == word)]
print(json.dumps(wanted))
"""
STATUS = """#!/bin/sh
echo '[{"Machine": "a", "TotalCpus": 8, "TotalGpus": 1, "TotalMemory": 1024},
       {"Machine": "a", "TotalCpus": 8, "TotalGpus": 1, "TotalMemory": 1024},
       {"Machine": "b", "TotalCpus": 4, "TotalMemory": 512}]'
"""


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands of a pool that runs every job at once; returns the folder of its queue."""
    queue, commands = tmp_path / "queue", tmp_path / "bin"
    queue.mkdir()
    commands.mkdir()
    filled = {"python": sys.executable, "queue": str(queue)}
    scripts = {
        "condor_submit": SUBMIT.format(**filled),
        "condor_q": QUEUE.format(**filled),
        "condor_history": "#!/bin/sh\necho '[]'\n",
        "condor_status": STATUS,
        "condor_rm": "#!/bin/sh\ntrue\n",
    }
    for name, text in scripts.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    return queue


@pytest.fixture
def root(tmp_path: Path) -> Iterator[AgentFolder]:
    folder = AgentFolder(tmp_path / "agent")
    yield folder
    for attempt in folder.jobs.glob("*/attempt-*"):
        LocalLauncher().kill(LaunchedJob("local", "", str(attempt)))


def jobs(root: AgentFolder) -> JobList:
    return JobList(root, JobTarget(SITE), Slots(cpus=8, site="pool"), JobSettings(task_of=python))


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def wait(list_: JobList) -> JobResult:
    results: list[JobResult] = []

    def ended() -> bool:
        results[:] = [result for _, result in list_.results() if result.state in ("ended", "lost")]
        return bool(results)

    until(ended)
    return results[0]


def test_a_job_runs_in_the_pool_and_its_end_is_reported(root: AgentFolder, pool: Path) -> None:
    running = jobs(root)
    running.take(order("import os; print(os.environ['CLEW_TOKEN'])", memory=1 << 30))
    assert (wait(running).code, wait(running).reason) == (0, "")
    attempt = root.job("1-x").attempt(1)
    assert (attempt / "log.txt").read_text() == "clew_secret\n"
    submitted = (attempt / "job.sub").read_text() + (attempt / "job.sh").read_text()
    assert "request_memory = 1024M" in submitted and "clew_secret" not in submitted


def test_a_job_starts_once_though_its_agent_was_killed_before_it_wrote_the_number(
    root: AgentFolder, pool: Path
) -> None:
    first = jobs(root)
    first.take(order("import time; print('started', flush=True); time.sleep(2)"))
    id_file(root.job("1-x").attempt(1)).unlink()
    second = jobs(root)
    assert [each.job for each in second.adopt()] == [1]
    assert wait(second).code == 0
    assert (root.job("1-x").attempt(1) / "log.txt").read_text() == "started\n" and len(list(pool.glob("*"))) == 1


def test_a_cancelled_job_may_write_its_checkpoint(root: AgentFolder, pool: Path) -> None:
    running = jobs(root)
    running.take(
        order(
            "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75)); print('on', flush=True)\n"
            "while True: time.sleep(1)"
        )
    )
    until(lambda: "on" in (root.job("1-x").attempt(1) / "log.txt").read_text())
    running.cancel(1)
    assert wait(running).code == 75


def test_an_agent_offers_what_the_pool_has(pool: Path) -> None:
    slots = JobTarget(SITE).slots(Offer(gpus=0))
    assert (slots.cpus, slots.gpus, slots.nodes, slots.memory, slots.site) == (12, 0, 2, 1536 << 20, "pool")


def test_no_agent_can_serve_panda() -> None:
    site = Site(name="grid", scheduler="panda", container="docker://registry.example.org/clew:0.1")
    with pytest.raises(ConfigError, match="an agent cannot watch single jobs of PanDA"):
        JobTarget(site).slots(Offer())
