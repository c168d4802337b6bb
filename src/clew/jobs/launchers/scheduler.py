"""What the schedulers of sites have in common: a job is submitted once, and a supervisor may run it on its node.

A job has one of two forms. A plain job is a script that runs the task and records its exit code. A supervised job (one
with limits or with secrets in its environment, as agents start them) is a script that runs `clew.jobs.supervisor` on
the node; the task and its secrets are in files that only their owner can read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from clew.core import log_tail
from clew.core.files import write_text
from clew.errors import ConfigError, RunError
from clew.jobs import batch_script, supervisor
from clew.jobs.containers import Runtime
from clew.jobs.launchers.launcher import JobState, LaunchedJob, SchedulerBusyError, Slot, Supervision
from clew.jobs.sites import BatchRequest, Site, SiteCapacity, refuse_unsupported
from clew.jobs.supervisor import GRACE, JobEnd, ProcessSpec
from clew.jobs.task import Task, write_task

_MARGIN = 30.0
"""Seconds between the end of a job's grace and the scheduler's own limit."""
_PATIENCE = 10.0
"""Seconds for which a scheduler, or the file system, may not show what should be there."""
_missing_since: dict[str, float] = {}
"""Since when a job, or its record, that should be there was not seen; by folder."""


def id_file(folder: Path) -> Path:
    """What the scheduler calls the job that was submitted."""
    return folder / "scheduler-id"


def _submitting_file(folder: Path) -> Path:
    """It exists from before the submission: from then on the job may be in the queue."""
    return folder / "submitting"


def script_file(folder: Path) -> Path:
    """The script that the nodes run."""
    return folder / "job.sh"


class SchedulerLauncher(ABC):
    """A launcher whose jobs go to a site's queue. Subclasses know the commands of one scheduler."""

    name: ClassVar[str]
    takes_jobs: ClassVar[bool] = True
    needs_container: ClassVar[bool] = False
    container_runtimes: ClassVar[tuple[Runtime, ...]] = ("apptainer", "singularity", "podman")
    """What can run the image of a job."""
    unsupported: ClassVar[Mapping[str, str]] = {}
    """Fields of a `BatchRequest` that the scheduler cannot honour, and what to do instead."""

    def __init__(self, site: Site | None = None, request: BatchRequest | None = None) -> None:
        self.request = request or BatchRequest()
        self.site = (site or Site(name=self.name, scheduler=self.name)).with_image(self.request.container)
        if self.site.container_runtime not in self.container_runtimes:
            allowed = ", ".join(self.container_runtimes)
            raise ConfigError(f"{self.site.name}: {self.name} has no {self.site.container_runtime}; choose {allowed}")
        refuse_unsupported(self.request, self.name, self.unsupported)

    def start(
        self, task: Task, *, folder: Path, slot: Slot | None = None, supervision: Supervision | None = None
    ) -> LaunchedJob:
        place = folder.absolute()
        if id_file(place).exists():
            return LaunchedJob(self.name, id_file(place).read_text(), str(place))
        request = _with_slot(self.request, slot)
        try:
            if supervision is None:
                text = self.plain_script(task, place, request)
                place.mkdir(parents=True)
                self._write_plain(task, place, request, text)
            elif not script_file(place).exists():
                place.mkdir(parents=True, exist_ok=True)
                self._write_supervised(task, place, request, supervision)
        except OSError as error:
            raise RunError(f"{folder}: cannot start a job there ({error.strerror})") from error
        try:
            number = self._submit_once(place, supervision)
        except RunError:
            if supervision is None:
                shutil.rmtree(place)
            raise
        write_text(id_file(place), number)
        return LaunchedJob(self.name, number, str(place))

    def _submit_once(self, folder: Path, supervision: Supervision | None) -> str:
        """The number of the submitted job. A process may have been killed after an earlier submission: look for it."""
        number: str | None = ""
        if supervision is not None and _submitting_file(folder).exists():
            number = self.find_by_name(folder, _submitting_file(folder).stat().st_mtime)
            if number is None:
                raise SchedulerBusyError(f"{self.site.name}: {self.name} does not answer")
        _submitting_file(folder).touch()
        secrets = {} if supervision is None else supervision.environment
        return number or self.submit(folder, {k: v for k, v in os.environ.items() if k not in secrets})

    def _write_plain(self, task: Task, folder: Path, request: BatchRequest, text: str) -> None:
        write_task(task, folder)
        write_text(script_file(folder), text)

    def _write_supervised(self, task: Task, folder: Path, request: BatchRequest, supervision: Supervision) -> None:
        resolved = request.model_copy(update={"name": unique_name(folder), "requeue": False})
        total = self._wall_time(resolved, supervision)
        resolved = resolved.model_copy(update={"wall_time": total}).at(self.site)
        write_task(task, folder)
        words = tuple(batch_script.task_words(self.site, task, str(folder), folders=supervision.folders))
        image = self.site.image
        if resolved.workers > 1 or (resolved.nodes or 1) > 1 or (image is not None and image.started_by_srun):
            words = self.spread(words, folder)
        limit = (resolved.wall_time or self.site.wall_time) - _lead(
            supervision, resolved.wall_time or self.site.wall_time
        )
        ProcessSpec(
            command=words,
            working_folder=supervision.working_folder or str(Path.cwd()),
            mark=str(folder),
            environment=supervision.environment,
            wall_time=limit if supervision.wall_time is None else min(supervision.wall_time, limit),
            memory=supervision.memory,
            grace=supervision.grace,
            detached=image is not None and image.detached,
        ).write(folder)
        self.write_supervised_script(folder, resolved)

    def _wall_time(self, request: BatchRequest, supervision: Supervision) -> float | None:
        """What the scheduler is asked for: the task's limit, its grace and a margin, in whole minutes."""
        if supervision.wall_time is None:
            return request.wall_time
        total = 60.0 * math.ceil((supervision.wall_time + (supervision.grace or GRACE) + _MARGIN) / 60)
        limit = self.site.wall_time_limit
        return min(total, limit) if limit is not None and supervision.wall_time <= limit else total

    def script(self, task: Task, folder: Path) -> str:
        return self.plain_script(task, folder, self.request)

    def stop(self, job: LaunchedJob) -> None:
        folder = Path(job.folder)
        repeated = supervisor.stop_file(folder).exists()
        if not is_supervised(folder):
            write_text(supervisor.stop_file(folder), "")
            self.request_stop(job, supervised=False)
        elif not repeated:
            supervisor.stop_file(folder).touch()
            self.request_stop(job, supervised=True)
        elif time.time() - supervisor.stop_file(folder).stat().st_mtime > _patience_after_stop(folder):
            self.kill(job)
            supervisor.stop_file(folder).touch()

    def current_id(self, job: LaunchedJob) -> str:
        """The number of the job that counts: if two were submitted, the one that started the task."""
        name = supervisor.supervisor_file(Path(job.folder))
        return name.read_text() if is_supervised(Path(job.folder)) and name.exists() else job.id

    def wait_longer(self, job: LaunchedJob) -> bool:
        """Whether to look again: what a job left may appear a moment after its end."""
        return time.monotonic() - _missing_since.setdefault(job.folder, time.monotonic()) < _PATIENCE

    def note_found(self, job: LaunchedJob) -> None:
        """Note that the job was seen."""
        _missing_since.pop(job.folder, None)

    @abstractmethod
    def plain_script(self, task: Task, folder: Path, request: BatchRequest) -> str:
        """The text that is submitted for a plain job."""

    @abstractmethod
    def write_supervised_script(self, folder: Path, request: BatchRequest) -> None:
        """Write the script of a supervised job, and what else its submission needs."""

    @abstractmethod
    def spread(self, words: tuple[str, ...], folder: Path) -> tuple[str, ...]:
        """The command that runs `words` on all workers of a job.

        Raises:
            RunError: the scheduler cannot.
        """

    @abstractmethod
    def submit(self, folder: Path, environment: Mapping[str, str]) -> str:
        """Submit the files of a folder; returns the job's number.

        Raises:
            SchedulerBusyError: it may be possible later.
            RunError: it was rejected.
        """

    @abstractmethod
    def find_by_name(self, folder: Path, since: float) -> str | None:
        """The number of a supervised job that was submitted; '' if there is none, None without an answer."""

    @abstractmethod
    def request_stop(self, job: LaunchedJob, *, supervised: bool) -> None:
        """Send the job a request to stop, or remove it if it waits."""

    @abstractmethod
    def state(self, job: LaunchedJob) -> JobState:
        """The state of the job now."""

    @abstractmethod
    def end(self, job: LaunchedJob) -> JobEnd | None:
        """How it ended."""

    @abstractmethod
    def explain(self, job: LaunchedJob) -> str:
        """What the scheduler says about it."""

    @abstractmethod
    def kill(self, job: LaunchedJob) -> None:
        """Remove it from the queue, or end it."""

    @abstractmethod
    def problems(self) -> list[str]:
        """What prevents submissions from this machine."""

    @abstractmethod
    def capacity(self) -> SiteCapacity:
        """What the site's nodes have together."""


