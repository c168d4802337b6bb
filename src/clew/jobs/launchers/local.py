"""Tasks as processes on this machine. They outlive the terminal they were started from."""

from __future__ import annotations

import atexit
import dataclasses
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import psutil

from clew.core.process import safe_path
from clew.errors import RunError
from clew.jobs import supervisor
from clew.jobs.containers import DIGEST_VARIABLE, local_container, mounted_folders
from clew.jobs.launchers.launcher import JobState, LaunchedJob, Slot, Supervision, state_of_end
from clew.jobs.supervisor import JobEnd, ProcessSpec, named_process, process_name
from clew.jobs.task import Task, process_command, task_file, write_task
from clew.storage.transfer_state import cache_folder

_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_supervisors: list[subprocess.Popen[bytes]] = []
"""Supervisors that this process started. Python warns if such an object is deleted before its process ends."""


@atexit.register
def _leave_running() -> None:
    for process in _supervisors:
        if process.poll() is None:
            process.returncode = 0  # it continues by intention; Python would warn about it


class LocalLauncher:
    """Each job is a process under a supervisor in a session of its own. A job's id is its supervisor's name.

    Args:
        image: A container image with clew in it, in which jobs run; None: they run in no container.
        image_options: More options of what runs the image.
    """

    name = "local"

    def __init__(self, image: str | None = None, image_options: Sequence[str] = ()) -> None:
        self._image, self._image_options = image, image_options

    def start(
        self, task: Task, *, folder: Path, slot: Slot | None = None, supervision: Supervision | None = None
    ) -> LaunchedJob:
        name = supervisor.supervisor_file(folder)
        try:
            if name.exists():
                return LaunchedJob(self.name, name.read_text(), str(folder))
            spec = _process(task, folder, slot or Slot(), supervision or Supervision(grace=None))
            if self._image is not None:
                spec = self._in_image(self._image, spec, task, folder, supervision)
            folder.mkdir(parents=True, exist_ok=True)
            write_task(task, folder)
            spec.write(folder)
            secrets = () if supervision is None else supervision.environment
            return LaunchedJob(self.name, _spawn(folder, without=secrets), str(folder))
        except OSError as error:
            raise RunError(f"{folder}: cannot start a job there ({error})") from error

    def state(self, job: LaunchedJob) -> JobState:
        folder = Path(job.folder)
        name = supervisor.supervisor_file(folder)
        alive = self._supervisor(job) is not None
        started = name.exists()
        end = supervisor.read_end(folder)  # looked for after the supervisor, which writes it and exits
        if end is not None:
            return state_of_end(end.code)
        if alive:
            return "running" if started else "waiting"
        return "lost"

    def end(self, job: LaunchedJob) -> JobEnd | None:
        return supervisor.read_end(Path(job.folder))

    def explain(self, job: LaunchedJob) -> str:
        return "its supervisor was killed" if self.state(job) == "lost" else ""

    def stop(self, job: LaunchedJob) -> None:
        folder = Path(job.folder)
        if folder.is_dir() and not supervisor.end_file(folder).exists():
            supervisor.stop_file(folder).touch()
        process = self._supervisor(job)
        if process is not None and supervisor.supervisor_file(folder).exists():  # before that it handles no signals
            process.terminate()

    def kill(self, job: LaunchedJob) -> None:
        process = self._supervisor(job)
        if process is not None:
            process.kill()
        if supervisor.process_file(Path(job.folder)).exists():
            supervisor.kill_marked(ProcessSpec.read(Path(job.folder)).mark)

    def _in_image(
        self, image: str, spec: ProcessSpec, task: Task, folder: Path, supervision: Supervision | None
    ) -> ProcessSpec:
        """The same process in a container, which has the job's folders and the cache under their own paths."""
        gpus = bool(spec.environment.get(_VISIBLE_DEVICES[0]))
        container = local_container(image, options=self._image_options, gpus=gpus)
        cache = cache_folder()
        cache.mkdir(parents=True, exist_ok=True)
        place, more = folder.absolute(), () if supervision is None else supervision.folders
        folders = [str(place), *mounted_folders(spec.working_folder, cache, *more)]
        command = process_command(task, task_file(place), python="python3")
        variables = {"CLEW_CACHE": str(cache), DIGEST_VARIABLE: container.digest() or ""}
        return dataclasses.replace(
            spec,
            command=(*container.words(folders, spec.working_folder), *command),
            environment={**spec.environment, **variables},
            detached=container.detached,
        )

    def _supervisor(self, job: LaunchedJob) -> psutil.Process | None:
        """The process that supervises a job; None where the job has ended."""
        folder = Path(job.folder)
        if supervisor.end_file(folder).exists():
            return None
        name = supervisor.supervisor_file(folder)
        return named_process(name.read_text() if name.exists() else job.id)


def _process(task: Task, folder: Path, slot: Slot, supervision: Supervision) -> ProcessSpec:
    return ProcessSpec(
        command=tuple(process_command(task, task_file(folder.absolute()), python=sys.executable)),
        working_folder=supervision.working_folder or str(Path.cwd()),
        mark=str(folder.absolute()),
        environment={**visible_devices(slot), **supervision.environment},
        cores=slot.cores,
        wall_time=supervision.wall_time,
        memory=supervision.memory,
        grace=supervision.grace,
    )


def _spawn(folder: Path, *, without: Collection[str]) -> str:
    """Start a supervisor and return its name; `without`: variables that are the job's alone."""
    _supervisors[:] = [process for process in _supervisors if process.poll() is None]
    with supervisor.log_file(folder).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *safe_path(), "-m", supervisor.__name__, str(folder.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name not in without},
        )
    _supervisors.append(process)
    return process_name(process.pid)


def visible_devices(slot: Slot) -> Mapping[str, str]:
    """The environment variables that limit a process to the accelerators of a slot."""
    return {} if slot.devices is None else dict.fromkeys(_VISIBLE_DEVICES, ",".join(map(str, slot.devices)))
