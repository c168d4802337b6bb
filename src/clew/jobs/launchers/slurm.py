"""Jobs by Slurm: sbatch, squeue, scontrol and scancel, and sacct where there is accounting."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from clew.core.files import write_text
from clew.errors import RunError
from clew.jobs import batch_script, supervisor
from clew.jobs.launchers.launcher import JobState, LaunchedJob, SchedulerBusyError, recorded_state
from clew.jobs.launchers.scheduler import (
    SchedulerLauncher,
    call,
    is_supervised,
    last_line,
    named_end,
    script_file,
    unique_name,
)
from clew.jobs.launchers.slurm_queue import OUT_OF_MEMORY, STATES, SlurmQueue, SlurmRow, accounted, over_memory, sinfo
from clew.jobs.sites import BatchRequest, Site, SiteCapacity
from clew.jobs.supervisor import JobEnd
from clew.jobs.task import Task

_FULL = ("temporarily unable to accept job", "job submit limit", "Resource temporarily unavailable", "MaxSubmitJob")
"""Messages of sbatch when it would take the job later."""
_SILENT = ("Unable to contact", "did not answer")
_FORGOTTEN = "Slurm does not know it any more, and it left no record of its end"
_ORDER: tuple[JobState, ...] = ("running", "waiting", "cancelled", "lost", "failed", "finished")
"""The state of an array is the first of these that one of its jobs has."""


class SlurmLauncher(SchedulerLauncher):
    """A launcher whose jobs go to a Slurm queue. srun starts the workers, by the MPI of the site."""

    name = "slurm"
    container_runtimes = (*SchedulerLauncher.container_runtimes, "pyxis")

    def __init__(self, site: Site | None = None, request: BatchRequest | None = None) -> None:
        super().__init__(site, request)
        self._queue = SlurmQueue()
        """Slurm's last answer. One launcher watches many jobs with one question."""

    def plain_script(self, task: Task, folder: Path, request: BatchRequest) -> str:
        return batch_script.slurm_script(self.site, request.at(self.site), task, str(folder))

    def write_supervised_script(self, folder: Path, request: BatchRequest) -> None:
        head = batch_script.slurm_head(self.site, request, str(folder))
        text = batch_script.supervised_script(self.site, head, str(folder), '"$SLURM_JOB_ID"')
        write_text(script_file(folder), text)

    def spread(self, words: tuple[str, ...], folder: Path) -> tuple[str, ...]:
        return ("/bin/bash", "-c", batch_script.spread_over_ranks(self.site, words, str(folder)))

    def submit(self, folder: Path, environment: Mapping[str, str]) -> str:
        done = call(["sbatch", "--parsable", str(script_file(folder))], timeout=20, environment=environment)
        if done.returncode:
            busy = any(words in done.stderr for words in (*_FULL, *_SILENT))
            raise (SchedulerBusyError if busy else RunError)(self.rejection(done.stderr))
        self._queue.expire()
        return done.stdout.strip().partition(";")[0]

    def rejection(self, text: str) -> str:
        """The messages of sbatch as one line."""
        if any(words in text for words in _FULL):
            return f"{self.site.name}: the queue is full ({last_line(text)}); wait until jobs have ended, and try again"
        if any(words in text for words in _SILENT):
            return f"{self.site.name}: Slurm's controller does not answer ({last_line(text)}); try again later"
        lines = [line.partition("error: ")[2] or line for line in text.strip().splitlines()]
        useful = [line for line in lines if line and line != "Batch job submission failed: Unspecified error"]
        message = "; ".join(useful) or "no message"
        return f"{self.site.name}: Slurm rejected the job: {message}{self._hint}"

    @property
    def _hint(self) -> str:
        return f" (see `clew site check {self.site.name}`)"

    def find_by_name(self, folder: Path, since: float) -> str | None:
        name = f"--name=clew-{unique_name(folder)}"
        done = call(["squeue", "-h", "--states=all", f"--user={os.geteuid()}", name, "-o%A"], timeout=20)
        if done.returncode:
            return None
        begin = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since - 60))
        options = [name, f"--starttime={begin}", "--format=JobIDRaw"]
        text = done.stdout or call(["sacct", "--noheader", "--allocations", *options], timeout=20).stdout
        return next(iter(text.split()), "")

    def state(self, job: LaunchedJob) -> JobState:
        folder = Path(job.folder)
        recorded, single = recorded_state(folder), supervisor.end_file(folder).exists()
        if single and recorded == "finished":
            return recorded
        rows = self._rows(job, hurry=single)
        if recorded is not None and (not rows or (single and self._queue.silence)):
            return recorded
        states = {STATES.get(row.state, "running") for row in rows}
        state = next((state for state in _ORDER if state in states), None)
        if state is None:
            return self._unknown(job)
        if state in ("running", "waiting"):
            self.note_found(job)
            return state
        if recorded is None and is_supervised(folder):
            return self._unrecorded(job, state)
        return _settled(state, recorded, requested=supervisor.stop_file(folder).exists())

    def _unknown(self, job: LaunchedJob) -> JobState:
        """The state of a job that Slurm does not list."""
        started = supervisor.supervisor_file(Path(job.folder)).exists()
        if self._queue.silence:
            return "running" if started else "waiting"
        if self.wait_longer(job):
            self._queue.expire()
            return "running" if started else "waiting"
        return recorded_state(Path(job.folder)) or "lost"

    def _unrecorded(self, job: LaunchedJob, state: JobState) -> JobState:
        """The state of a supervised job that has ended at Slurm and left no record."""
        folder = Path(job.folder)
        started = supervisor.supervisor_file(folder).exists()
        if self.wait_longer(job):
            return "running" if started else "waiting"
        if state == "cancelled":
            return _settled(state, None, requested=supervisor.stop_file(folder).exists())
        return state if state == "lost" else "lost" if started else "failed"

    def _rows(self, job: LaunchedJob, *, hurry: bool = False) -> list[SlurmRow]:
        number = self.current_id(job)
        rows = self._queue.rows_of(number, min(self.site.poll_seconds, 1) if hurry else self.site.poll_seconds)
        return rows or ([] if self._queue.silence else accounted(number))

    def end(self, job: LaunchedJob) -> JobEnd | None:
        folder = Path(job.folder)
        row, recorded = next(iter(self._rows(job)), None), supervisor.read_end(folder)
        if recorded is not None and recorded.code == 0:
            return recorded
        if (row is not None and row.state == "OUT_OF_MEMORY") or (recorded is None and over_memory(job.log)):
            return JobEnd(recorded.code if recorded else -9, OUT_OF_MEMORY)
        if row is None:
            return recorded
        if STATES.get(row.state) == "cancelled":
            requested = supervisor.stop_file(folder).exists()
            if recorded is not None and requested:
                return recorded
            return named_end(recorded, cancelled=True, reason="" if requested else row.words())
        started = supervisor.supervisor_file(folder).exists()
        if recorded is None and is_supervised(folder) and not started and STATES.get(row.state) != "lost":
            return JobEnd(1, f"it did not start at {self.site.name}")
        return recorded

    def explain(self, job: LaunchedJob) -> str:
        rows = self._rows(job)
        if self._queue.silence:
            return f"Slurm does not answer: {self._queue.silence}"
        if not rows and self.state(job) == "lost":
            return _FORGOTTEN
        words = list(dict.fromkeys(filter(None, (row.words() for row in rows))))
        if not words and over_memory(job.log):
            return OUT_OF_MEMORY
        return "; ".join(words)

    def request_stop(self, job: LaunchedJob, *, supervised: bool) -> None:
        number = self.current_id(job)
        if supervised:
            self._cancel_by_name(job, "--state=PENDING")
            call(["scancel", "--batch", "--signal=TERM", number], timeout=20)
        else:
            call(["scancel", "--state=PENDING", number])
            call(["scancel", "--state=RUNNING", "--signal=TERM", number])
        self._queue.expire()

    def kill(self, job: LaunchedJob) -> None:
        folder = Path(job.folder)
        if is_supervised(folder):
            supervisor.stop_file(folder).touch()
            self._cancel_by_name(job)
        else:
            call(["scancel", job.id])
        self._queue.expire()

    def _cancel_by_name(self, job: LaunchedJob, *options: str) -> None:
        name = f"--name=clew-{unique_name(Path(job.folder))}"
        call(["scancel", name, f"--user={os.geteuid()}", *options], timeout=20)

    def problems(self) -> list[str]:
        done = call(["scontrol", "ping"], timeout=20)
        if done.returncode or " UP" not in done.stdout:
            return [last_line(done.stderr or done.stdout)]
        options = batch_script.slurm_directives(self.site, self.request, "/tmp")
        trial = ["sbatch", "--test-only", *options, "--wrap", "true"]
        done = call([word for word in trial if not word.startswith("--kill-on-invalid-dep")], timeout=20)
        return [self.rejection(done.stderr).removesuffix(self._hint)] if done.returncode else []

    def capacity(self) -> SiteCapacity:
        return sinfo(self.site)


def _settled(state: JobState, recorded: JobState | None, *, requested: bool) -> JobState:
    """The state from what Slurm says and from the job's record, which knows more except about cancelling."""
    if state == "cancelled":
        return "stopped" if requested else "cancelled"
    return state if state == "lost" and recorded == "failed" else recorded or state