def is_supervised(folder: Path) -> bool:
    """Whether the job of a folder runs under a supervisor."""
    return supervisor.process_file(folder).exists()


def unique_name(folder: Path) -> str:
    """A name for a job that no other job has."""
    return hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]


def named_end(end: JobEnd | None, *, cancelled: bool, reason: str) -> JobEnd | None:
    """An end with what the scheduler knows: a cancelled job may have written a checkpoint, but is not to continue."""
    if not cancelled:
        return end
    return JobEnd(supervisor.CANCELLED, reason) if end is None else _cancelled(end, reason)


def _cancelled(end: JobEnd, reason: str) -> JobEnd:
    return dataclasses.replace(end, code=supervisor.CANCELLED, reason=reason)


def _with_slot(request: BatchRequest, slot: Slot | None) -> BatchRequest:
    if slot is not None and slot.cores:
        request = request.model_copy(update={"cpus": len(slot.cores)})
    if slot is not None and slot.devices is not None:
        request = request.model_copy(update={"gpus": len(slot.devices)})
    return request


def _lead(supervision: Supervision, total: float) -> float:
    return min((supervision.grace or GRACE) + _MARGIN, total / 4)


def _patience_after_stop(folder: Path) -> float:
    """Seconds after which a job that ignores the request to stop is removed by the scheduler."""
    return (ProcessSpec.read(folder).grace or GRACE) + 2 * _MARGIN


def call(
    words: Sequence[str], *, timeout: float = 60, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of a scheduler. A command that is missing or hangs counts as one that failed."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False, env=environment)
    except FileNotFoundError:
        return subprocess.CompletedProcess(words, 127, "", f"{words[0]}: no such command here; is this a login node?")
    except subprocess.TimeoutExpired as error:
        output = error.stderr.decode() if isinstance(error.stderr, bytes) else error.stderr
        return subprocess.CompletedProcess(words, 124, "", output or f"{words[0]} did not answer in {timeout:g} s")


def last_line(text: str) -> str:
    """The last line of a command's output, without the command's name in front."""
    line = log_tail.last_line(text)
    return line.partition("error: ")[2] or line
