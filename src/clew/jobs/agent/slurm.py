"""Tasks that an agent on a login node hands to Slurm.

The batch job is the task's keeper (`python -m clew.jobs.agent.slurm FOLDER`): limits, the end, and that it begins
once are as on the agent's own machine. Slurm says where it is, and what became of a keeper that left no word. The task,
with its token, is in a file for the owner alone: nothing of it is in the script or on a command line.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import shlex
import signal
import sys
import time
from pathlib import Path

from clew.core.files import write_text
from clew.errors import RunError
from clew.jobs import batch_script, supervisor
from clew.jobs.agent.commands import CLEW
from clew.jobs.agent.runner import Status
from clew.jobs.launchers.slurm import FULL, SILENT, SlurmLauncher
from clew.jobs.launchers.slurm_queue import OVER_MEMORY, STATES, SlurmQueue, SlurmRow, accounted, call, over_memory
from clew.jobs.sites import BatchRequest, Site
from clew.jobs.supervisor import JobEnd, ProcessSpec

_MARGIN = 30.0
"""Seconds between the end of a task's grace and Slurm's own limit."""
_LATE = 60.0
"""Seconds after which a task that does not heed is taken away by Slurm."""
_PATIENCE = 10.0
"""Seconds for which Slurm, or the file system, may not show what should be there."""
_CANCELLED = -int(signal.SIGTERM)
_FORGOTTEN = "Slurm does not know it any more, and it left no word"


def number_file(folder: Path) -> Path:
    """What Slurm calls the job that was handed in."""
    return folder / "slurm"


def _tried_file(folder: Path) -> Path:
    """There from before it is handed in: from then on it may be in the queue."""
    return folder / "handed-in"


def _asked_file(folder: Path) -> Path:
    """There when it was asked to end."""
    return folder / "asked"


def _script_file(folder: Path) -> Path:
    return folder / "job.sh"


class AtSlurm:
    """Jobs in a site's queue. A handle is the folder, which the nodes must see."""

    here = False

    def __init__(self, site: Site) -> None:
        self.site = site
        self._table = SlurmQueue()
        self._missed: dict[str, float] = {}
        """Since when a job that should be there, or have left a word, was not seen to."""
        self._not_before = 0.0
        """When Slurm is asked again to take a job, after it could not."""

    def start(self, task: ProcessSpec, folder: Path) -> str:
        """Write down what is to be done; `poll` hands it in, as Slurm may not be there now."""
        try:
            if not _script_file(folder).exists():
                folder.mkdir(parents=True, exist_ok=True)
                needs = self._needs(task, folder)
                self._adapted(task, needs, folder).write(supervisor.task_file(folder))
                write_text(_script_file(folder), self._script(needs, folder))
        except OSError as error:
            raise RunError(f"{folder}: cannot start a job there ({error})") from error
        return str(folder)

    def poll(self, handle: str) -> Status:
        folder = Path(handle)
        file = supervisor.keeper_file(folder)
        begun = file.exists()  # whoever began it is the one that counts
        number = file.read_text() if begun else _number(folder)
        end = _end(folder)
        if end is not None and (not number or end.code == 0):
            return Status("ended", end)
        if not number:
            return self._hand_in(folder)
        row = self._row(number)
        state = None if row is None else STATES.get(row.state, "running")
        if row is not None and state in ("waiting", "running"):
            self._missed.pop(number, None)
            return (
                Status("running") if begun and state == "running" else Status("queued", reason=f"at {self._words(row)}")
            )
        if end is not None:
            return Status("ended", _named(end, row, asked=_asked_file(folder).exists()))
        if self._wait_for(number):
            return Status("running" if begun else "queued", reason=self._silence())
        return self._gone(folder, row, begun=begun)

    def cancel(self, handle: str) -> None:
        folder = Path(handle)
        asked, number = _asked_file(folder), _current(folder)
        if not asked.exists():
            asked.touch()
            call(["scancel", f"--name={_name(folder)}", f"--user={os.geteuid()}", "--state=PENDING"], most=20)
            if number:
                call(["scancel", "--batch", "--signal=TERM", number], most=20)
        elif time.time() - asked.stat().st_mtime > ProcessSpec.read(supervisor.task_file(folder)).grace + _LATE:
            self.kill(handle)
            asked.touch()
        self._table.asked = float("-inf")

    def kill(self, handle: str) -> None:
        folder = Path(handle)
        if folder.is_dir():
            _asked_file(folder).touch()
        call(["scancel", f"--name={_name(folder)}", f"--user={os.geteuid()}"], most=20)
        self._table.asked = float("-inf")

    def _hand_in(self, folder: Path) -> Status:
        """Once, whoever is killed meanwhile: what may be in the queue is looked for there before it is handed in."""
        if _asked_file(folder).exists():
            if _tried_file(folder).exists():
                self.kill(str(folder))
            return Status("ended", JobEnd(_CANCELLED, "cancelled before it was handed in"))
        if time.monotonic() < self._not_before:
            return Status("queued", reason=f"{self.site.name} takes no jobs now; it is tried again")
        found = _found(folder) if _tried_file(folder).exists() else ""
        if found is None:
            return self._later("Slurm does not answer")
        _tried_file(folder).touch()
        if not found:
            clean = {name: value for name, value in os.environ.items() if name != "CLEW_TOKEN"}
            done = call(["sbatch", "--parsable", str(_script_file(folder))], most=20, environment=clean)
            if done.returncode:
                told = SlurmLauncher(self.site).rejected(done.stderr)
                if any(words in done.stderr for words in (*FULL, *SILENT)):
                    return self._later(told)
                _write_end(folder, JobEnd(2, told))
                return Status("ended", _end(folder))
            found = done.stdout.strip().partition(";")[0]
        write_text(number_file(folder), found)
        self._table.asked = float("-inf")
        return Status("queued", reason=f"at {self.site.name}: job {found}")

    def _later(self, why: str) -> Status:
        self._not_before = time.monotonic() + self.site.poll_seconds
        return Status("queued", reason=why)

    def _row(self, number: str) -> SlurmRow | None:
        rows = self._table.of(number, self.site.poll_seconds)
        return next(iter(rows or ([] if self._table.silent else accounted(number))), None)

    def _words(self, row: SlurmRow) -> str:
        return f"{self.site.name}: job {row.job}, {STATES.get(row.state, 'running')} {row.words()}".rstrip()

    def _silence(self) -> str:
        return f"Slurm does not answer: {self._table.silent}" if self._table.silent else ""

    def _wait_for(self, number: str) -> bool:
        """Whether to look again: Slurm is silent, or what a job left may come a moment later than its end."""
        if self._table.silent:
            return True
        return time.monotonic() - self._missed.setdefault(number, time.monotonic()) < _PATIENCE

    def _gone(self, folder: Path, row: SlurmRow | None, *, begun: bool) -> Status:
        """What became of a job that left no word."""
        if row is None:
            return Status("lost", reason=_FORGOTTEN)
        if STATES[row.state] == "cancelled":
            return Status("ended", _named(JobEnd(_CANCELLED), row, asked=_asked_file(folder).exists()))
        if row.state == "OUT_OF_MEMORY" or over_memory(supervisor.log_file(folder)):
            return Status("ended", JobEnd(-int(signal.SIGKILL), OVER_MEMORY))
        if STATES[row.state] == "lost":
            return Status("lost", reason=row.words())
        return Status("lost") if begun else Status("ended", JobEnd(1, f"it did not begin at {self.site.name}"))

    def _needs(self, task: ProcessSpec, folder: Path) -> BatchRequest:
        """What Slurm is asked for: a task's limits are altogether, Slurm's a rank and a node.

        Raises:
            ConfigError: the site allows less time.
        """
        lead = task.grace + _MARGIN
        wall = None if task.wall is None else 60.0 * math.ceil((task.wall + lead) / 60)
        limit = self.site.wall_time_limit
        if task.wall is not None and limit is not None and task.wall <= limit:
            wall = min(wall or limit, limit)
        mebibytes = 0 if task.memory is None else math.ceil(task.memory / task.nodes / 2**20)
        return BatchRequest(
            name=_name(folder).removeprefix("clew-"),
            nodes=task.nodes,
            ranks=task.ranks,
            cpus=max(1, task.cpus // task.ranks),
            gpus=math.ceil(task.gpus / task.nodes),
            memory=f"{mebibytes}M" if mebibytes else None,
            wall_time=wall,
        ).at(self.site)

    def _adapted(self, task: ProcessSpec, needs: BatchRequest, folder: Path) -> ProcessSpec:
        """The task as its keeper does it on a node: within Slurm's time, by the site's Python, on all ranks."""
        own = task.command
        if own[: len(CLEW)] == CLEW:
            own = (batch_script.python(self.site), "-m", "clew", *own[len(CLEW) :])
        words = (*batch_script.container(self.site), *own)
        if task.ranks > 1 or task.nodes > 1:
            words = ("/bin/bash", "-c", batch_script.spread(self.site, words, str(folder)))
        total = needs.wall_time or self.site.wall_time
        most = total - min(task.grace + _MARGIN, total / 4)
        return dataclasses.replace(task, command=words, wall=most if task.wall is None else min(task.wall, most))

    def _script(self, needs: BatchRequest, folder: Path) -> str:
        python = sys.executable if self.site.container else batch_script.python(self.site)
        lines = ["#!/bin/bash", *(f"#SBATCH {each}" for each in batch_script.directives(self.site, needs, str(folder)))]
        lines += [*batch_script.stage(self.site), f"exec {shlex.join([python, '-m', __name__, str(folder)])}", ""]
        return "\n".join(lines)


def _name(folder: Path) -> str:
    """A job's, and no other's."""
    return f"clew-{hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]}"


def _number(folder: Path) -> str:
    return number_file(folder).read_text() if number_file(folder).exists() else ""


def _current(folder: Path) -> str:
    file = supervisor.keeper_file(folder)
    return file.read_text() if file.exists() else _number(folder)


def _found(folder: Path) -> str | None:
    """The number of what was handed in by somebody who could not write it down; None where Slurm does not answer."""
    done = call(["squeue", "-h", "--states=all", f"--user={os.geteuid()}", f"--name={_name(folder)}", "-o%A"], most=20)
    if done.returncode:
        return None
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(_tried_file(folder).stat().st_mtime - 60))
    wanted = [f"--name={_name(folder)}", f"--starttime={since}", "--format=JobIDRaw"]
    told = done.stdout or call(["sacct", "--noheader", "--allocations", *wanted], most=20).stdout
    return next(iter(told.split()), "")


def _end(folder: Path) -> JobEnd | None:
    file = supervisor.end_file(folder)
    return JobEnd(**json.loads(file.read_text())) if file.exists() else None


def _write_end(folder: Path, end: JobEnd) -> None:
    write_text(supervisor.end_file(folder), json.dumps(dataclasses.asdict(end)))


def _named(end: JobEnd, row: SlurmRow | None, *, asked: bool) -> JobEnd:
    """With what Slurm knows: a job that was cancelled there may well have written a checkpoint, and is not to go on; of
    one that took too much memory, the kernel may have killed a part that was not the keeper."""
    if row is not None and row.state == "OUT_OF_MEMORY":
        return dataclasses.replace(end, reason=OVER_MEMORY)
    if row is None or STATES.get(row.state) != "cancelled" or asked:
        return end
    return dataclasses.replace(end, code=_CANCELLED, reason=row.words())


if __name__ == "__main__":
    supervisor.keep(Path(sys.argv[1]), os.environ["SLURM_JOB_ID"])
