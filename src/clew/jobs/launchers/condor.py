"""Jobs by HTCondor: condor_submit, condor_q, condor_rm and condor_status."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from clew.core.files import write_text
from clew.errors import ConfigError, RunError
from clew.jobs import batch_script, supervisor
from clew.jobs.launchers.launcher import JobState, LaunchedJob, recorded_state
from clew.jobs.launchers.scheduler import (
    SchedulerLauncher,
    call,
    is_supervised,
    last_line,
    named_end,
    script_file,
    unique_name,
)
from clew.jobs.sites import BatchRequest, SiteCapacity
from clew.jobs.supervisor import JobEnd
from clew.jobs.task import CommandTask, Task, TrainTask

_STATES: dict[int, JobState] = {
    1: "waiting",
    2: "running",
    3: "running",
    4: "finished",
    5: "waiting",
    6: "running",
}
"""By `JobStatus`: idle, running, removed but not ended yet, completed, held, transferring output."""
_CANCELLED = "cancelled at the scheduler"


def _submit_file(folder: Path) -> Path:
    return folder / "job.sub"


class CondorLauncher(SchedulerLauncher):
    """A launcher whose jobs go to a pool, each on one machine."""

    name = "condor"
    unsupported: ClassVar[Mapping[str, str]] = {
        "after": "it has no dependencies without DAGMan, submit the job later",
        "nodes": "jobs of a pool run on one machine each, leave it out",
    }

    def plain_script(self, task: Task, folder: Path, request: BatchRequest) -> str:
        return self._submit_description(folder, request, "$(Process)")

    def executable(self, task: Task, folder: Path) -> str:
        """The script that a machine of the pool runs."""
        return self._executable(task, folder, self.request)

    def _executable(self, task: Task, folder: Path, request: BatchRequest) -> str:
        resolved = request.at(self.site)
        if resolved.workers > 1 and isinstance(task, TrainTask):
            task = task.model_copy(update={"workers": resolved.workers})
        elif resolved.workers > 1 and isinstance(task, CommandTask):
            task = CommandTask(arguments=(*task.arguments, "--workers", str(resolved.workers)))
        return batch_script.condor_script(self.site, resolved, task, str(folder))

    def _submit_description(self, folder: Path, request: BatchRequest, arguments: str) -> str:
        resolved = request.at(self.site)
        whole = resolved.in_one_process()
        log = "log.txt" if resolved.array is None else "log-$(Process).txt"
        values: dict[str, object] = {
            "universe": "vanilla",
            "executable": script_file(folder),
            "arguments": arguments,
            "batch_name": f"clew-{resolved.name}",
            "initialdir": Path.cwd(),
            "output": folder / log,
            "error": folder / log,
            "log": folder / "condor.log",
            "getenv": "True",
            "request_cpus": whole.cpus,
            "request_gpus": whole.gpus or None,
            "request_memory": whole.memory,
            "accounting_group": self.site.account,
            "+MaxRuntime": f"{resolved.wall_time:.0f}",
            "kill_sig": "SIGTERM",
            "job_max_vacate_time": f"{batch_script.grace_seconds(self.site, resolved.wall_time or 0):.0f}",
            "on_exit_remove": "(ExitBySignal == False) && (ExitCode != 75)" if resolved.requeue else None,
        }
        batch_script.check_one_line(values)
        lines = [f"{name} = {value}" for name, value in values.items() if value is not None]
        return "\n".join([*lines, *self.site.directives, f"queue {resolved.array or 1}", ""])

    def _write_plain(self, task: Task, folder: Path, request: BatchRequest, text: str) -> None:
        super()._write_plain(task, folder, request, self._executable(task, folder, request))
        script_file(folder).chmod(0o755)
        write_text(_submit_file(folder), text)

    def write_supervised_script(self, folder: Path, request: BatchRequest) -> None:
        write_text(_submit_file(folder), self._submit_description(folder, request, "$(ClusterId)"))
        write_text(script_file(folder), batch_script.supervised_script(self.site, [], str(folder), '"$1"'))
        script_file(folder).chmod(0o755)

    def spread(self, words: tuple[str, ...], folder: Path) -> tuple[str, ...]:
        raise ConfigError("clew's jobs for HTCondor run on one machine each; leave out --nodes")

    def submit(self, folder: Path, environment: Mapping[str, str]) -> str:
        done = call(["condor_submit", "-terse", str(_submit_file(folder))], environment=environment)
        if done.returncode:
            raise RunError(f"{self.site.name}: HTCondor rejected the job: {last_line(done.stderr)}")
        return done.stdout.split()[0].partition(".")[0]

    def find_by_name(self, folder: Path, since: float) -> str | None:
        name = f'JobBatchName == "clew-{unique_name(folder)}"'
        for command in ("condor_q", "condor_history"):
            done = call([command, "-json", "-attributes", "ClusterId", "-constraint", name], timeout=20)
            if done.returncode:
                return None
            rows = json.loads(done.stdout) if done.stdout.strip() else []
            if rows:
                return str(rows[0]["ClusterId"])
        return ""

    def state(self, job: LaunchedJob) -> JobState:
        folder = Path(job.folder)
        started = supervisor.supervisor_file(folder).exists()
        rows, recorded = self._rows(job), recorded_state(folder)
        if rows is None:
            return recorded or ("running" if started else "waiting")
        if recorded is not None and is_supervised(folder):
            return recorded
        states = [_STATES.get(int(row.get("JobStatus", 0)), "running") for row in rows]
        for state in ("running", "waiting"):
            if state in states:
                self.note_found(job)
                return state
        if recorded is not None or _was_removed(job):
            return recorded or ("stopped" if supervisor.stop_file(folder).exists() else "cancelled")
        if is_supervised(folder) and self.wait_longer(job):
            return "running" if started else "waiting"
        return "lost"

    def _rows(self, job: LaunchedJob) -> list[dict[str, int]] | None:
        """The rows of the queue for a job; None where HTCondor does not answer."""
        done = call(["condor_q", "-json", self.current_id(job)])
        if done.returncode:
            return None
        return list(json.loads(done.stdout)) if done.stdout.strip() else []

    def end(self, job: LaunchedJob) -> JobEnd | None:
        recorded, requested = supervisor.read_end(Path(job.folder)), supervisor.stop_file(Path(job.folder)).exists()
        cancelled = _was_removed(job) and not (requested and recorded is not None)
        return named_end(recorded, cancelled=cancelled, reason="" if requested else _CANCELLED)

    def explain(self, job: LaunchedJob) -> str:
        rows = self._rows(job)
        if rows is None:
            return "HTCondor does not answer"
        held = [str(row["HoldReason"]) for row in rows if "HoldReason" in row]
        return f"held: {held[0]}" if held else _CANCELLED if not rows and _was_removed(job) else ""

    def request_stop(self, job: LaunchedJob, *, supervised: bool) -> None:
        call(["condor_rm", self.current_id(job)])  # it gets SIGTERM, and time to write a checkpoint

    def kill(self, job: LaunchedJob) -> None:
        folder = Path(job.folder)
        if is_supervised(folder):
            supervisor.stop_file(folder).touch()
            call(["condor_rm", "-constraint", f'JobBatchName == "clew-{unique_name(folder)}"'])
        else:
            call(["condor_rm", job.id])

    def problems(self) -> list[str]:
        done = call(["condor_q", "-totals"])
        return [last_line(done.stderr)] if done.returncode else []

    def capacity(self) -> SiteCapacity:
        names = ["Machine", "TotalCpus", "TotalGpus", "TotalMemory"]
        done = call(["condor_status", "-json", "-attributes", ",".join(names)], timeout=20)
        if done.returncode:
            message = f"HTCondor does not answer ({last_line(done.stderr)}); is this a submit node?"
            raise RunError(f"{self.site.name}: {message}")
        rows = json.loads(done.stdout) if done.stdout.strip() else []
        machines = {row["Machine"]: row for row in rows}.values()
        cpus, gpus, mebibytes = (sum(int(row.get(name, 0)) for row in machines) for name in names[1:])
        return SiteCapacity(nodes=max(1, len(machines)), cpus=cpus, gpus=gpus, memory=mebibytes * 2**20)


def _was_removed(job: LaunchedJob) -> bool:
    """Whether HTCondor's own log of the job says that it was removed (event 009)."""
    log = Path(job.folder) / "condor.log"
    return log.exists() and re.search(r"^009 ", log.read_text(), flags=re.MULTILINE) is not None
