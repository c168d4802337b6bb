"""The jobs of an agent on its machine, without a server: limits, ends, and kills at every moment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from clew.client.job import JobOrder, JobResult, Resources, Slots
from clew.jobs import supervisor
from clew.jobs.agent.commands import order_task
from clew.jobs.agent.folder import AgentFolder
from clew.jobs.agent.job_list import JobList, JobSettings
from clew.jobs.agent.job_target import JobTarget
from clew.jobs.agent.resource_slots import free_slot
from clew.jobs.launchers.launcher import LaunchedJob
from clew.jobs.launchers.local import LocalLauncher
from clew.jobs.supervisor import ProcessSpec
from clew.jobs.task import ProgramTask, Task
from clew.tuning.resource_slots import available_cores

SLOTS = Slots(cpus=2, gpus=2, memory=1 << 34)


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def order(code: str, *, job: int = 1, attempt: int = 1, **resources: object) -> JobOrder:
    return JobOrder(
        job=job,
        key=f"{job}-x",
        attempt=attempt,
        kind="train",
        name="run",
        spec={"recipe": "tracking", "code": code},
        files={},
        arguments=(),
        target_key=None,
        dataset=None,
        resources=Resources.model_validate(resources),
        token="clew_secret",
    )


def python(order: JobOrder, root: AgentFolder) -> Task:
    """Runs the code in the spec instead of clew."""
    return ProgramTask(command=(sys.executable, "-c", order.spec["code"]))


@pytest.fixture
def root(tmp_path: Path) -> Iterator[AgentFolder]:
    folder = AgentFolder(tmp_path / "agent")
    yield folder
    for each in folder.jobs.glob("*/attempt-*"):
        LocalLauncher().kill(LaunchedJob("local", "", str(each)))


def work(root: AgentFolder, grace: float = 5) -> JobList:
    settings = JobSettings({"CLEW_SERVER": "http://x"}, task_of=python, grace=grace)
    return JobList(root, JobTarget(), SLOTS, settings)


def end(work: JobList, job: int = 1) -> JobResult:
    results: list[JobResult] = []

    def ended() -> bool:
        results[:] = [each for working, each in work.results() if working.order.job == job and each.state != "running"]
        return bool(results)

    until(ended)
    return results[0]


def job_log(root: AgentFolder, job: int = 1, attempt: int = 1) -> str:
    return supervisor.log_file(root.job(f"{job}-x").attempt(attempt)).read_text()


def test_a_job_runs_in_its_folder_with_its_token_and_its_cores(root: AgentFolder) -> None:
    doing = work(root)
    doing.take(
        order(
            "import os; print(os.getcwd(), os.environ['CLEW_TOKEN'], os.environ['CLEW_SERVER'], flush=True);"
            "print(len(os.sched_getaffinity(0)), os.environ['CUDA_VISIBLE_DEVICES'], os.getpgid(0))",
            gpus=1,
        )
    )
    result = end(doing)
    assert (result.code, result.reason) == (0, "") and result.ended is not None
    where, what = job_log(root).splitlines()
    assert where == f"{root.job('1-x').path} clew_secret http://x"
    assert what.split()[:2] == ["1", "0"] and int(what.split()[2]) != psutil.Process().pid
    assert supervisor.process_file(root.job("1-x").attempt(1)).stat().st_mode & 0o077 == 0


def test_the_last_output_of_a_failing_job_is_its_reason(root: AgentFolder) -> None:
    doing = work(root)
    doing.take(order("print('fine'); raise SystemExit('clew: no such thing')"))
    assert (end(doing).code, end(doing).reason) == (1, "no such thing")


def test_the_wall_time_is_enforced(root: AgentFolder) -> None:
    doing = work(root, grace=0.3)
    doing.take(
        order(
            "import signal, time; signal.signal(15, lambda *_: print('asked', flush=True))\nwhile True: time.sleep(1)",
            wall_time=0.5,
        )
    )
    result = end(doing)
    assert result.code == -9 and result.reason == "its wall time of 0.5 s is over"
    assert "asked" in job_log(root)


def test_the_memory_limit_is_enforced(root: AgentFolder) -> None:
    doing = work(root)
    doing.take(order("x = bytearray(300_000_000); import time; time.sleep(60)", memory=100_000_000))
    result = end(doing)
    assert result.code == -9 and "GB of memory, its limit is 0.10 GB" in result.reason
    assert result.memory > 100_000_000


def test_shared_memory_counts_once(root: AgentFolder) -> None:
    forks = "import os, time; x = bytearray(b'1') * 200_000_000; [os.fork() for _ in range(2)]; time.sleep(2.5)"
    doing = work(root)
    doing.take(order(forks, memory=400_000_000))  # four processes of 200 MB each, all the same 200 MB
    assert end(doing).code == 0


def test_a_cancelled_job_may_succeed(root: AgentFolder) -> None:
    doing = work(root)
    doing.take(
        order(
            "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75)); print('on', flush=True)\n"
            "while True: time.sleep(1)"
        )
    )
    until(lambda: "on" in job_log(root))
    doing.cancel(1)
    assert end(doing).code == 75


def test_a_job_cancelled_before_its_supervisor_starts_ends(root: AgentFolder) -> None:
    doing = work(root)
    doing.take(order("import time; print('on', flush=True); time.sleep(60)"))
    for _ in range(3):
        doing.cancel(1)
    assert end(doing).code == -15


def left(root: AgentFolder) -> list[psutil.Process]:
    return list(supervisor.marked_processes(str(root.job("1-x").attempt(1))))


def test_nothing_is_left_of_a_job_that_ended(root: AgentFolder) -> None:
    code = "import time; time.sleep(99)"
    leaves = f"import subprocess as s, sys; s.Popen([sys.executable, '-c', '{code}'], start_new_session=True)"
    doing = work(root)
    doing.take(order(leaves))
    assert end(doing).code == 0
    assert not left(root)


def test_a_job_whose_supervisor_is_killed_is_lost_and_leaves_no_process(root: AgentFolder) -> None:
    doing = work(root)
    doing.take(order("import time; print('on', flush=True); time.sleep(60)"))
    until(lambda: "on" in job_log(root))
    psutil.Process(int(supervisor.supervisor_file(root.job("1-x").attempt(1)).read_text().partition(":")[0])).kill()
    assert end(doing).state == "lost"
    until(lambda: not left(root))


def test_a_job_whose_folder_is_gone_ends(root: AgentFolder) -> None:
    doing = work(root)
    doing.take(order("import time; print('on', flush=True); time.sleep(60)"))
    until(lambda: "on" in job_log(root))
    shutil.rmtree(root.path)
    until(lambda: not left(root))


def test_another_process_takes_over(root: AgentFolder) -> None:
    first = work(root)
    first.take(order("import time; print('started', flush=True); time.sleep(1); print('finished')"))
    until(lambda: "started" in job_log(root))
    second = work(root)
    assert [each.job for each in second.adopt()] == [1]
    assert end(second).code == 0
    assert job_log(root) == "started\nfinished\n"
    second.confirm(1, 1)
    assert not work(root).adopt()


def test_an_order_that_was_only_accepted_is_started_by_the_next_agent(root: AgentFolder) -> None:
    root.job("1-x").accept(order("print('started')"))
    second = work(root)
    second.adopt()
    assert end(second).code == 0 and job_log(root) == "started\n"


def test_an_order_that_comes_again_changes_nothing(root: AgentFolder) -> None:
    doing = work(root)
    for _ in range(3):
        doing.take(order("print('started')"))
    assert end(doing).code == 0
    doing.confirm(1, 1)
    doing.take(order("print('started')"))
    assert end(doing).state == "lost" and job_log(root) == "started\n", "a server that gives it again has lost its end"
    doing.take(order("print('again')", attempt=2))
    assert end(doing).code == 0 and job_log(root, attempt=2) == "again\n"


def test_an_old_attempts_end_leaves_the_next_alone(root: AgentFolder) -> None:
    doing = work(root)
    doing.take(order("raise SystemExit(75)"))
    assert end(doing).code == 75
    doing.take(order("print('again')", attempt=2))  # before this agent gets the answer about the end
    doing.confirm(1, 1)
    assert not doing.drop(1, 1)
    assert [each.attempt for each in doing.held()] == [2]
    assert end(doing).code == 0 and job_log(root, attempt=2) == "again\n"


def test_many_supervisors_of_one_task_start_it_once(tmp_path: Path) -> None:
    once = (sys.executable, "-c", "print('once')")
    ProcessSpec(command=once, working_folder=str(tmp_path), mark="j.1").write(tmp_path)
    with supervisor.log_file(tmp_path).open("ab") as log:
        racing = [
            subprocess.Popen([sys.executable, "-m", supervisor.__name__, str(tmp_path)], stdout=log, stderr=log)
            for _ in range(5)
        ]
        assert {each.wait(60) for each in racing} == {0}
    assert supervisor.log_file(tmp_path).read_text() == "once\n"
    assert LocalLauncher().state(LaunchedJob("local", "", str(tmp_path))) == "finished"


def test_a_job_that_cannot_start_has_a_reason(root: AgentFolder) -> None:
    doing = JobList(root, JobTarget(), SLOTS)
    wants = order("").model_copy(update={"kind": "evaluate", "target_key": "0-x"})
    doing.take(wants)
    assert (end(doing).code, end(doing).reason) == (2, "the run of job 0-x is not on this agent")


@pytest.mark.parametrize("error", [NotADirectoryError("a file"), ValueError("a value"), RecursionError("too deep")])
def test_the_agent_survives_every_fault_of_a_job(root: AgentFolder, error: Exception) -> None:
    def broken(order: JobOrder, root: AgentFolder) -> Task:
        raise error

    for doing in (
        JobList(root, JobTarget(), SLOTS, JobSettings(task_of=broken)) for _ in range(2)
    ):  # the second agent adopts it
        if not doing.adopt():
            doing.take(order(""))
        assert (end(doing).code, end(doing).reason) == (2, str(error))


def test_an_order_that_cannot_be_written_down_says_why(root: AgentFolder) -> None:
    root.job("1-x").spec_file.mkdir(parents=True)
    doing = work(root)
    doing.take(order("print(1)"))
    assert end(doing).code == 2 and "spec.yaml" in end(doing).reason


@pytest.mark.parametrize("name", ["order.json", "spec.yaml", "attempt-1", "recipe.py"])
@pytest.mark.parametrize("kind", ["train", "tune", "prepare"])
def test_a_jobs_name_is_no_file_of_the_agents(root: AgentFolder, name: str, kind: str) -> None:
    renamed = order("").model_copy(update={"name": name, "kind": kind, "files": {"recipe.py": ""}})
    folder = root.job(renamed.key)
    folder.accept(renamed)
    folder.attempt(1).mkdir()
    task = order_task(renamed, root)
    assert not folder.output(name).exists() and str(folder.output(name)) in task.model_dump_json()
    assert folder.order() == renamed


def test_slots_of_jobs_do_not_overlap() -> None:
    needs, cores = Resources(cpus=1, gpus=1), available_cores()
    slots = Slots(cpus=len(cores), gpus=2)
    first = free_slot(needs, slots, [])
    second = free_slot(needs, slots, [first])
    assert first.cores == (cores[0],) and not set(first.cores) & set(second.cores)
    assert (first.devices, second.devices) == ((0,), (1,))
    assert free_slot(Resources(), Slots(cpus=len(cores) + 1), []).cores == ()
