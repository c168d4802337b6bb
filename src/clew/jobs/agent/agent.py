"""The agent: it asks a server for jobs, runs them and reports them. It and the server may be killed at any moment."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from clew.client.agent_messages import (
    AgentRegistration,
    LogSize,
    MachineLoad,
    Poll,
    PollAnswer,
    RegisteredAgent,
    ResultReceipt,
)
from clew.client.connection import Connection
from clew.client.job import JobResult
from clew.errors import ServerError
from clew.jobs.agent import commands
from clew.jobs.agent.completion import Delivery, finish
from clew.jobs.agent.folder import AgentFolder
from clew.jobs.agent.job_list import AgentJob, JobList, JobSettings, TaskOf
from clew.jobs.agent.job_target import JobTarget

_REPORT_PAUSE = 0.2
"""Seconds between two looks at the jobs."""
_POLL_SECONDS = 20.0
"""Seconds that the server may hold a request for work; every request also shows that the agent is alive. It is less
if the server gives up silent agents earlier."""
_LOG_PIECE = 500_000
"""Bytes of a log that are sent at a time."""
_UPLOAD_PATIENCE = 120.0
"""Seconds for which an upload that the server fails to accept is tried again."""
_MAX_RETRY_PAUSE = 5.0
"""Seconds between two attempts to reach a server that is away."""


@dataclass
class _Reported:
    """What the server knows about an attempt."""

    running: bool = False
    queue_reason: str | None = None
    """Why a scheduler has not started it."""
    log_bytes: int | None = None
    """Bytes of its log; None before the server was asked."""
    finished: bool = False
    """Whether its records and artefacts were sent, or cannot be."""
    since: float = math.inf
    """When they were first sent."""
    delivery: Delivery = field(default_factory=Delivery)
    """What is missing, and where the outputs are."""


@dataclass
class Agent:
    """One agent, on one machine, for one server."""

    link: Connection
    folder: AgentFolder
    introduction: AgentRegistration
    target: JobTarget = field(default_factory=JobTarget)
    task_of: TaskOf = commands.order_task
    """The task that is run for an order."""
    idle: float | None = None
    """Seconds without a job after which it exits; None: never."""
    print_message: Callable[[str], None] = print
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        settings = JobSettings(environment={"CLEW_SERVER": self.link.server}, task_of=self.task_of)
        self.jobs = JobList(self.folder, self.target, self.introduction.slots, settings)
        self._reported: dict[tuple[int, int], _Reported] = {}
        self._lock = threading.RLock()
        self._number, self._poll_seconds = 0, _POLL_SECONDS
        self._failure: Exception | None = None
        self._last_busy = time.monotonic()

    def run(self) -> None:
        """Run until `stopping` is set, it was idle for too long, or its token is not valid any more.

        Its jobs continue without it.

        Raises:
            ServerError: the server rejects it.
            RunError: another agent uses the folder.
        """
        with self.folder.locked():
            with self._lock:
                for order in self.jobs.adopt():
                    self.print_message(f"job {order.job} was started before: {order.kind} {order.name}")
            self._introduce()
            threading.Thread(target=self._ask_for_work, name="ask", daemon=True).start()
            while not self.stopping.is_set() and not self._idle_too_long():
                self._report_jobs()
                self.stopping.wait(_REPORT_PAUSE)
            self.stopping.set()
        if self._failure is not None:
            raise self._failure

    def _idle_too_long(self) -> bool:
        if len(self.jobs) or self.idle is None:
            self._last_busy = time.monotonic()
            return False
        return time.monotonic() - self._last_busy > self.idle

    def _introduce(self) -> None:
        def introduce() -> None:
            answer = self.link.call("POST", "/agents", body=self.introduction.model_dump(mode="json"))
            registered = RegisteredAgent.model_validate(answer)
            self._number, self._poll_seconds = registered.id, min(_POLL_SECONDS, registered.lease / 3)
            self.print_message(f"agent {self.introduction.name} serves {self.link.server}")

        self._retry(introduce)

    def _retry(self, call: Callable[[], None]) -> None:
        """Make a call, however long the server is away."""
        pause, printed = 0.2, False
        while not self.stopping.is_set():
            try:
                return call()
            except ServerError as error:
                if error.status and error.status < 500 and error.status != 429:
                    raise
                if not printed:
                    printed = True
                    self.print_message(f"{error} Jobs continue meanwhile.")
            self.stopping.wait(pause)
            pause = min(2 * pause, _MAX_RETRY_PAUSE)
        return None

    def _ask_for_work(self) -> None:
        """The thread that asks for work."""
        try:
            while not self.stopping.is_set():
                self._retry(self._poll)
        except Exception as error:  # `run` raises it
            self._failure = error
            self.stopping.set()

    def _poll(self) -> None:
        with self._lock:
            held = tuple(self.jobs.held())
        load = MachineLoad(cpu=psutil.cpu_percent(), memory=psutil.virtual_memory().percent)
        body = Poll(held=held, load=load, wait=self._poll_seconds).model_dump(mode="json")
        try:
            answer = self.link.call("POST", f"/agents/{self._number}/poll", body=body, timeout=self._poll_seconds + 20)
        except ServerError as error:
            if error.status == 404:  # a server that has lost this agent
                return self._introduce()
            raise
        self.obey(PollAnswer.model_validate(answer))
        return None

    def obey(self, answer: PollAnswer) -> None:
        """Take, cancel and drop jobs as the server orders."""
        with self._lock:
            for job in answer.drop:  # before the orders: one may be for the next attempt at it
                self._drop(job)
            for order in answer.orders:
                self.print_message(f"job {order.job} starts: {order.kind} {order.name}")
                self.jobs.take(order)
            for job in answer.cancel:
                self.jobs.cancel(job)
        if answer.cancel and not answer.orders:
            self.stopping.wait(1)  # the server repeats the request at once, until they have ended

    def _drop(self, job: int, attempt: int | None = None) -> None:
        with self._lock:
            if self.jobs.drop(job, attempt):
                self.print_message(f"job {job} does not belong to this agent any more; it was ended")

    def _report_jobs(self) -> None:
        """Report what is new to the server; what does not arrive now is sent next time."""
        with self._lock:
            results = list(self.jobs.results())
            held = {(each.job, each.attempt) for each in self.jobs.held()}
            self._reported = {key: known for key, known in self._reported.items() if key in held}
        for job, result in results:
            with contextlib.suppress(ServerError):
                self.report_job(job, result)

    def report_job(self, job: AgentJob, result: JobResult) -> None:
        """Report the end of a job to the server."""
        number, attempt = job.order.job, job.order.attempt
        known = self._reported.setdefault((number, attempt), _Reported())
        try:
            self._send_log(job, known)
            if result.state == "queued":
                if result.reason != known.queue_reason and self._send(number, result):
                    known.queue_reason = result.reason
            elif result.state == "running":
                if not known.running:
                    known.running = self._send(number, result)
            else:
                self._report_end(job, result, known)
        except ServerError as error:
            if error.status in (404, 409):
                self._drop(number, attempt)
            raise

    def _report_end(self, job: AgentJob, result: JobResult, known: _Reported) -> None:
        if result.state == "ended" and not known.finished:
            self._upload(job, known, succeeded=result.code == 0)
        reason = "; ".join(filter(None, (result.reason, known.delivery.missing)))[:1000]
        if self._send(job.order.job, result.model_copy(update={"reason": reason, "stored": known.delivery.stored})):
            self.print_message(f"job {job.order.job} has ended: {_end_in_words(result)}")
            with self._lock:
                self.jobs.confirm(job.order.job, job.order.attempt)

    def _upload(self, job: AgentJob, known: _Reported, *, succeeded: bool) -> None:
        """Send what a job made. A server that answers but cannot accept it does not delay the job's end for ever."""
        known.since = min(known.since, time.monotonic())
        try:
            known.delivery = finish(job.order, self.folder, self.link.server, succeeded=succeeded)
        except ServerError as error:
            if not error.status or time.monotonic() - known.since < _UPLOAD_PATIENCE:
                raise
            known.delivery = Delivery(f"not everything could be stored: {error}")
        for message in filter(None, (known.delivery.missing, known.delivery.stored)):
            self.print_message(f"job {job.order.job}: {message}")
        known.finished = True

    def _send(self, job: int, result: JobResult) -> bool:
        """Send a result; whether the server accepted it. A job that is no longer this agent's is dropped."""
        answer = self.link.call("POST", f"/agents/{self._number}/jobs/{job}", body=result.model_dump(mode="json"))
        if ResultReceipt.model_validate(answer).accepted:
            return True
        self._drop(job, result.attempt)
        return False

    def _send_log(self, job: AgentJob, known: _Reported) -> None:
        size = job.log.stat().st_size if job.log.exists() else 0
        path = f"/agents/{self._number}/jobs/{job.order.job}/log"
        while known.log_bytes is None or known.log_bytes < size:
            data = _read(job.log, known.log_bytes or 0)
            parameters = {"attempt": job.order.attempt, "offset": known.log_bytes or 0}
            stored = LogSize.model_validate(self.link.call("POST", path, content=data, params=parameters)).size
            if stored == known.log_bytes:
                return  # the server accepts no more
            known.log_bytes = stored


def _read(log: Path, offset: int) -> bytes:
    if not log.exists():
        return b""
    with log.open("rb") as stream:
        stream.seek(offset)
        return stream.read(_LOG_PIECE)


def _end_in_words(result: JobResult) -> str:
    if result.state == "lost":
        return result.reason
    return "done" if result.code == 0 else f"exit code {result.code}{': ' + result.reason if result.reason else ''}"
