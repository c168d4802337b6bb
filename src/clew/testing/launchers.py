"""The contract of launchers."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from clew.errors import RunError
from clew.jobs.launchers.launcher import (
    END_STATES,
    JobState,
    LaunchedJob,
    Launcher,
    Slot,
    Supervision,
    find_launcher,
    watch,
)
from clew.jobs.task import CommandTask, command_task
from clew.testing.suite import required

_JOB = """
import json, os, pathlib, signal, subprocess, sys, time
from clew import Recipe

class Report(Recipe):
    def prepare(self, events): ...
    def model(self): ...

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])

def stop(*_):
    child.kill()
    os._exit(75)

signal.signal(signal.SIGTERM, stop)
cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
note = pathlib.Path({folder!r}) / str(os.getpid())
facts = dict(processes=[os.getpid(), child.pid], cores=cores, word=os.environ.get("CONTRACT_WORD"))
note.with_suffix(".tmp").write_text(json.dumps(facts))
note.with_suffix(".tmp").rename(note.with_suffix(".json"))
print("the job runs", flush=True)
end = time.monotonic() + 300 * {forever}
while time.monotonic() < end:
    time.sleep(0.1)
child.kill()
child.wait()
"""
"""A recipe that reports what a job can see of itself when `clew config show FILE` loads it."""


class LauncherContract:
    """Tests of a launcher. Subclass it and set `launcher`, or define `make_launcher`.

    Example:
        >>> class TestLocal(LauncherContract):
        ...     launcher = "local"
    """

    launcher: ClassVar[str | Callable[[], Launcher] | None] = None
    """The class of the launcher, or its name if it is registered."""
    seconds: ClassVar[float] = 60.0
    """How long a job may take to start or to end."""
    processes: ClassVar[int] = 1
    """How many processes the launcher starts for one task."""
    binds_cores: ClassVar[bool] = True
    """Whether `Slot.cores` are the numbers of cores of this machine. False for a scheduler that chooses them."""
    sees_processes: ClassVar[bool] = True
    """Whether jobs run on this machine, so that the suite can check that all their processes have ended."""

    def make_launcher(self) -> Launcher:
        """Return a new launcher. Override it if the class needs arguments."""
        launcher = required(type(self), "launcher", "MyLauncher")
        made: Launcher = find_launcher(launcher) if isinstance(launcher, str) else launcher()
        return made

    @pytest.fixture
    def job_folder(self, tmp_path: Path) -> Iterator[Path]:
        """The folder of a job. Whatever is left of the job after a test that failed is killed."""
        folder = tmp_path / "job"
        yield folder
        for number in (number for note in self._notes(folder) for number in note["processes"] if self.sees_processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(number).kill()

    def _task(self, folder: Path, *, forever: bool = True) -> CommandTask:
        """A task that reports itself in `folder`; it ends by itself or must be stopped."""
        notes = folder.parent / "notes"
        notes.mkdir(exist_ok=True)
        program = folder.parent / "program.py"
        program.write_text(_JOB.format(folder=str(notes), forever=forever))
        return command_task(["config", "show", str(program)])

    def _notes(self, folder: Path) -> list[Mapping[str, Any]]:
        return [json.loads(file.read_text()) for file in (folder.parent / "notes").glob("*.json")]

    def _wait(self, condition: Callable[[], Any], what: str) -> None:
        end = time.monotonic() + self.seconds
        while not condition():
            assert time.monotonic() < end, f"{what} did not happen within {self.seconds:.0f} s"
            time.sleep(0.05)

    def _wait_until_it_runs(self, launcher: Launcher, job: LaunchedJob) -> list[Mapping[str, Any]]:
        folder = Path(job.folder)
        self._wait(lambda: len(self._notes(folder)) == self.processes, f"the start of {self.processes} processes")
        self._wait(lambda: launcher.state(job) == "running", "the state 'running'")
        return self._notes(folder)

    def _end_state(self, launcher: Launcher, job: LaunchedJob) -> JobState:
        self._wait(lambda: launcher.state(job) in END_STATES, "the end of the job")
        return list(watch(launcher, job))[-1]

    def test_a_job_ends_and_leaves_its_output(self, job_folder: Path) -> None:
        launcher = self.make_launcher()
        job = launcher.start(command_task(["--version"]), folder=job_folder)
        assert (job.launcher, Path(job.folder)) == (launcher.name, job_folder)
        assert self._end_state(launcher, job) == "finished"
        assert _log(job).startswith("clew ")
        end = launcher.end(job)
        assert end is not None and end.code == 0

    def test_a_job_that_fails_is_reported(self, job_folder: Path) -> None:
        launcher = self.make_launcher()
        job = launcher.start(command_task(["config", "show", "nothing"]), folder=job_folder)
        assert self._end_state(launcher, job) == "failed"
        assert "no recipe 'nothing'" in _log(job)
        end = launcher.end(job)
        assert end is not None and end.code != 0
        assert isinstance(launcher.explain(job), str)

    def test_the_task_of_a_folder_starts_once(self, job_folder: Path) -> None:
        launcher = self.make_launcher()
        task = self._task(job_folder, forever=False)
        jobs = [launcher.start(task, folder=job_folder)]
        self._start_again(task, job_folder, jobs)
        for job in jobs:
            assert self._end_state(launcher, job) == "finished"
        self._start_again(task, job_folder, jobs)
        assert self._end_state(launcher, jobs[-1]) == "finished"
        assert len(self._notes(job_folder)) == self.processes, "the task ran more than once"

    def _start_again(self, task: CommandTask, folder: Path, jobs: list[LaunchedJob]) -> None:
        """Start the task of a folder again, as a process does that does not know of the first start."""
        with contextlib.suppress(RunError):  # a launcher may also refuse a folder that is in use
            jobs.append(self.make_launcher().start(task, folder=folder))

    def test_another_process_can_supervise_a_job(self, job_folder: Path) -> None:
        job = self.make_launcher().start(self._task(job_folder), folder=job_folder)
        copy = LaunchedJob(**json.loads(json.dumps(vars(job))))
        other = self.make_launcher()
        self._wait_until_it_runs(other, copy)
        other.kill(copy)
        assert self._end_state(self.make_launcher(), job) != "finished"

    def test_a_job_uses_its_cores_and_its_environment(self, job_folder: Path) -> None:
        core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
        launcher = self.make_launcher()
        supervision = Supervision(environment={"CONTRACT_WORD": "secret"})
        job = launcher.start(
            self._task(job_folder, forever=False), folder=job_folder, slot=Slot((core,)), supervision=supervision
        )
        assert self._end_state(launcher, job) == "finished"
        for note in self._notes(job_folder):
            assert note["word"] == "secret", "Supervision.environment does not reach the job"
            if self.binds_cores and hasattr(os, "sched_getaffinity"):
                assert note["cores"] == [core], "Slot.cores are not those of the job"

    def test_a_job_can_be_stopped(self, job_folder: Path) -> None:
        launcher = self.make_launcher()
        job = launcher.start(self._task(job_folder), folder=job_folder)
        notes = self._wait_until_it_runs(launcher, job)
        launcher.stop(job)
        launcher.stop(job)
        assert self._end_state(launcher, job) == "stopped"
        self._check_gone(notes)
        launcher.stop(job)
        assert launcher.state(job) == "stopped"

    def test_a_job_can_be_killed_with_all_its_processes(self, job_folder: Path) -> None:
        launcher = self.make_launcher()
        job = launcher.start(self._task(job_folder), folder=job_folder)
        notes = self._wait_until_it_runs(launcher, job)
        launcher.kill(job)
        assert self._end_state(launcher, job) in ("lost", "failed", "cancelled")
        self._check_gone(notes)
        launcher.kill(job)

    def _check_gone(self, notes: list[Mapping[str, Any]]) -> None:
        """Check that no process of a job is left."""
        if self.sees_processes:
            numbers = [number for note in notes for number in note["processes"]]
            self._wait(lambda: not any(map(_is_alive, numbers)), "the end of all processes of the job")


def _is_alive(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _log(job: LaunchedJob) -> str:
    """What the processes of a job printed."""
    return "".join(path.read_text() for path in sorted(Path(job.folder).glob("**/log.txt")))
