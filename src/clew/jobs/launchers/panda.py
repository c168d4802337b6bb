"""Tasks of PanDA. PanDA's own client submits, follows and cancels them, as the user.

PanDA takes whole tasks. Single jobs cannot be submitted, so no agent can serve it. What PanDA reports about a task is
appended to the log of the job's folder whenever its state is asked for.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from clew.core.files import write_text
from clew.errors import ConfigError, RunError
from clew.jobs.launchers.launcher import END_STATES, JobState, LaunchedJob, Slot, Supervision
from clew.jobs.launchers.panda_calls import NO_ANSWER
from clew.jobs.launchers.panda_task import SCRIPTS, client_command, dry_run, task_arguments, write_sandbox
from clew.jobs.launchers.scheduler import call, last_line
from clew.jobs.sites import BatchRequest, Site, SiteCapacity
from clew.jobs.supervisor import JobEnd
from clew.jobs.task import GridTask, Task

_STATES: dict[str, JobState] = {
    **dict.fromkeys(("scouting", "scouted", "running", "prepared", "merging", "finishing", "passed"), "running"),
    **dict.fromkeys(("aborting", "toabort", "tobroken"), "running"),
    **dict.fromkeys(("done", "finished"), "finished"),
    **dict.fromkeys(("failed", "broken", "exhausted"), "failed"),
    "aborted": "cancelled",
}
"""By the status of a task; every other status stands for waiting."""
_ENDED_JOBS = ("finished", "failed", "cancelled", "closed")
_UNREGISTERED = "PanDA has not registered it yet"
_MONITOR = "https://bigpanda.cern.ch"
_TIME_FORMAT = "%Y-%m-%d %H:%M:%S "
_CALL_SECONDS = 120


def _submission_file(folder: Path) -> Path:
    """What the client wrote about the submission."""
    return folder / "submission.json"


def _answer_file(folder: Path) -> Path:
    """What PanDA reported last about the task."""
    return folder / "panda.json"


class PandaLauncher:
    """PanDA in the table of schedulers: it starts tasks of the grid and nothing else."""

    name: ClassVar[str] = "panda"
    takes_jobs: ClassVar[bool] = False
    needs_container: ClassVar[bool] = True

    def __init__(self, site: Site | None = None, request: BatchRequest | None = None) -> None:
        self.request = request or BatchRequest()
        profile = site or Site(name=self.name, scheduler=self.name, container="none")
        self.site = profile.with_image(self.request.container)
        self._asked: dict[str, float] = {}
        """When PanDA was asked last, by the number of the task."""
        self._silent: dict[str, str] = {}
        """Why PanDA did not answer, by the number of the task."""

    def _refuse(self) -> NoReturn:
        verbs = "`clew train --on`, `clew tune run --on` and `clew submit --kind script --on`"
        raise ConfigError(f"{self.site.name}: PanDA takes tasks, not jobs; use {verbs}")

    def start(
        self, task: Task, *, folder: Path, slot: Slot | None = None, supervision: Supervision | None = None
    ) -> LaunchedJob:
        if not isinstance(task, GridTask) or supervision is not None:
            self._refuse()
        place = folder.absolute()
        if not _submission_file(place).exists():
            tool, arguments = task_arguments(self.site, self.request, task)
            _check_client()
            try:
                place.mkdir(parents=True)
            except OSError as error:
                raise RunError(f"{folder}: cannot start a job there ({error.strerror})") from error
            try:
                write_sandbox(task, place / "sandbox")
                _submit(tool, arguments, place)
            except RunError:
                shutil.rmtree(place)
                raise
        return LaunchedJob(self.name, str(_submission(place)["jediTaskID"]), str(place))

    def script(self, task: Task, folder: Path) -> str:
        if not isinstance(task, GridTask):
            self._refuse()
        tool, arguments = task_arguments(self.site, self.request, task)
        document = dry_run(self.site, self.request, task, os.environ)
        return f"{shlex.join([tool, *arguments])}\n{json.dumps(document, indent=1)}\n"

    def state(self, job: LaunchedJob) -> JobState:
        answer = self._answer(job)
        return _STATES.get(answer["status"], "waiting") if answer.get("status") else "waiting"

    def end(self, job: LaunchedJob) -> JobEnd | None:
        state = self.state(job)
        return JobEnd(code=int(state != "finished"), reason=self.explain(job)) if state in END_STATES else None

    def explain(self, job: LaunchedJob) -> str:
        answer = self._answer(job)
        if job.id in self._silent:
            return self._silent[job.id]
        if not answer:
            return _UNREGISTERED
        status, state = str(answer["status"]), _STATES.get(answer["status"], "waiting")
        if state == "finished":
            partly = "" if status == "done" else "only in part: see `clew logs`; "
            return f"{partly}outputs: {', '.join(answer['outputs'])}"
        if state == "failed":
            reasons = [answer["error_dialog"], *(text for each in answer["jobs"] for text in _errors(each))]
            return next((f"{status}: {reason}" for reason in reasons if reason), status)
        if state == "cancelled":
            return status
        active = [each for each in answer["jobs"] if each["status"] not in _ENDED_JOBS]
        where = ", ".join(dict.fromkeys(f"job {each['status']} at {each['site']}" for each in active))
        return f"{status}, {where}" if where else status

    def stop(self, job: LaunchedJob) -> None:
        """Cancel the task. PanDA ends its jobs; a checkpoint is not promised."""
        if self.state(job) in END_STATES:
            return
        if not self._answer(job) and job.id not in self._silent:
            answer = {"message": f"{_UNREGISTERED}; try again in a few minutes"}
        else:
            answer = _call("kill", job.id)
            self._asked.pop(job.id, None)
        if not answer.get("accepted") and self.state(job) not in END_STATES:
            reason = answer.get("error") or answer["message"]
            raise RunError(f"task {job.id} at {self.site.name} was not cancelled: {reason}")

    def kill(self, job: LaunchedJob) -> None:
        self.stop(job)

    def problems(self) -> list[str]:
        return _problems()

    def capacity(self) -> SiteCapacity:
        name = self.site.name
        raise ConfigError(f"{name}: an agent cannot watch single jobs of PanDA; use `clew train --on {name}` there")

    def _answer(self, job: LaunchedJob) -> dict[str, Any]:
        """What PanDA reports about a task; it is asked at most once in `poll_seconds`. Empty: it does not know it."""
        file = _answer_file(Path(job.folder))
        known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        now = time.monotonic()
        if now - self._asked.get(job.id, -1e9) < self.site.poll_seconds:
            return known
        self._asked[job.id] = now
        answer = _call("status", job.id)
        self._silent.pop(job.id, None)
        if "error" in answer:
            self._silent[job.id] = answer["error"]
        if "status" not in answer:
            return known
        if answer != known:
            write_text(file, json.dumps(answer, indent=1) + "\n")
            _append(job.log, _history(job.id, answer))
        return answer


def _errors(job: dict[str, Any]) -> list[str]:
    """What is known about a job that failed."""
    code = [f"exit code {job['exit_code']}"] if str(job["exit_code"]) not in ("0", "") else []
    return [*job["errors"], *code] if job["status"] in _ENDED_JOBS else []


def _history(number: str, answer: dict[str, Any]) -> list[str]:
    """The lines that describe the present state of a task."""
    lines = [f"task {number} {answer['status']}" + (f": {text}" if (text := answer["error_dialog"]) else "")]
    for job in answer["jobs"]:
        place = f" at {job['site']}" if job["site"] else ""
        lines.append(": ".join([f"job {job['id']} {job['status']}{place}", *_errors(job)]))
    if _STATES.get(answer["status"]) in END_STATES:
        lines += [f"output {name}: rucio download {name}" for name in answer["outputs"]]
        lines.append(f"monitor: {os.environ.get('PANDAMON_URL', _MONITOR)}/task/{number}/")
    return lines


def _append(log: Path, lines: list[str]) -> None:
    """Append the lines that a log does not have yet, with the time."""
    present = (
        {line[len(time.strftime(_TIME_FORMAT)) :] for line in log.read_text().splitlines()} if log.exists() else ()
    )
    with log.open("a") as stream:
        stream.writelines(f"{time.strftime(_TIME_FORMAT)}{line}\n" for line in lines if line not in present)


def _call(name: str, number: str) -> dict[str, Any]:
    """The answer of panda-client to one call; {"error": ...} if it has none."""
    if problems := _problems():
        return {"error": problems[0]}
    words = [sys.executable, "-P", "-m", "clew.jobs.launchers.panda_calls", name, number]
    environment = {"PANDA_BEHIND_REAL_LB": "1", **os.environ}
    done = call(words, timeout=_CALL_SECONDS, environment=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return {"error": last_line(done.stderr or done.stdout) or NO_ANSWER}
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def _submit(tool: str, arguments: list[str], folder: Path) -> None:
    """Have the client submit a task. Its output goes to the terminal, where it also asks for what it needs.

    Raises:
        RunError: It was not submitted.
    """
    code = f"from pandaclient import {SCRIPTS[tool]}; {SCRIPTS[tool]}.main()"
    command = client_command(code, [*arguments, "--dumpJson", str(_submission_file(folder))])
    ended = subprocess.run(command, check=False, cwd=folder / "sandbox")
    submission = _submission(folder)
    if ended.returncode or not submission.get("jediTaskID"):
        reason = submission.get("returnOut") or f"exit code {ended.returncode}; its messages are above"
        raise RunError(f"{tool} did not submit the task: {reason}")


def _submission(folder: Path) -> dict[str, Any]:
    """What the client wrote about the submission: prun a list of one, phpo one; empty if it wrote nothing."""
    file = _submission_file(folder)
    written = json.loads(file.read_text()) if file.exists() else {}
    submission: dict[str, Any] = written[0] if isinstance(written, list) else written
    return submission


def _check_client() -> None:
    if problems := _problems():
        raise ConfigError(problems[0])


def _problems() -> list[str]:
    """What prevents submissions from this machine."""
    if importlib.util.find_spec("pandaclient") is None:
        return ["panda-client is not installed: pip install 'clew[panda]'"]
    return []
